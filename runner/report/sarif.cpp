#include "report/sarif.h"

#include <fmt/format.h>

#include <map>

#include "core/digest.h"
#include "report/scan_text.h"

namespace patchbench::report {
namespace {

constexpr const char* kUnread = "PATCHBENCH-unread";

Json location_of(const std::string& file, int line) {
  Json place = {{"artifactLocation", {{"uri", uri_of(file)}}}};
  if (line > 0) place["region"] = {{"startLine", line}};
  return {{"physicalLocation", place}};
}

/// A result without its place.
Json result_of(const std::string& rule, bool is_error, const std::string& message,
               const std::string& fingerprint, const std::string& ignored) {
  Json result = {{"ruleId", rule},
                 {"level", is_error ? "error" : "warning"},
                 {"message", {{"text", message}}},
                 {"partialFingerprints", {{"patchbench/v1", sha256_hex(fingerprint)}}}};
  if (!ignored.empty())
    result["suppressions"] = Json::array({Json{{"kind", "external"}, {"justification", ignored}}});
  return result;
}

/// The last part of a path: a folder may be named in many ways.
std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string code_rule(const CodeSite& site) { return "PATCHBENCH-code-" + site.slug; }

Json rules_of(const ScanReport& report) {
  std::map<std::string, std::string> titles;
  for (const ScanAnswer& one : report.answers) titles[one.id()] = one.title;
  for (const CodeSite& site : report.code)
    titles[code_rule(site)] = "Code that meets the condition of " + site.slug;
  if (!unread_sentences(report).empty())
    titles[kUnread] = "What is listed names no package, so that no answer is known";
  Json rules = Json::array();
  for (const auto& [id, title] : titles)
    rules.push_back({{"id", id}, {"shortDescription", {{"text", title}}}});
  return rules;
}

}  // namespace

std::string uri_of(const std::string& path) {
  std::string out = path.starts_with("/") ? "file://" : "";
  for (const char c : path) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') ||
                          std::string_view("/-._~").find(c) != std::string_view::npos;
    out += is_plain ? std::string(1, c)
                    : fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return out;
}

Json sarif_document(const ScanReport& report, int exit_code, const std::string& version) {
  Json results = Json::array();
  for (const ScanAnswer& one : report.answers) {
    if (one.state != ScanState::kHit && one.state != ScanState::kUnknown) continue;
    Json result = result_of(one.id(), one.state == ScanState::kHit, answer_sentence(one),
                            fmt::format("{}\n{}\n{}\n{}", one.id(), one.product(),
                                        scan_state_name(one.state), name_of(one.file)),
                            one.ignored);
    const std::string& file = one.file.empty() ? one.input : one.file;
    result["locations"] = Json::array({location_of(file, one.line)});
    results.push_back(std::move(result));
  }
  for (const std::string& line : unread_sentences(report)) {
    Json result = result_of(kUnread, false, line, line, "");
    if (!report.inputs.empty())
      result["locations"] = Json::array({location_of(report.inputs.front(), 0)});
    results.push_back(std::move(result));
  }
  for (const CodeSite& site : report.code) {
    Json result = result_of(
        code_rule(site), site.is_met && !site.is_of_project, site_sentence(site),
        fmt::format("{}\n{}\n{}", code_rule(site), name_of(site.file), site.text), site.ignored);
    result["locations"] = Json::array({location_of(site.file, site.line)});
    results.push_back(std::move(result));
  }
  const Json driver = {{"name", "patchbench"}, {"version", version}, {"rules", rules_of(report)}};
  return {{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
          {"version", "2.1.0"},
          {"runs",
           {{{"tool", {{"driver", driver}}},
             {"columnKind", "unicodeCodePoints"},
             {"invocations", {{{"executionSuccessful", true}, {"exitCode", exit_code}}}},
             {"results", results}}}}};
}

}  // namespace patchbench::report
