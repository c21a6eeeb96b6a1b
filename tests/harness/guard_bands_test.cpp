// Guard bands of isolated cases: what is laid, what a write or a read past a tensor leaves, and
// that every isolated case has a subject process of its own.
#include "harness/guard_bands.h"

#include <sys/stat.h>

#include "harness/tensor_file.h"
#include "harness/toy_pack.h"

namespace patchbench::harness::testing {
namespace {

TEST(GuardBands, KeepTheViewAndItsValues) {
  const at::Tensor base = at::arange(12, at::kFloat).view({3, 4});
  Tensors inputs = {{"turned", base.t()},
                    {"one", at::ones({1}).expand({5})},
                    {"whole", at::arange(3)},
                    {"offset", base.flatten().slice(0, 5)}};
  const Tensors before = inputs;
  const Tensors laid = lay_bands(inputs, "case", 1);
  for (const auto& [name, tensor] : before) {
    EXPECT_TRUE(inputs.at(name).equal(tensor)) << name;
    EXPECT_EQ(inputs.at(name).strides(), tensor.strides()) << name;
    EXPECT_NE(inputs.at(name).storage_offset(), tensor.storage_offset()) << name;
    EXPECT_TRUE(bands_around(inputs.at(name), laid.at(name).size(1)).equal(laid.at(name))) << name;
  }
  EXPECT_EQ(laid.at("turned").sizes(), (std::vector<int64_t>{2, 64}));
  EXPECT_GE(laid.at("turned").min().item<double>(), 2);
  EXPECT_LT(laid.at("whole").max().item<int64_t>(), 4);
}

TEST(GuardBands, AreFourTimesAsLongAsTheStorage) {
  Tensors inputs = {{"x", at::zeros({50, 20})}};
  const Tensors laid = lay_bands(inputs, "case", 1);
  EXPECT_EQ(laid.at("x").size(1), 4032);
  EXPECT_EQ(storage_of(inputs.at("x")).numel(), 2 * 4032 + 1000);
}

TEST(GuardBands, DifferByCaseTensorAndSeed) {
  const auto band = [](const char* item, const char* tensor, uint64_t seed) {
    Tensors inputs = {{tensor, at::zeros({4})}};
    return lay_bands(inputs, item, seed).at(tensor);
  };
  EXPECT_TRUE(band("a", "x", 1).equal(band("a", "x", 1)));
  EXPECT_FALSE(band("a", "x", 1).equal(band("b", "x", 1)));
  EXPECT_FALSE(band("a", "x", 1).equal(band("a", "y", 1)));
  EXPECT_FALSE(band("a", "x", 1).equal(band("a", "x", 2)));
}

TEST(GuardBands, AreNotJudgedWhereTheyDidNotComeBackAsTheyWere) {
  Tensors inputs = {{"x", at::zeros({4})}};
  const Tensors laid = lay_bands(inputs, "case", 1);
  EXPECT_EQ(wrong_bands(laid, laid), "");
  EXPECT_EQ(wrong_bands({}, laid), "the guard bands of 'x' did not come back");
  EXPECT_EQ(wrong_bands({{"x", at::zeros({2, 3})}}, laid),
            "the guard bands of 'x' came back as [2,3] Float");
  Tensors more = laid;
  more.emplace("y", at::zeros({2, 64}));
  EXPECT_EQ(wrong_bands(more, laid), "guard bands came back that were not laid");
}

/// The toy pack with subjects that are right in what they return and wrong in what they touch.
class TouchingPack final : public Pack {
 public:
  std::string slug() const override { return toy_.slug(); }
  void check(const Case&) const override {}
  at::ScalarType dtype(const Case& item) const override { return toy_.dtype(item); }
  Tensors inputs(const Case& item, uint64_t seed) const override { return toy_.inputs(item, seed); }
  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    return toy_.oracle(item, inputs);
  }
  Tensors plain(const Case&, const Tensors& inputs) const override {
    return ToyPack::compute(inputs);
  }
  Tolerances tolerances(const Case& item, const std::string& name) const override {
    return toy_.tolerances(item, name);
  }
  std::map<std::string, InProcessSubject> subjects() const override {
    const auto writes = [](int64_t past) {
      return [past](const Case&, const Tensors& inputs) {
        const at::Tensor w = inputs.at("w");
        at::as_strided(w, {1}, {1}, w.storage_offset() + past).fill_(7);
        return ToyPack::compute(inputs);
      };
    };
    return {{"op", [](const Case&, const Tensors& inputs) { return ToyPack::compute(inputs); }},
            {"op_mutant:writes_after", writes(16)},
            {"op_mutant:writes_before", writes(-1)}};
  }
  std::string classify(const Case&, const Judgement& judgement) const override {
    return judgement.has_damaged_band() ? "zeroed" : "";
  }

 private:
  ToyPack toy_;
};

Json isolated_cases(const std::vector<std::string>& names) {
  Json cases = toy_cases(names);
  for (Json& item : cases) item["isolated"] = true;
  return cases;
}

TEST(IsolatedCase, IsRedWhereABandIsDamagedAndTheOutputsAreRight) {
  const ScratchFolder folder;
  for (const char* subject : {"op_mutant:writes_after", "op_mutant:writes_before"}) {
    const RunResult result =
        run_toy(folder, isolated_cases({"a"}), {"--subject", subject}, TouchingPack());
    ASSERT_EQ(result.code, 0);
    EXPECT_EQ(result.of("a").status, CaseStatus::kPresent) << subject;
    EXPECT_EQ(result.of("a").failing()->layer, "guard_band");
    EXPECT_EQ(result.of("a").failing()->tensor, "w");
    EXPECT_EQ(result.of("a").failing()->got, 1);
  }
  const RunResult right =
      run_toy(folder, isolated_cases({"a"}), {"--subject", "op"}, TouchingPack());
  EXPECT_EQ(right.of("a").status, CaseStatus::kAbsent);
}

TEST(IsolatedCase, AloneHasBands) {
  const ScratchFolder folder;
  const RunResult result =
      run_toy(folder, toy_cases({"a"}), {"--subject", "op_mutant:writes_before"}, TouchingPack());
  EXPECT_NE(result.of("a").status, CaseStatus::kPresent);
}

/// A subject that counts its processes and gives no answer.
std::string counting_command(const ScratchFolder& folder) {
  const std::string script =
      folder.write("count", "#!/bin/sh\necho started >> " + (folder / "starts").string() + "\n");
  ::chmod(script.c_str(), 0755);
  return folder.write("command.json", Json{{"argv", {script}}, {"timeout_s", 20}}.dump());
}

TEST(IsolatedCase, HasASubjectProcessOfItsOwn) {
  const ScratchFolder folder;
  Json cases = isolated_cases({"a", "b"});
  for (const Json& item : toy_cases({"c", "d"})) cases.push_back(item);
  const RunResult result = run_toy(
      folder, cases, {"--subject", "upstream", "--subject-command", counting_command(folder)});
  EXPECT_EQ(result.observations.size(), 4u);
  std::ifstream starts(folder / "starts");
  int count = 0;
  for (std::string line; std::getline(starts, line);) ++count;
  EXPECT_EQ(count, 3);  // a, b, then c and d together
}

}  // namespace
}  // namespace patchbench::harness::testing
