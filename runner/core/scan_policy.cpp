#include "core/scan_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/day.h"
#include "core/error.h"
#include "core/slug.h"
#include "core/toml_text.h"

namespace patchbench {
namespace {

[[noreturn]] void refuse_policy(const std::string& where, const std::string& reason) {
  throw Error(ErrorCode::kUsage, where + ": " + reason);
}

/// The text of an entry's key; refuses another value, and an empty one.
std::string entry_text(const Json& entry, const std::string& key, const std::string& where) {
  const Json value = entry.value(key, Json());
  // TOML has days of its own; parse_toml gives both as texts.
  if (!value.is_string() || value.get<std::string>().empty())
    refuse_policy(where, fmt::format("an [[ignore]] needs {} as a text", key));
  return value;
}

void check_keys(const Json& table, const std::vector<std::string>& known,
                const std::string& where) {
  for (const auto& [key, value] : table.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      refuse_policy(where, "unknown key \"" + shown(key) + "\"" + did_you_mean(shown(key), known));
  }
}

/// A statement's text; "" without one.
std::string vex_text(const Json& row, const char* key) {
  const bool has_text = row.is_object() && row.contains(key) && row.at(key).is_string();
  return has_text ? row.at(key).get<std::string>() : "";
}

/// Whether a product that a statement names is that of an answer.
bool is_product(const std::string& named, const ScanAnswer& answer) {
  return named == answer.product() || named == "pkg:pypi/" + answer.package;
}

/// The products that a statement names.
std::vector<std::string> products_of(const Json& statement) {
  std::vector<std::string> found;
  const Json products = statement.value("products", Json::array());
  if (!products.is_array()) return found;
  for (const Json& one : products) {
    found.push_back(one.is_string() ? one.get<std::string>() : vex_text(one, "@id"));
    const Json identifiers = one.is_object() ? one.value("identifiers", Json()) : Json();
    if (const std::string purl = vex_text(identifiers, "purl"); !purl.empty())
      found.push_back(purl);
  }
  return found;
}

}  // namespace

std::vector<IgnoredPack> ignored_packs(std::string_view text, const std::string& file,
                                       const std::vector<std::string>& slugs) {
  JsonLines lines;
  const Json document = parse_toml(text, file, &lines);
  check_keys(document, {"ignore"}, file);
  std::vector<IgnoredPack> found;
  const Json rows = document.value("ignore", Json::array());
  if (!rows.is_array()) refuse_policy(file, "ignore must be written [[ignore]]");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const int line = lines["/ignore/" + std::to_string(i)];
    const std::string where = fmt::format("{}:{}", file, line);
    if (!rows[i].is_object()) refuse_policy(where, "ignore must be written [[ignore]]");
    check_keys(rows[i], {"pack", "reason", "until"}, where);
    IgnoredPack one{entry_text(rows[i], "pack", where), entry_text(rows[i], "reason", where),
                    entry_text(rows[i], "until", where), line};
    if (std::find(slugs.begin(), slugs.end(), one.pack) == slugs.end())
      refuse_policy(where,
                    "no pack \"" + shown(one.pack) + "\"" + did_you_mean(shown(one.pack), slugs));
    if (!is_day(one.until)) refuse_policy(where, "until must be a day, as 2026-12-31");
    found.push_back(std::move(one));
  }
  return found;
}

void apply_ignored(ScanReport& report, const std::vector<IgnoredPack>& entries,
                   const std::string& file, const std::string& today) {
  for (const IgnoredPack& entry : entries) {
    if (entry.until < today) {
      report.notes.push_back(fmt::format("{}:{}: the entry for {} expired on {} and does not act",
                                         file, entry.line, entry.pack, entry.until));
      continue;
    }
    const std::string why = fmt::format("{} until {}: {}", file, entry.until, entry.reason);
    for (ScanAnswer& one : report.answers) {
      const bool is_open = one.state == ScanState::kHit || one.state == ScanState::kUnknown;
      if (one.slug == entry.pack && is_open) one.ignored = why;
    }
    for (CodeSite& site : report.code) {
      if (site.slug == entry.pack) site.ignored = why;
    }
  }
}

void apply_comments(ScanReport& report, const std::vector<std::string>& slugs) {
  for (const IgnoreComment& comment : report.comments) {
    const std::string slug = comment.text.substr(0, comment.text.find(' '));
    const std::string reason = comment.text.substr(std::min(slug.size() + 1, comment.text.size()));
    const bool is_pack = std::find(slugs.begin(), slugs.end(), slug) != slugs.end();
    if (!is_pack || reason.empty()) {
      report.notes.push_back(fmt::format(
          "{}: the comment ignores nothing: {}", comment.place,
          slug.empty() ? "write # patchbench: ignore PACK REASON"
          : is_pack    ? "write a reason after " + slug
                       : "no pack \"" + shown(slug) + "\"" + did_you_mean(shown(slug), slugs)));
      continue;
    }
    for (CodeSite& site : report.code) {
      if (site.slug == slug && site.place() == comment.place)
        site.ignored = comment.place + ": " + reason;
    }
  }
}

void apply_vex(ScanReport& report, std::string_view text, const std::string& file) {
  const Json document = parse_json(text, file);
  const bool is_vex = vex_text(document, "@context").starts_with("https://openvex.dev/ns");
  if (!is_vex)
    refuse_policy(file, "is not an OpenVEX document (@context https://openvex.dev/ns/…)");
  const Json statements = document.value("statements", Json::array());
  if (!statements.is_array()) refuse_policy(file, "statements must be an array");
  for (std::size_t i = 0; i < statements.size(); ++i) {
    const std::string where = fmt::format("{}: statement {}", file, i + 1);
    if (!statements[i].is_object()) refuse_policy(where, "must be an object");
    const std::string status = vex_text(statements[i], "status");
    if (status != "not_affected" && status != "fixed") continue;
    std::string reason = vex_text(statements[i], "justification");
    if (reason.empty()) reason = vex_text(statements[i], "impact_statement");
    if (status == "not_affected" && reason.empty())
      refuse_policy(where, "not_affected needs a justification or an impact_statement");
    const Json vulnerability = statements[i].value("vulnerability", Json());
    const std::string id = vulnerability.is_string() ? vulnerability.get<std::string>()
                                                     : vex_text(vulnerability, "name");
    for (const std::string& product : products_of(statements[i])) {
      for (ScanAnswer& one : report.answers) {
        const bool is_open = one.state == ScanState::kHit || one.state == ScanState::kUnknown;
        if (is_open && one.id() == id && is_product(product, one))
          one.ignored = fmt::format("{}: {}{}", file, status, reason.empty() ? "" : ", " + reason);
      }
    }
  }
}

}  // namespace patchbench
