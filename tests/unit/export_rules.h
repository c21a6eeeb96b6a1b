#pragma once
#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "core/json.h"

namespace patchbench::rules {

/// YYYY-MM-DDTHH:MM:SSZ, the form of RFC 3339 that OSV asks for.
inline bool is_utc_time(const Json& value) {
  if (!value.is_string()) return false;
  const std::string text = value;
  constexpr std::string_view kForm = "dddd-dd-ddTdd:dd:ddZ";
  if (text.size() != kForm.size()) return false;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(text[i])) != 0;
    if (kForm[i] == 'd' ? !is_digit : text[i] != kForm[i]) return false;
  }
  return true;
}

inline void only_keys(const Json& object, const std::set<std::string>& known,
                      const std::string& where, std::vector<std::string>& out) {
  for (const auto& [key, value] : object.items()) {
    if (!known.contains(key)) out.push_back(where + ": unknown key " + key);
  }
}

/// OSV: a range has an "introduced", each event one key, and never both a "fixed" and a
/// "last_affected".
inline void check_range(const Json& range, std::vector<std::string>& out) {
  static const std::set<std::string> kTypes = {"SEMVER", "ECOSYSTEM", "GIT"};
  if (!kTypes.contains(range.value("type", ""))) out.push_back("range: type");
  if (range.value("type", "") == "GIT" && !range.contains("repo")) out.push_back("range: repo");
  std::set<std::string> kinds;
  for (const Json& event : range.value("events", Json::array())) {
    if (event.size() != 1) out.push_back("event: not one key");
    for (const auto& [kind, version] : event.items()) {
      kinds.insert(kind);
      if (!version.is_string() || version.get<std::string>().empty())
        out.push_back("event: " + kind + " is no version");
    }
  }
  for (const std::string& kind : kinds) {
    if (kind != "introduced" && kind != "fixed" && kind != "last_affected" && kind != "limit")
      out.push_back("event: unknown " + kind);
  }
  if (!kinds.contains("introduced")) out.push_back("range: no introduced");
  if (kinds.contains("fixed") && kinds.contains("last_affected"))
    out.push_back("range: fixed and last_affected");
}

/// The rules of the OSV schema (1.6 and later) that concern what we write; what is broken.
inline std::vector<std::string> osv_problems(const Json& record) {
  std::vector<std::string> out;
  if (!record.is_object()) return {"no object"};
  only_keys(record,
            {"schema_version", "id", "modified", "published", "withdrawn", "aliases", "related",
             "upstream", "summary", "details", "severity", "affected", "references", "credits",
             "database_specific"},
            "record", out);
  const std::string id = record.value("id", "");
  if (id.find('-') == std::string::npos || id.find(' ') != std::string::npos || id.empty())
    out.push_back("id: not PREFIX-ENTRY");
  if (!is_utc_time(record.value("modified", Json()))) out.push_back("modified: no UTC time");
  const std::string version = record.value("schema_version", "");
  if (std::count(version.begin(), version.end(), '.') != 2) out.push_back("schema_version");
  for (const Json& affected : record.value("affected", Json::array())) {
    only_keys(
        affected,
        {"package", "severity", "ranges", "versions", "ecosystem_specific", "database_specific"},
        "affected", out);
    const Json package = affected.value("package", Json::object());
    only_keys(package, {"ecosystem", "name", "purl"}, "package", out);
    if (package.value("ecosystem", "") != "PyPI" || package.value("name", "").empty())
      out.push_back("package: ecosystem and name");
    if (affected.value("ranges", Json::array()).empty() &&
        affected.value("versions", Json::array()).empty())
      out.push_back("affected: neither ranges nor versions");
    for (const Json& range : affected.value("ranges", Json::array())) check_range(range, out);
    const Json versions = affected.value("versions", Json::array());
    if (std::set<Json>(versions.begin(), versions.end()).size() != versions.size())
      out.push_back("versions: twice");
  }
  static const std::set<std::string> kReferences = {
      "ADVISORY", "ARTICLE",    "DETECTION", "DISCUSSION", "REPORT", "FIX",
      "GIT",      "INTRODUCED", "PACKAGE",   "EVIDENCE",   "WEB"};
  for (const Json& reference : record.value("references", Json::array())) {
    if (!kReferences.contains(reference.value("type", "")) ||
        !reference.value("url", "").starts_with("https://"))
      out.push_back("reference: type and url");
  }
  return out;
}

/// The rules of OpenVEX 0.2.0 that concern what we write; what is broken.
inline std::vector<std::string> openvex_problems(const Json& document) {
  std::vector<std::string> out;
  if (document.value("@context", "") != "https://openvex.dev/ns/v0.2.0") out.push_back("@context");
  if (document.value("@id", "").find("://") == std::string::npos) out.push_back("@id: no IRI");
  if (document.value("author", "").empty()) out.push_back("author");
  if (!is_utc_time(document.value("timestamp", Json()))) out.push_back("timestamp");
  if (!document.value("version", Json()).is_number_integer() || document.at("version") < 1)
    out.push_back("version");
  if (document.value("statements", Json::array()).empty()) out.push_back("no statement");
  static const std::set<std::string> kJustifications = {
      "component_not_present", "vulnerable_code_not_present", "vulnerable_code_not_in_execute_path",
      "vulnerable_code_cannot_be_controlled_by_adversary", "inline_mitigations_already_exist"};
  for (const Json& s : document.value("statements", Json::array())) {
    only_keys(s,
              {"@id", "version", "vulnerability", "timestamp", "last_updated", "products", "status",
               "supplier", "status_notes", "justification", "impact_statement", "action_statement",
               "action_statement_timestamp"},
              "statement", out);
    const std::string status = s.value("status", "");
    if (s.value("vulnerability", Json::object()).value("name", "").empty())
      out.push_back("vulnerability: no name");
    if (s.value("products", Json::array()).empty()) out.push_back("no product");
    for (const Json& product : s.value("products", Json::array())) {
      if (!product.value("@id", "").starts_with("pkg:pypi/")) out.push_back("product: no purl");
    }
    if (status != "affected" && status != "not_affected" && status != "fixed" &&
        status != "under_investigation")
      out.push_back("status: " + status);
    if (status == "affected" && s.value("action_statement", "").empty())
      out.push_back("affected without an action");
    if (status == "not_affected" && !kJustifications.contains(s.value("justification", "")) &&
        s.value("impact_statement", "").empty())
      out.push_back("not_affected without justification or impact");
    if (status != "affected" && s.contains("action_statement"))
      out.push_back("an action where nothing is affected");
  }
  return out;
}

/// DSSE's pre-authentication encoding, from its published definition.
inline std::string dsse_pae(const std::string& type, const std::string& body) {
  const auto sized = [](const std::string& text) {
    return std::to_string(text.size()) + " " + text;
  };
  return "DSSEv1 " + sized(type) + " " + sized(body);
}

}  // namespace patchbench::rules
