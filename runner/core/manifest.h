#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/scan_rules.h"
#include "core/schema.h"
#include "core/slug.h"
#include "core/subject.h"

namespace patchbench {

/// What a case is there for (contract 2).
enum class CaseRole {
  kTrigger,  ///< shows the bug on the red pin
  kSilent,   ///< the bug cannot show here (e.g. loss.sum())
  kControl,  ///< must be right everywhere
  kSurvey,   ///< shown and recorded, part of no sentinel but a claim's: what a release does
  kCode,     ///< generated code: not judged, compared between two subjects
  kDrawn,    ///< drawn from a space of the manifest (`explore`), never declared
};
std::string role_name(CaseRole role);
CaseRole role_from(std::string_view name);

struct UpstreamUse;

/// One named point of the case table: axes are the pack's own (dtype, sizes, features).
struct Case {
  std::string name;
  CaseRole role;
  Json axes;  ///< an object; its keys are the reproducer's, unknown ones are its errors
  std::vector<std::string> judged_on;  ///< device kinds on which it counts: "cpu", "cuda"
  std::vector<std::string> subjects;   ///< those it is for ("upstream", "op", "model"); empty: all
  std::string upstream;                ///< of several, the one whose code it runs; empty: every one
  std::string left;                    ///< why the mitigation has no answer to it; empty: it has
  /// A process of its own, and guard bands around its inputs: the code under test may write past
  /// its tensors.
  bool is_isolated = false;
  bool counts_on(std::string_view device_kind) const;
  /// `subject` with its kind in front: patched, mitigated and mutants are upstream, but for what
  /// the mitigation leaves.
  bool is_for(const Subject& subject) const;
  /// One that stands alone runs what names it, the others what names no other.
  bool runs_on(const UpstreamUse& use) const;
};

/// One upstream a pack names: `red_pin` is the only version where `present` is expected.
struct UpstreamUse {
  std::string name;     ///< a key of env/pins.json
  std::string red_pin;  ///< a version of that upstream
  std::vector<std::string>
      files;  ///< package-relative files that the edits touch; their digests are recorded
  bool from_environment =
      false;  ///< the environment has it; a pin of it is used where one is named
  /// Another project with the same code: a run has it together with others only if it is named.
  bool stands_alone = false;
  /// File -> the functions that carry the bug, by qualified name (core/python_code.h). A file may
  /// be one of an older release alone.
  std::map<std::string, std::vector<std::string>> functions;
  std::string not_python;  ///< why no functions are listed: the code is not Python; may be empty
  /// Words of the code that carries the bug: an older release without them has not this code.
  std::vector<std::string> code_words;
  /// `files` and the files of `functions`, sorted.
  std::vector<std::string> code_files() const;
};

/// How a claim is tested: what `subject` of `version` shows on the row's cases, against `contrast`.
struct ClaimTest {
  std::string name;      ///< for the command line; unique in the manifest
  std::string upstream;  ///< of the pack's
  std::string version;   ///< of that upstream
  Subject subject =
      SubjectKind::kOther;  ///< the one that the claim speaks of, e.g. "mutant:gate-accepts"
  Subject contrast =
      SubjectKind::kOther;    ///< one that must come out the other way, so that a difference shows
  std::string expects;        ///< what the claim says is seen on every case: "absent" or "present"
  std::string failure_class;  ///< the class that is present, on whichever side
};

/// One claim, in our words, and where it stands.
struct ScopeRow {
  std::string claim, of, architecture, verdict;  ///< `of`: "proposal" or "ours"
  std::vector<std::string> cases, records;
  std::optional<ClaimTest> test;
  std::string why;  ///< why no record settles it, or what they leave open; may be empty
};

/// A cell of the table that is not there, and why.
struct Waiver {
  std::string cell, reason;
};

/// A changed line of the fix that no case on a CPU can run, and why.
struct LineWaiver {
  std::string blob;  ///< of the file as the edits leave it: another text has no waiver
  std::string line;  ///< `path:line`, or `path:line is never true`, as a verdict names it
  std::string reason;
};

/// A region of the inputs (repro/harness/regions.h) that the pack's cases do not look at, and why.
struct RegionWaiver {
  std::string region;                 ///< a name, or its beginning followed by "*"
  std::vector<std::string> subjects;  ///< "patched", "op", "mitigated"; empty: all
  std::vector<std::string> devices;   ///< "cpu", "cuda"; empty: both
  std::string reason;
  bool is_for(const Subject& subject, std::string_view device_kind) const;
};

/// A space of inputs that cases are drawn from (`explore.spaces`; repro/harness/space.h reads the
/// axes).
struct SpaceRow {
  Json body;      ///< name, axes, most, relations: the reproducer's
  int count = 0;  ///< cases that are drawn by default
  Case like;      ///< whom its cases are for, on which devices, of which upstream
};

/// In which scenarios (core/scenario.h) the drawn cases of subjects of other processes are. A
/// manifest that says nothing of them has none.
struct ScenarioRules {
  bool are_drawn = false;
  /// scenario -> kind of device -> why no case is in it there
  std::map<std::string, std::map<std::string, std::string>> waived;
  std::set<std::string> overwritten;  ///< inputs that the upstream says it overwrites
  /// All that the device has but the waived ones, in their order; none where none are drawn.
  std::vector<std::string> drawn(std::string_view device_kind) const;
};

/// What is drawn beyond the declared cases.
struct Exploration {
  std::map<std::string, std::string> fixed;  ///< upstream -> a release that the pack calls fixed
  double seconds = 0;                        ///< what the default counts took on two cores
  std::vector<SpaceRow> spaces;
  /// The spaces for a subject of one upstream on a kind of device.
  std::vector<const SpaceRow*> of(const Subject& subject, const UpstreamUse& use,
                                  std::string_view device_kind) const;
};

/// Which inputs a release is wrong on (`trigger`), in words, as `reproduce --explore --explain`
/// found it, and as code.
struct Trigger {
  std::string failure_class, site, words;  ///< `site`: of the cases' axis, or empty
  std::vector<std::string> rules;  ///< a decision list, as core/explain.h spells it; may be empty
  std::vector<std::string> records;
  std::vector<CodeRule> code;     ///< for `scan --code`
  std::string size, size_record;  ///< what the class did to a training run, and the record of it
};

/// A pack's manifest.json: who it is, what it claims, what it does not.
struct Manifest {
  Slug slug{"unset"};
  int number = 0;
  std::string title, kind;
  std::vector<UpstreamUse> upstreams;
  std::map<std::string, std::string>
      classes;  ///< failure class -> what it means; the first declared is `classes_order[0]`
  std::vector<std::string> classes_order;
  std::vector<Case> cases;
  Json bounds, environments, mitigation, filing, lifecycle;
  Exploration explore;
  ScenarioRules scenarios;
  std::vector<Trigger> triggers;
  std::vector<Requirement> requirements;
  std::map<std::string, std::string> impacts;  ///< failure class -> one of impact_names()
  std::vector<std::string> subjects;
  std::vector<ScopeRow> scope;
  std::vector<Waiver> waivers;
  std::vector<RegionWaiver> waived_regions;
  std::vector<LineWaiver> waived_lines;
  std::map<std::string, std::string> waived_arguments;  ///< name -> why one value is enough
  std::string sha256;                                   ///< of the file's bytes
  std::string judged;                                   ///< the judged digest (core/judged.h)

  /// The waiver of a column, or nullopt.
  std::optional<std::string> waived(Column column) const;
  const Case* find_case(std::string_view name) const;
  /// What a failure class does to a training run; the worst where the manifest does not say.
  std::string impact_of(const std::string& failure_class) const;
  /// Failure classes by impact, the worst first, then as they are declared.
  std::vector<std::string> worst_first(const std::set<std::string>& names) const;
  /// The condition of a failure class as a sentence; "" without one.
  std::string condition_of(const std::string& failure_class) const;
  /// The first trigger of a failure class that states a size; null without one.
  const Trigger* sized(const std::string& failure_class) const;
  /// The failure classes that no run of a release as it is meets (`mitigation.not_needed`).
  std::vector<std::string> harmless_classes() const;
  /// The upstream that the mitigation acts on, the first that it needs; empty without one.
  std::string mitigated() const;
  /// The modes of the mitigation that can be asked for by name; empty without one. The package's
  /// data are written from them (env/mitigation_data.py).
  std::vector<std::string> modes() const;
};

/// The document with `usual` in the axes of every case that does not name the axis itself, and
/// without `usual`. An axis that `usual` names and a case gives as null is not in that case.
Json with_whole_cases(Json manifest);

/// Validates `text` against the draft-07 `schema` text and builds a Manifest. Throws Error(kUsage)
/// `<path>:<line>: <json pointer>: <reason>` for the first violation.
Manifest parse_manifest(std::string_view text, const std::string& path, std::string_view schema);

}  // namespace patchbench
