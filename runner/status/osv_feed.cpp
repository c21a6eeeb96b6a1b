#include "status/osv_feed.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/fields.h"
#include "report/osv.h"
#include "status/scan.h"

namespace patchbench {
namespace {

constexpr std::size_t kMaxQueries = 1000;  // as OSV has it
constexpr int kBadRequest = 400, kNotFound = 404, kNotAllowed = 405;
// The codes of gRPC, which OSV puts into a refusal.
constexpr int kInvalidArgument = 3, kNoSuchThing = 5, kNotImplemented = 12;

OsvAnswer refused(int status, int code, const std::string& message) {
  return {.status = status, .body = {{"code", code}, {"message", message}}, .unknown = {}};
}

/// A release as the table has it: a state for each class that harms a run.
report::AdvisoryRelease feed_release(const Manifest& pack, const TableRelease& release,
                                     const std::string& time) {
  report::AdvisoryRelease out{release.version, {}};
  if (release.record.empty()) return out;
  const std::vector<std::string> harmless = pack.harmless_classes();
  for (const TableClass& one : release.classes) {
    if (std::find(harmless.begin(), harmless.end(), one.name) == harmless.end())
      out.states.push_back({one.device, one.name, time, one.record});
  }
  if (out.states.empty()) {
    const bool is_harmless = release.state == BugStatus::kPresent;
    out.states.push_back({release.device, is_harmless ? BugStatus::kUnsupported : release.state,
                          time, release.record});
  }
  return out;
}

report::Advisory feed_advisory(const Manifest& pack, const TableUpstream& upstream,
                               const std::string& time, const std::vector<Thread>& threads) {
  report::Advisory out{.slug = pack.slug.str(),
                       .title = pack.title,
                       .upstream = upstream.name,
                       .project = upstream.package,
                       .number = pack.number,
                       .classes = pack.classes,
                       .mitigation = pack.mitigation,
                       .threads = threads_about(threads, pack.slug.str()),
                       .releases = {}};
  for (const TableRelease& release : upstream.releases) {
    if (!release.version.starts_with("git:"))
      out.releases.push_back(feed_release(pack, release, time));
  }
  return out;
}

/// The package that a query names, and what it says of the version.
std::pair<std::string, Listed> queried_package(const Json& query) {
  FieldReader row(query, "query");
  Listed listed{.version = row.optional_text("version")};
  if (row.has("page_token")) row.value("page_token");  // an answer has one page
  FieldReader package(row.object("package"), "query: package");
  row.finish();
  std::string name, ecosystem = "PyPI";
  if (package.has("purl")) {
    const std::optional<PackageUrl> purl = parse_package_url(package.text("purl"));
    if (!purl) package.fail("purl is not a package URL");
    if (!purl->version.empty() && !listed.version.empty())
      row.fail("the version stands twice, in version and in package.purl");
    if (purl->type != "pypi") ecosystem = purl->type;
    name = purl->name;
    listed.source = purl->source;
    listed.commit = purl->commit;
    if (listed.version.empty()) listed.version = purl->version;
  } else {
    name = package.text("name");
    ecosystem = package.text("ecosystem");
  }
  package.finish();
  if (ecosystem != "PyPI") return {"", listed};
  if (!is_package_name(name)) package.fail("\"" + shown(name) + "\" is not a name on PyPI");
  return {normalised(name), listed};
}

}  // namespace

std::map<std::string, Json> osv_records(const std::vector<Manifest>& packs,
                                        const VerdictTable& table,
                                        const std::vector<Thread>& threads) {
  std::map<std::string, Json> records;
  for (const Manifest& pack : packs) {
    const auto at = table.packs.find(pack.slug.str());
    if (at == table.packs.end()) continue;
    for (const TableUpstream& upstream : at->second.upstreams) {
      Json record =
          report::osv_record(feed_advisory(pack, upstream, table.date + "T00:00:00Z", threads));
      if (record.is_null()) continue;
      const std::string id = record.at("id");
      records[id] = std::move(record);
    }
  }
  return records;
}

OsvFeed::OsvFeed(std::vector<Manifest> packs, VerdictTable table,
                 const std::vector<Thread>& threads)
    : packs_(std::move(packs)),
      table_(std::move(table)),
      records_(osv_records(packs_, table_, threads)) {}

Json OsvFeed::records_of(const std::string& package, const Listed& listed,
                         std::vector<std::string>& unknown) const {
  Json found = Json::array();
  if (listed.version.empty()) {
    for (const auto& [id, record] : records_) {
      if (record.at("affected").at(0).at("package").at("name") == package) found.push_back(record);
    }
    return found;
  }
  Inventory inventory{.name = "query"};
  inventory.list.lists_all = false;
  inventory.list.add(package, listed);
  for (const ScanAnswer& one : answers_without_upgrades(packs_, table_, inventory)) {
    const bool is_open = one.state == ScanState::kUnknown;
    if (!is_open && one.state != ScanState::kHit) continue;
    // A commit that is hit has no record where every release is right.
    const auto record = records_.find(one.id());
    if ((is_open && one.classes.empty()) || record == records_.end())
      unknown.push_back(package + " " + printable(listed.version));
    else
      found.push_back(record->second);
  }
  return found;
}

Json OsvFeed::records_for(const Json& query, std::vector<std::string>& unknown) const {
  if (!query.is_object()) throw Error(ErrorCode::kUsage, "query: must be an object");
  if (query.contains("commit")) {
    FieldReader row(query, "query");
    row.text("commit");
    row.finish();
    return Json::array();
  }
  const auto [package, listed] = queried_package(query);
  return package.empty() ? Json::array() : records_of(package, listed, unknown);
}

OsvAnswer OsvFeed::batch(const Json& document) const {
  FieldReader row(document, "querybatch");
  const Json& queries = row.value("queries");
  row.finish();
  if (!queries.is_array()) row.fail("queries must be an array");
  if (queries.size() > kMaxQueries) row.fail(fmt::format("more than {} queries", kMaxQueries));
  OsvAnswer answer;
  answer.body["results"] = Json::array();
  for (const Json& query : queries) {
    Json rows = Json::array();
    for (const Json& record : records_for(query, answer.unknown))
      rows.push_back({{"id", record.at("id")}, {"modified", record.at("modified")}});
    answer.body["results"].push_back(rows.empty() ? Json::object() : Json{{"vulns", rows}});
  }
  return answer;
}

OsvAnswer OsvFeed::answer(const std::string& method, const std::string& path,
                          std::string_view body) const {
  constexpr std::string_view kVulns = "/v1/vulns/";
  const bool is_query = path == "/v1/query", is_batch = path == "/v1/querybatch";
  const bool is_record = path.starts_with(kVulns);
  if (!is_query && !is_batch && !is_record)
    return refused(kNotFound, kNoSuchThing,
                   "not here: POST /v1/query, POST /v1/querybatch, GET /v1/vulns/ID");
  if (method != (is_record ? "GET" : "POST"))
    return refused(kNotAllowed, kNotImplemented,
                   fmt::format("{} wants {}", path, is_record ? "GET" : "POST"));
  if (is_record) {
    const auto at = records_.find(path.substr(kVulns.size()));
    if (at == records_.end()) return refused(kNotFound, kNoSuchThing, "no record with this id");
    return {.status = 200, .body = at->second, .unknown = {}};
  }
  try {
    const Json document = parse_json(body, "request");
    if (!document.is_object()) throw Error(ErrorCode::kUsage, "request: must be an object");
    if (is_batch) return batch(document);
    OsvAnswer answer;
    const Json found = records_for(document, answer.unknown);
    if (!found.empty()) answer.body["vulns"] = found;
    return answer;
  } catch (const Error& error) {
    return refused(kBadRequest, kInvalidArgument, error.what());
  }
}

}  // namespace patchbench
