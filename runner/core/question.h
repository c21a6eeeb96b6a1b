#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/observation.h"
#include "core/subject.h"

namespace patchbench {

/// What a run set out to show; fixes which predicate is computed.
enum class Question {
  kReproduce,
  kValidate,
  kOp,
  kMitigation,
  kMemory,
  kClaim,
  kEquivalence,
  kRegression,
  kDrawn,  ///< what drawn cases show, by themselves: earns nothing
};
std::string question_name(Question question);
std::optional<Question> find_question(std::string_view name);
/// Throws Error(kUsage).
Question question_from(std::string_view name);

/// What the predicates need besides the observations; the verdict record has all of it.
struct QuestionContext {
  Question question = Question::kReproduce;
  Subject subject = SubjectKind::kUpstream;  ///< kReproduce: the subject asked about
  bool is_red_pin = false;                   ///< the version is the manifest's red_pin
  bool is_partial = false;   ///< the user named some cases: what is green is green on these alone
  bool has_regions = false;  ///< the judge made mutants of the regions of the inputs
  bool has_lines = false;    ///< the fix changes Python lines, and the subject tells which ran
  /// Changed lines that need not run: `path:line`, as the subject tells them.
  std::set<std::string> waived_lines;
  /// The small changes of the fix's own text that were run: number -> `path:line what`.
  std::map<std::string, std::string> altered;
  int num_drawn = 0;            ///< cases that were drawn for the subject; 0: it was not explored
  bool is_few = false;          ///< fewer were drawn than the manifest asks for
  std::vector<uint64_t> seeds;  ///< kDrawn: the first and the last
  std::vector<std::string> classes;              ///< declared failure classes, primary first
  double bound_bytes = 0, measured_bytes = 0;    ///< kMemory
  double bound_growth = 0, measured_growth = 0;  ///< kMemory: over half the length; 0: not bounded
  /// kRegression: case -> number -> how often upstream's the edit's may be.
  std::map<std::string, std::map<std::string, double>> ratios_max;
  std::string claim;                         ///< kClaim: the test's name in the manifest
  Subject contrast = SubjectKind::kOther;    ///< kClaim: `subject` is the one it speaks of
  std::string failure_class;                 ///< kClaim
  CaseStatus expects = CaseStatus::kAbsent;  ///< kClaim: absent, or present in `failure_class`
  /// kMitigation: what its program came to (run/mitigation_program.h); null in verdicts that were
  /// made before there were programs, of a named mode, and where only some cases were asked for.
  Json program;
  Json to_json() const;
  static QuestionContext from_json(const Json& json);
};

}  // namespace patchbench
