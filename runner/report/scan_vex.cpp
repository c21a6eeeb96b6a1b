#include "report/scan_vex.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "core/digest.h"
#include "report/scan_text.h"

namespace patchbench::report {
namespace {

using Key = std::pair<std::string, std::string>;  // id and product

/// The worst answer of each pack and product: a hit, then what is unknown. Of two alike the one
/// that is not ignored.
std::map<Key, const ScanAnswer*> worst_answers(const ScanReport& report) {
  std::map<Key, const ScanAnswer*> worst;
  const auto rank = [](const ScanAnswer& one) {
    const int state = one.state == ScanState::kHit ? 0 : one.state == ScanState::kUnknown ? 1 : 2;
    return 2 * state + (one.ignored.empty() && !one.in_baseline ? 0 : 1);
  };
  for (const ScanAnswer& one : report.answers) {
    if (one.state == ScanState::kNotInstalled) continue;
    const ScanAnswer*& kept = worst[{one.id(), one.product()}];
    if (kept == nullptr || rank(one) < rank(*kept)) kept = &one;
  }
  return worst;
}

std::string action_text(const ScanAnswer& one) {
  std::string text;
  if (one.is_cured()) text = fmt::format("Upgrade {}: {}.", one.package, upgrade_text(one));
  if (one.acts)
    text += fmt::format(
        "{}Set PATCHBENCH_MITIGATE={} and start with python -m "
        "patchbench_mitigations.",
        text.empty() ? "" : " ", one.slug);
  return text.empty() ? "No release was measured right and no mitigation acts here." : text;
}

Json statement_of_answer(const ScanAnswer& one) {
  Json out = {{"vulnerability", {{"name", one.id()}, {"description", one.title}}},
              {"products", {{{"@id", one.product()}}}},
              {"status_notes", answer_sentence(one)}};
  if (one.state == ScanState::kHit) {
    out["status"] = "affected";
    out["action_statement"] = action_text(one);
  } else if (one.state == ScanState::kUnknown) {
    out["status"] = "under_investigation";
  } else if (one.is_patched) {
    out["status"] = "fixed";
  } else {
    out["status"] = "not_affected";
    out["impact_statement"] = one.why;
  }
  return out;
}

Json analysis_of(const ScanAnswer& one) {
  Json out = {{"detail", answer_sentence(one)}};
  if (one.state == ScanState::kHit) {
    out["state"] = "exploitable";
    Json response = Json::array();
    if (one.is_cured()) response.push_back("update");
    if (one.acts) response.push_back("workaround_available");
    if (!one.ignored.empty()) response.push_back("will_not_fix");
    if (!response.empty()) out["response"] = response;
  } else if (one.state == ScanState::kUnknown) {
    out["state"] = "in_triage";
  } else if (one.is_patched) {
    out["state"] = "resolved";
  } else {
    out["state"] = "not_affected";
    if (!one.without.empty()) out["justification"] = "requires_dependency";
    if (one.state == ScanState::kPresent) out["justification"] = "requires_configuration";
  }
  return out;
}

std::string severity_of(const ScanAnswer& one) {
  const std::string impact = one.impact();
  if (impact == "silent_wrong" || impact == "memory_corruption") return "high";
  if (impact == "crash") return "medium";
  return impact.empty() ? "unknown" : "low";
}

Json vulnerability_of(const ScanAnswer& one) {
  Json out = {{"bom-ref", one.id() + "/" + one.product()},
              {"id", one.id()},
              {"source", {{"name", "patchbench"}}},
              {"ratings",
               {{{"source", {{"name", "patchbench"}}},
                 {"severity", severity_of(one)},
                 {"method", "other"}}}},
              {"description", one.title},
              {"analysis", analysis_of(one)},
              {"affects", {{{"ref", one.product()}}}}};
  if (!one.classes.empty()) out["detail"] = class_sentences(one);
  if (one.state == ScanState::kHit) out["recommendation"] = action_text(one);
  Json properties = Json::array();
  for (const auto& [name, value] :
       {Key{"record", one.record}, Key{"impact", one.impact()}, Key{"ignored", one.ignored},
        Key{"in_baseline", one.in_baseline ? "true" : ""}}) {
    if (!value.empty()) properties.push_back({{"name", "patchbench:" + name}, {"value", value}});
  }
  if (!properties.empty()) out["properties"] = properties;
  return out;
}

}  // namespace

Json scan_openvex(const ScanReport& report, const std::string& now) {
  Json statements = Json::array();
  for (const auto& [key, one] : worst_answers(report))
    statements.push_back(statement_of_answer(*one));
  for (const std::string& line : report.unread)
    statements.push_back({{"vulnerability", {{"name", "PATCHBENCH-unread"}}},
                          {"products", {{{"@id", "urn:patchbench:unread:" + sha256_hex(line)}}}},
                          {"status", "under_investigation"},
                          {"status_notes", report.unread_text(line)}});
  Json document = {{"@context", "https://openvex.dev/ns/v0.2.0"},
                   {"author", "patchbench"},
                   {"timestamp", now},
                   {"version", 1},
                   {"tooling", "patchbench scan --format openvex"},
                   {"statements", statements}};
  document["@id"] = "https://patchbench.invalid/vex/" + sha256_hex(document.dump());
  return document;
}

Json scan_cyclonedx(const ScanReport& report, const std::string& now, const std::string& version) {
  Json components = Json::array(), vulnerabilities = Json::array(), properties = Json::array();
  std::map<std::string, const ScanAnswer*> products;
  for (const auto& [key, one] : worst_answers(report)) {
    products[one->product()] = one;
    vulnerabilities.push_back(vulnerability_of(*one));
  }
  for (const auto& [product, one] : products) {
    Json component = {
        {"type", "library"}, {"bom-ref", product}, {"name", one->package}, {"purl", product}};
    if (!one->version.empty()) component["version"] = one->version;
    components.push_back(std::move(component));
  }
  for (const std::string& line : report.unread) {
    vulnerabilities.push_back({{"id", "PATCHBENCH-unread"},
                               {"source", {{"name", "patchbench"}}},
                               {"description", report.unread_text(line)},
                               {"analysis", {{"state", "in_triage"}}}});
  }
  properties.push_back({{"name", "patchbench:verdicts_of"}, {"value", report.verdicts_of}});
  return {{"$schema", "http://cyclonedx.org/schema/bom-1.6.schema.json"},
          {"bomFormat", "CycloneDX"},
          {"specVersion", "1.6"},
          {"version", 1},
          {"metadata",
           {{"timestamp", now},
            {"tools",
             {{"components",
               {{{"type", "application"}, {"name", "patchbench"}, {"version", version}}}}}},
            {"properties", properties}}},
          {"components", components},
          {"vulnerabilities", vulnerabilities}};
}

}  // namespace patchbench::report
