#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace patchbench::harness {

/// What a subject says of one case.
struct CaseReport {
  std::string status;  ///< "ok", "unsupported", "raised"
  std::string reason;
  Json facts = Json::object();  ///< wall_s, peak_bytes, exception: cut to size
};

/// A subject.json that has the form of the contract.
struct SubjectReport {
  Json facts = Json::object();    ///< package, versions, device: cut to size
  Json watched = Json::object();  ///< changed lines and arguments, over all cases
  std::map<std::string, CaseReport> cases;
};

/// Reads the untrusted text strictly: unknown or missing keys, wrong types, a case that was not
/// asked for. Strings are cut to one printable line. Throws Error(kUsage) `subject.json: <reason>`.
SubjectReport parse_subject_report(std::string_view text, const std::vector<std::string>& wanted);

}  // namespace patchbench::harness
