// What a model raises in the place of the code that it models.
#include <gtest/gtest.h>

#include "harness/toy_pack.h"

namespace patchbench::harness::testing {
namespace {

TEST(ModelRaised, IsAnAnswerWithThePlaceWhereItWasThrown) {
  const ScratchFolder folder;
  const RunResult run = run_toy(folder, toy_cases({"one"}), {"--subject", "model_mutant:raises"});
  ASSERT_EQ(run.code, 0);
  // The toy pack names no exception: it stays unresolved.
  EXPECT_EQ(run.of("one").status, CaseStatus::kUnresolved);
  EXPECT_EQ(run.of("one").reason, "raised: no such branch");
  const Json exception = run.of("one").self_reported.at("exception");
  EXPECT_EQ(exception.at("type"), "ModelRaised");
  EXPECT_EQ(exception.at("frames").at(0).at("file"), "harness/toy_pack.h");
}

TEST(ModelRaised, CountsForThePackWhoseModelThrewItAlone) {
  Json exception = ModelRaised("no such branch").exception();
  EXPECT_FALSE(ModelRaised::is_of("toy", exception));
  exception["frames"][0]["file"] = "toy/model.h";
  EXPECT_TRUE(ModelRaised::is_of("toy", exception));
  EXPECT_FALSE(ModelRaised::is_of("other", exception));
  exception["type"] = "ValueError";
  EXPECT_FALSE(ModelRaised::is_of("toy", exception));
}

}  // namespace
}  // namespace patchbench::harness::testing
