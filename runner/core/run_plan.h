#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/edit.h"
#include "core/json.h"
#include "core/manifest.h"
#include "core/observation.h"
#include "core/pin.h"
#include "core/question.h"
#include "core/subject.h"

namespace patchbench {

/// Seeds from the first to the last.
struct SeedRange {
  uint64_t first = 1, last = 1;
  int count() const { return static_cast<int>(last - first + 1); }
};

/// What a user may choose about the cases of a question.
struct CaseChoice {
  std::vector<std::string> cases;  ///< by name; empty: all cases of the subject
  std::vector<Json> given;         ///< axes that are judged instead of cases
  SeedRange seeds;                 ///< of the drawn cases; the declared ones take the first
  int repeats = 1;
  std::optional<int> num_drawn;  ///< for each seed; nullopt: as the manifest says
  /// Cases are drawn for a question that does not do so by itself, too.
  bool explores = false;
  /// Conditions (core/condition.h): right outputs of drawn cases are spoiled where one holds.
  std::vector<std::string> conditions;
};

/// What a plan is made for: a pack's release on a device.
struct RunTarget {
  Manifest manifest;
  UpstreamUse upstream;
  std::optional<Pin> pin;       ///< nullopt: an installed stack
  std::vector<Pin> companions;  ///< the pack's upstreams that run with it, as released
  Device device;
  bool has_ops = true;  ///< subjects of the judge's own process run on the device, too

  Json companions_json() const;  ///< name -> version; null without any
  bool is_red_pin() const;       ///< with its companions
  /// How many cases the pack's spaces have for a subject by default; 0 where it has none.
  int num_drawn(const Subject& subject) const;
};

/// Which release a step runs.
enum class PinRole {
  kTested,  ///< that of the target
  kFixed,   ///< the one that the pack calls fixed
};

/// Cases that are drawn from the pack's spaces.
struct Draws {
  int count = 0;  ///< for each seed; 0: none
  int seconds = 0;
};

/// Draws for a subject, as many for each seed. Ten times what the manifest says that its counts
/// take is the most, for fewer cases, too: what is red is then made as small as it goes.
Draws draws_of(const RunTarget& target, const Subject& subject, int count, const SeedRange& seeds);

/// One start of a subject. A step is whole: nothing is added to it while it runs.
struct PlanStep {
  Subject subject = SubjectKind::kUpstream;
  PinRole pin = PinRole::kTested;
  std::vector<Edit> edits;  ///< of the tree, in order
  /// The declared cases and the axes that are judged, as the judge reads them.
  std::vector<std::string> cases;
  std::vector<Json> given;
  SeedRange seeds;
  int repeats = 1;
  Draws draws;
  bool has_regions = false;  ///< the judge makes mutants of right outputs in regions of the inputs
  std::vector<std::string> conditions;
  Json changed;  ///< lines of the tree (core/changed_lines.h) whose running is looked at, or null
  bool stops_at_red = false;  ///< cheap triggers come first, and nothing after a red one
  bool is_spoiled = false;    ///< the judge makes mutants of the whole outputs instead
  Json to_json() const;
};

/// The limits that the sandbox of each step has.
struct StepLimits {
  double timeout_s = 0;
  int64_t memory_bytes = 0;
  int max_processes = 0;
};
StepLimits limits_on(const Device& device);

/// One question and all that is run to answer it.
struct RunPlan {
  QuestionContext question;
  std::vector<PlanStep> steps;
  bool runs_program = false;  ///< the mitigation's program runs, if all else earns the sentinel
  Json to_json() const;
};

/// Whether the subject's tree has edits of the pack.
bool has_edits(const Subject& subject);
/// The edits of a subject's tree: the series for `patched`, the one edit of a mutant or of a
/// claimed change, else none. Throws Error(kUsage) with did-you-mean.
std::vector<Edit> edits_of(const Series& series, const Subject& subject, const std::string& slug);
/// "mutant:half" of mutant-half.edit, "claimed:once" of claimed-once.edit.
Subject subject_of(const Edit& lone);

/// The declared cases that a subject of a question runs: those named, or all that are for it on
/// this upstream and device and can be part of the answer.
std::vector<std::string> cases_for(const RunTarget& target, Question question,
                                   const Subject& subject, const std::vector<std::string>& named);
/// One trigger and one control that are for `subject` and count on this device: enough to see
/// whether the judge can fail and can pass. Of an op those that count on a CPU too: they are small.
std::vector<std::string> few_cases_for(const RunTarget& target, const Subject& subject);

/// What is asked of `subject`: classes, red pin.
QuestionContext question_for(const RunTarget& target, Question question, const Subject& subject);

/// Is the bug there (upstream, patched, a mutant …), is the op or the mitigation right? Throws
/// Error(kUsage) for a named case that is not for the subject.
RunPlan plan_reproduction(const RunTarget& target, const Subject& subject, const Series& edits,
                          const CaseChoice& choice);
/// What a validation asks of a pack: whether the fix holds, of a refactor whether it is equivalent.
Question validation_of(const Manifest& manifest);
/// Upstream red, `edits` green, every mutant edit of the pack red, on one set of inputs. Throws
/// Error(kUsage) without edits: the answer would be the release's own.
RunPlan plan_validation(const RunTarget& target, const Series& edits, const CaseChoice& choice);
/// One tested claim: the subject it speaks of and its contrast, over the row's cases.
RunPlan plan_claim(const RunTarget& target, const ClaimTest& test, const Series& edits,
                   const CaseChoice& choice);
/// The cases that are drawn for a subject, by themselves; nothing is earned.
RunPlan plan_drawn(const RunTarget& target, const Subject& subject, const Series& edits,
                   const CaseChoice& choice);

/// The steps that a self-test of the judge runs: a right subject on declared and on drawn cases,
/// the same with its outputs spoiled, and a subject that lies.
struct SelfTestSteps {
  PlanStep right, spoiled;
  std::optional<PlanStep> drawn;  ///< none where the right subject has no space
  std::optional<PlanStep> liar;   ///< none where no case of a release counts on this device
};
SelfTestSteps plan_self_test(const RunTarget& target);
/// The target of the subjects of the judge's own process: the CPU where the judge has no ops on the
/// device.
RunTarget target_in_process(const RunTarget& target);

/// The steps that follow from what was observed: the red drawn cases of the question's subject on
/// another release, the one that the pack calls fixed, or without one the release as it is. What is
/// red there, too, is another defect (core/sentinel.h).
std::vector<PlanStep> further_steps(const RunTarget& target, const RunPlan& plan,
                                    const std::vector<Observation>& observations);

/// What the judge of a step reads: cases, spaces, classes, waived regions.
Json cases_document(const RunTarget& target, const PlanStep& step);

}  // namespace patchbench
