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

/// One failure class of a release.
struct ScanClass {
  std::string name, impact;
  std::string wrong;           ///< what goes wrong
  std::string condition;       ///< when; empty: in every run of the code
  std::string record, device;  ///< the verdict that shows it, and where it was measured
  std::string open;  ///< the packages that it needs and of which nothing is known; else empty
};

/// A newer release of a package, with what every pack says of it.
struct Upgrade {
  std::string release;                            ///< empty: none cures a hit
  std::vector<std::string> cures, keeps, brings;  ///< packs: hits now alone, both, then alone
};

/// One answer of `scan`.
struct ScanAnswer {
  std::string input;  ///< the PATH that was named, or the environment that was found below it
  std::string slug, title;
  int number = 0;
  std::string upstream, package, version, source;
  std::string range;  ///< what was asked for; `version` is then the newest release in it, or ""
  ScanState state = ScanState::kUnknown;
  std::string why;  ///< the worst failure class of a hit; else one line
  /// Of a hit all that it may meet, the worst first, open ones last; of an unknown answer what it
  /// may be hit by.
  std::vector<ScanClass> classes;
  Upgrade upgrade;             ///< of a hit
  std::string mitigation;      ///< of a hit: what the pack's mitigation does about it; may be empty
  bool acts = false;           ///< of a hit: the mitigation was verified on this very release
  std::string record, device;  ///< the verdict that the answer rests on, and where it was measured
  std::string next;            ///< the command that would measure what is unknown; may be empty
  std::string file;            ///< where the package is listed
  int line = 0;
  std::string
      files_digest;         ///< of the installed files where they decided; "" where the version did
  std::string same_code;    ///< the release whose code the changed files hold; may be empty
  bool is_patched = false;  ///< an edit of the pack is applied
  bool is_harmless =
      false;  ///< not_hit, though the bug is there: no run of the release as it is meets it
  std::string without;  ///< not_hit: the packages that a hit would need and that are not there
  std::string ignored;  ///< why the answer sets no exit status; "" where it does
  /// The worst class; null without one.
  const ScanClass* worst() const { return classes.empty() ? nullptr : &classes.front(); }
  std::string impact() const { return worst() == nullptr ? "" : worst()->impact; }
  bool is_cured() const;  ///< the upgrade is right for this pack
  /// The release of the upgrade where no pack is hit by it; else empty.
  std::string right_release() const;
  bool is_fixable() const { return is_cured() || acts; }
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
  /// It was found below a project's folder, where the packages that are listed are the answer.
  bool is_of_project = false;
};

/// What one run of `scan` found.
struct ScanReport {
  std::string verdicts_of;  ///< the day of the newest record in the verdict table
  std::vector<std::string> inputs;
  std::vector<ScanAnswer> answers;
  std::vector<std::string> unread;  ///< what may be a package and cannot be known; each is unknown
  std::vector<std::string> unread_code;  ///< code that may meet a condition and was not read
  std::vector<std::string> notes;        ///< expired entries of .patchbench.toml and the like
  std::vector<CodeSite> code;
  bool has_code = false;          ///< --code was given
  bool has_project_code = false;  ///< code below a project was read
  bool has_mitigations = false;   ///< patchbench-mitigations is installed in an input
  /// Whether every release of a pack that is listed is right, and one is listed.
  bool is_right(const std::string& slug) const;
  /// "PATCHBENCH_MITIGATE=a,b python -m patchbench_mitigations train.py", "" if none acts.
  std::string command() const;
  /// Whether the packages are all known, and no pack asks about one of them.
  bool asks_nothing() const;
  /// "pip install 'a==2' 'b==3'": a right release of each package that is hit; "" without one.
  std::string upgrade_command() const;
};

/// What sets the exit status.
struct ScanLimits {
  std::set<std::string> fail_on;  ///< impacts
  bool allows_unknown = false, only_fixable = false;
};
/// kExitNo for a hit, before kExitNoAnswer for something unknown or for nothing that a pack asks
/// about, else kExitYes.
int scan_exit(const ScanReport& report, const ScanLimits& limits);

Json scan_json(const ScanReport& report, int exit_code);
Json answer_json(const ScanAnswer& answer);

}  // namespace patchbench
