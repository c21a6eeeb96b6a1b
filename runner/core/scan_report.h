#pragma once
#include <set>
#include <string>
#include <vector>

#include "core/json.h"

namespace patchbench {

/// What an input says of one version of one upstream of one pack.
enum class ScanState { kHit, kNotHit, kUnknown, kNotInstalled };
/// "hit", "not_hit", "unknown", "not_installed".
std::string scan_state_name(ScanState state);

/// One answer of `scan`.
struct ScanAnswer {
  std::string input;  ///< the PATH that was named, or the environment that was found below it
  std::string slug, title;
  int number = 0;
  std::string upstream, package, version, source;
  ScanState state = ScanState::kUnknown;
  std::string why;             ///< the failure class of a hit; else one line
  std::string impact;          ///< of a hit
  std::string wrong;           ///< of a hit: what goes wrong
  std::string condition;       ///< of a hit: when; may be empty
  std::string right_release;   ///< of a hit: the next release that was measured right; may be empty
  std::string mitigation;      ///< of a hit: what the pack's mitigation does about it; may be empty
  bool acts = false;           ///< of a hit: the mitigation was verified on this very release
  std::string record, device;  ///< the verdict that the answer rests on, and where it was measured
  std::string next;            ///< the command that would measure what is unknown; may be empty
  std::string file;            ///< where the package is listed
  int line = 0;
  std::string
      files_digest;         ///< of the installed files where they decided; "" where the version did
  bool is_patched = false;  ///< an edit of the pack is applied
  bool is_harmless =
      false;  ///< not_hit, though the bug is there: no run of the release as it is meets it
  std::string without;  ///< not_hit: the packages that a hit would need and that are not there
  std::string ignored;  ///< why the answer sets no exit status; "" where it does
  bool is_fixable() const { return !right_release.empty() || acts; }
  /// "PATCHBENCH-09-liger-kernel"
  std::string id() const;
  /// "pkg:pypi/liger-kernel@0.8.0"; with a digest where the files differ from that release,
  /// and with the packages whose absence makes it no hit: what holds of it holds of no other
  /// product.
  std::string product() const;
};

/// A place in code that meets a rule of a pack, or of which it cannot be said.
struct CodeSite {
  std::string slug, failure_class, impact, file;
  int line = 0;
  bool is_met = false;  ///< false: it cannot be known
  std::string text;     ///< what is there
  std::string ignored;  ///< as of an answer
};

/// What one run of `scan` found.
struct ScanReport {
  std::string verdicts_of;  ///< the day of the newest record in the verdict table
  std::vector<std::string> inputs;
  std::vector<ScanAnswer> answers;
  std::vector<std::string> unread;  ///< what may be a package and cannot be known; each is unknown
  std::vector<std::string> notes;   ///< expired entries of .patchbench.toml and the like
  std::vector<CodeSite> code;
  bool has_code = false;         ///< --code was given
  bool has_mitigations = false;  ///< patchbench-mitigations is installed in an input
  /// "PATCHBENCH_MITIGATE=a,b python -m patchbench_mitigations train.py", "" if none acts.
  std::string command() const;
};

/// What sets the exit status.
struct ScanLimits {
  std::set<std::string> fail_on;  ///< impacts
  bool allows_unknown = false, only_fixable = false;
};
/// 1 a hit, before 3 something unknown, else 0.
int scan_exit(const ScanReport& report, const ScanLimits& limits);

Json scan_json(const ScanReport& report, int exit_code);
Json answer_json(const ScanAnswer& answer);

}  // namespace patchbench
