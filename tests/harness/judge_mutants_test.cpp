// Every deliberate way of being wrong, over every shape of output: a judge that passes one is
// broken.
#include <set>

#include "harness/corrupt.h"
#include "harness/toy_pack.h"

namespace patchbench::harness::testing {
namespace {

class JudgeMutant : public ::testing::TestWithParam<std::string> {};

TEST_P(JudgeMutant, IsNeverAbsentWhicheverTensorItSpoils) {
  const ScratchFolder folder;
  for (const std::string tensor : {"", "@product", "@row_sums", "@total"}) {
    const RunResult run = run_toy(folder, toy_cases({"one", "two"}),
                                  {"--subject", "op", "--corrupt", GetParam() + tensor});
    ASSERT_EQ(run.code, 0);
    ASSERT_EQ(run.observations.size(), 2U);
    for (const Observation& o : run.observations) {
      EXPECT_TRUE(o.status == CaseStatus::kPresent || o.status == CaseStatus::kUnresolved)
          << tensor << ": " << case_status_name(o.status);
      const bool is_idle = o.reason.find("changes nothing") != std::string::npos;
      EXPECT_FALSE(tensor.empty() && is_idle) << "the corruption spoils no output at all";
      EXPECT_FALSE(tensor == "@product" && is_idle) << "the corruption does not apply to a matrix";
    }
  }
}

std::vector<std::string> corruption_names() {
  std::vector<std::string> names;
  for (const Corruption& corruption : all_corruptions()) names.push_back(corruption.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Corruptions, JudgeMutant, ::testing::ValuesIn(corruption_names()),
                         [](const auto& corruption) { return corruption.param; });

TEST(JudgeMutants, WithoutCorruptionTheSameOutputsAreAbsent) {
  const ScratchFolder folder;
  const RunResult run = run_toy(folder, toy_cases({"one", "two"}), {"--subject", "op"});
  ASSERT_EQ(run.observations.size(), 2U);
  for (const Observation& o : run.observations)
    EXPECT_EQ(o.status, CaseStatus::kAbsent) << o.reason;
}

TEST(JudgeMutants, AreMoreThanTwentyAndNamedOnce) {
  const std::vector<std::string> names = corruption_names();
  EXPECT_GT(names.size(), 20U);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(JudgeMutants, CorruptionThatChangesNothingIsUnresolvedNotAbsent) {
  const ScratchFolder folder;
  const RunResult run =
      run_toy(folder, toy_cases({"one"}), {"--subject", "model", "--corrupt", "all_zeros@product"});
  EXPECT_EQ(run.of("one").status, CaseStatus::kUnresolved);
  EXPECT_NE(run.of("one").reason.find("changes nothing"), std::string::npos);
}

TEST(JudgeMutants, UnknownCorruptionIsAUsageErrorWithASuggestion) {
  const ScratchFolder folder;
  ::testing::internal::CaptureStderr();
  const RunResult run =
      run_toy(folder, toy_cases({"one"}), {"--subject", "op", "--corrupt", "all_zero"});
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("all_zeros"), std::string::npos);
}

}  // namespace
}  // namespace patchbench::harness::testing
