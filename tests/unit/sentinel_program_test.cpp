#include <gtest/gtest.h>

#include "core/error.h"
#include "core/sentinel.h"
#include "unit/sample_run.h"

namespace patchbench {
namespace {

/// A mitigation that is green wherever it has to be, and a program.
Outcome outcome_with(const Json& program) {
  std::vector<Observation> status;
  for (const char* subject : {"upstream", "mitigated"}) {
    const bool is_red = std::string(subject) == "upstream";
    status.push_back(sample::observation(subject, "trigger", CaseRole::kTrigger,
                                         is_red ? CaseStatus::kPresent : CaseStatus::kAbsent));
    status.push_back(
        sample::observation(subject, "control", CaseRole::kControl, CaseStatus::kAbsent));
  }
  const QuestionContext question = {.question = Question::kMitigation,
                                    .subject = SubjectKind::kMitigated,
                                    .classes = {"wrong_gradients"},
                                    .program = program};
  return sentinel_of(status, QuestionContext::from_json(question.to_json()));
}

TEST(Program, WrongWithoutTheMitigationAndRightWithItInBothWaysEarnsTheSentinel) {
  const Outcome outcome = outcome_with(sample::program());
  EXPECT_EQ(outcome.text(), "MITIGATION_VERIFIED");
  EXPECT_EQ(outcome.why, "2 cases green; program " + sha256_hex("program").substr(0, 12) +
                             ": error 0.25 of at most 1e-05 without it");
}

TEST(Program, AVerdictFromBeforeThereWerePrograms) {
  EXPECT_EQ(outcome_with(nullptr).text(), "MITIGATION_VERIFIED");
}

TEST(Program, APackWithoutOneEarnsNothing) {
  const Outcome outcome = outcome_with({{"missing", "mitigations/programs/a.py"}});
  EXPECT_EQ(outcome.text(), "NONE");
  EXPECT_EQ(outcome.why, "program missing: mitigations/programs/a.py");
}

TEST(Program, EachStartHasToComeOutAsItMust) {
  const Json wrong = {{"error", 0.25}, {"bound", 1e-5}}, right = {{"error", 1e-5}, {"bound", 1e-5}};
  const Json failed = {{"failed", "Refused: not verified"}};
  struct Row {
    const char* start;
    Json told;
    const char* why;
  };
  const Row rows[] = {
      {"off", right, "program, off: error 1e-05 of at most 1e-05"},
      {"off", failed, "program, off: no number: Refused: not verified"},
      {"auto", wrong, "program, auto: error 0.25 of at most 1e-05"},
      {"auto", failed, "program, auto: no number: Refused: not verified"},
      {"named", wrong, "program, named: error 0.25 of at most 1e-05"},
      {"named", failed, "program, named: no number: Refused: not verified"},
  };
  for (const Row& row : rows) {
    Json program = sample::program();
    program[row.start] = row.told;
    EXPECT_EQ(outcome_with(program).text(), "NONE") << row.why;
    EXPECT_EQ(outcome_with(program).why, row.why);
  }
}

TEST(Program, ARecordOfAnotherFormIsRefused) {
  for (const Json& program : {Json("text"), Json::object(), Json{{"missing", 1}}}) {
    const QuestionContext question = {.question = Question::kMitigation, .program = program};
    EXPECT_THROW(QuestionContext::from_json(question.to_json()), Error) << program;
  }
}

}  // namespace
}  // namespace patchbench
