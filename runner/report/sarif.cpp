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
Json result_of(const std::string& rule, const std::string& level, const std::string& message,
               const std::string& fingerprint, const std::string& ignored,
               const std::string& baseline) {
  Json result = {{"ruleId", rule},
                 {"level", level},
                 {"message", {{"text", message}}},
                 {"partialFingerprints", {{"patchbench/v1", sha256_hex(fingerprint)}}}};
  if (!ignored.empty())
    result["suppressions"] = Json::array({Json{{"kind", "external"}, {"justification", ignored}}});
  if (!baseline.empty()) result["baselineState"] = baseline;
  return result;
}

/// The last part of a path: a folder may be named in many ways.
std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string code_rule(const CodeSite& site) { return "PATCHBENCH-code-" + site.slug; }

std::string level_of(const CodeSite& site) {
  if (site.state() == SiteState::kNoGradient) return "note";
  return site.is_met() && !site.is_of_project ? "error" : "warning";
}

Json rules_of(const ScanReport& report) {
  std::map<std::string, std::string> titles;
  for (const ScanAnswer& one : report.answers) titles[one.id()] = one.title;
  for (const CodeSite& site : report.code)
    titles[code_rule(site)] = "Code that meets the condition of " + site.slug;
  if (!unread_lines(report).empty())
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
  const auto baseline = [&](bool is_known) {
    return !report.has_baseline ? "" : is_known ? "unchanged" : "new";
  };
  Json results = Json::array();
  for (const ScanAnswer& one : report.answers) {
    const bool is_present = one.state == ScanState::kPresent;
    if (one.state != ScanState::kHit && one.state != ScanState::kUnknown && !is_present) continue;
    const std::string level = is_present                     ? "note"
                              : one.state == ScanState::kHit ? "error"
                                                             : "warning";
    Json result = result_of(one.id(), level, answer_sentence(one),
                            fmt::format("{}\n{}\n{}\n{}", one.id(), one.product(),
                                        scan_state_name(one.state), name_of(one.file)),
                            one.ignored, baseline(one.in_baseline));
    const std::string& file = one.file.empty() ? one.input : one.file;
    result["locations"] = Json::array({location_of(file, one.line)});
    results.push_back(std::move(result));
  }
  for (const UnreadLine& line : unread_lines(report)) {
    Json result =
        result_of(kUnread, "warning", line.text, line.text, "", baseline(line.in_baseline));
    if (!report.inputs.empty())
      result["locations"] = Json::array({location_of(report.inputs.front(), 0)});
    results.push_back(std::move(result));
  }
  for (const CodeSite& site : report.code) {
    Json result =
        result_of(code_rule(site), level_of(site), site_sentence(site),
                  fmt::format("{}\n{}\n{}", code_rule(site), name_of(site.file), site.text()),
                  site.ignored, baseline(site.in_baseline));
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
