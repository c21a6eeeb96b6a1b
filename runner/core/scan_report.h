#pragma once
#include <set>
#include <string>
#include <vector>

#include "core/json.h"

namespace patchbench {

/// What an input says of one version of one upstream of one pack.
/// `kPresent`: the release has the bug, and what was read says that no condition of it is met.
enum class ScanState { kHit, kNotHit, kUnknown, kNotInstalled, kPresent };
/// "hit", "not_hit", "unknown", "not_installed", "present".
std::string scan_state_name(ScanState state);

/// Whether the condition of a failure class is met, by the code and the configurations read.
enum class ConditionState { kOpen, kMet, kNotMet };
/// "open", "met", "not met".
std::string condition_state_name(ConditionState state);

/// One failure class of a release.
struct ScanClass {
  std::string name, impact;
  std::string wrong;           ///< what goes wrong
  std::string condition;       ///< when; empty: in every run of the code
  std::string record, device;  ///< the verdict that shows it, and where it was measured
  std::string open;  ///< the packages that it needs and of which nothing is known; else empty
  ConditionState state = ConditionState::kOpen;
  std::string where;         ///< FILE:LINE that says so; "" for kOpen, and where every run meets it
  bool in_baseline = false;  ///< a former answer has it (core/scan_baseline.h)
  std::string size, size_record;  ///< what it did to a training run, and the record; may be empty
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
      files_digest;  ///< of the installed files where they decided; "" where the version did
  std::string twin;  ///< the release whose code the changed files hold; may be empty
  bool is_same_code = false;  ///< all the code of `twin`; else its functions that carry the bug
  std::string
      archive;  ///< not_hit: the SHA-256 of the release's archive, which was read; may be ""
  bool is_patched = false;  ///< an edit of the pack is applied
  bool is_harmless =
      false;  ///< not_hit, though the bug is there: no run of the release as it is meets it
  std::string without;       ///< not_hit: the packages that a hit would need and that are not there
  std::string ignored;       ///< why the answer sets no exit status; "" where it does
  bool in_baseline = false;  ///< all of it; of a hit each class counts for itself
  /// The worst class; null without one.
  const ScanClass* worst() const { return classes.empty() ? nullptr : &classes.front(); }
  /// "same code as 0.8.0", "same functions as 0.8.0", or "".
  std::string twin_text() const;
  std::string impact() const { return worst() == nullptr ? "" : worst()->impact; }
  /// A release as the index has it, as far as is known: no build, no copy, no range, no changed
  /// files.
  bool is_release() const;
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

/// What a place in code says: the condition is met, it cannot be known, or nobody takes a gradient
/// there and the class is about the backward.
enum class SiteState { kMeets, kUnknown, kNoGradient };
/// "meets", "cannot_know", "no_gradient".
std::string site_state_name(SiteState state);

/// What a place in code says of one failure class.
struct SiteClass {
  std::string name, impact;
  SiteState state = SiteState::kUnknown;
  std::string text;  ///< what is there
};

/// A place in code that meets a rule of a pack, or of which it cannot be said.
struct CodeSite {
  std::string slug, file;
  int line = 0;
  std::vector<SiteClass> classes;  ///< what is met first; never empty
  std::string ignored;             ///< as of an answer
  bool in_baseline = false;
  /// It was found below a project's folder, where the packages that are listed are the answer.
  bool is_of_project = false;
  SiteState state() const { return classes.front().state; }
  const std::string& text() const { return classes.front().text; }
  bool is_met() const { return state() == SiteState::kMeets; }
  std::string place() const;  ///< "train.py:4"; without a line where it is not read
};

/// A place in a configuration or in code that rules a failure class out (`rules_out`).
struct RuledOut {
  std::string slug, failure_class, place;
  std::vector<std::string> upstreams;  ///< of the pack, whose hits it is for
  std::string release;  ///< the one release for which it says so, whatever code meets; may be empty
};

/// A config.json of a model.
struct ModelConfig {
  std::vector<std::string> classes;  ///< `architectures`; empty where they cannot be known
  std::string place;
  bool is_named = false;  ///< the file itself was named with --code: it is what is trained
};

/// A comment "# patchbench: ignore SLUG reason".
struct IgnoreComment {
  std::string place, text;  ///< `place`: "train.py:4"; `text`: what follows "ignore"
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
  std::vector<RuledOut> ruled_out;
  std::vector<ModelConfig> models;
  std::vector<std::string> other_losses;  ///< "train.py:3: peft": no loss of a measured model class
  std::vector<IgnoreComment> comments;
  std::set<std::string> unread_in_baseline;
  bool has_baseline = false;
  bool has_code = false;          ///< --code was given
  bool has_project_code = false;  ///< code below a project was read
  bool has_mitigations = false;   ///< patchbench-mitigations is installed in an input
  /// Whether every release of a pack that is listed is right, and one is listed.
  bool is_right(const std::string& slug) const;
  /// "PATCHBENCH_MITIGATE=a,b python -m patchbench_mitigations train.py", "" if none acts.
  std::string command() const;
  /// A line of `unread` as a sentence.
  std::string unread_text(const std::string& line) const;
  /// Whether the packages are all known, and no pack asks about one of them.
  bool asks_nothing() const;
  /// "pip install 'a==2' 'b==3'": a right release of each package that is hit; "" without one.
  std::string upgrade_command() const;
};

/// What sets the exit status.
struct ScanLimits {
  std::set<std::string> fail_on;  ///< impacts
  bool allows_unknown = false, only_fixable = false;
  bool needs_met = false;  ///< only a hit whose condition is known to be met
};
/// kExitNo for a hit, before kExitNoAnswer for something unknown or for nothing that a pack asks
/// about, else kExitYes.
int scan_exit(const ScanReport& report, const ScanLimits& limits);

/// How many hits do not fail because their condition is not known; "" for none.
std::string passed_note(const ScanReport& report, const ScanLimits& limits);

Json scan_json(const ScanReport& report, int exit_code);
Json answer_json(const ScanAnswer& answer);
Json site_json(const CodeSite& site);

}  // namespace patchbench
