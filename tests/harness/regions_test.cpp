#include "harness/regions.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/axes.h"
#include "harness/toy_pack.h"

namespace patchbench::harness::testing {
namespace {

constexpr const char* kWhy = "products of two fp32 numbers";

/// grad_x[t,:] = grad_out[t,:] * w, and labels that decide nothing. `mixed`: row 0 of the gradient
/// is 1e-7 times the others.
class GradientPack final : public Pack {
 public:
  std::string slug() const override { return "gradient_pack"; }
  void check(const Case& item) const override {
    std::vector<std::string> known = {"tokens", "mixed", "num_labels"};
    if (item.axes.contains("site")) known.emplace_back("site");
    check_axes(item, known);
  }
  at::ScalarType dtype(const Case&) const override { return at::kFloat; }
  Tensors inputs(const Case& item, uint64_t seed) const override {
    const auto draw = [&](const char* name) { return Draw(seed, item.name + "/" + name); };
    const int64_t tokens = extent(item, "tokens");
    at::Tensor grad_out = draw("grad_out").normal({tokens, 3}).to(at::kFloat);
    if (flag(item, "mixed")) grad_out[0] *= 1e-7;
    return {{"grad_out", grad_out},
            {"w", draw("w").normal({3}).to(at::kFloat)},
            {"labels", at::arange(tokens).remainder(extent(item, "num_labels"))}};
  }
  static Tensors compute(const Tensors& inputs) {
    return {{"grad_x", inputs.at("grad_out") * inputs.at("w")}};
  }
  std::map<std::string, int64_t> extents(const Case& item) const override {
    if (item.axes.contains("site")) return {};
    return {{"tokens", extent(item, "tokens")}};
  }
  Tensors oracle(const Case&, const Tensors& inputs) const override {
    return compute(in_fp64(inputs));
  }
  Tensors plain(const Case&, const Tensors& inputs) const override { return compute(inputs); }
  Tolerances tolerances(const Case&, const std::string&) const override {
    // 2e-3: so wide that 1e-3 passes all layers but "linear".
    const Tolerance wide{0, 16777, kWhy};
    return {wide, wide, wide, wide};
  }
  std::map<std::string, InProcessSubject> subjects() const override {
    return {{"op", [](const Case&, const Tensors& inputs) { return compute(inputs); }},
            {"model",
             [](const Case& item, const Tensors& inputs) {
               Tensors off = compute(inputs);
               if (gradient_times(item) != 1) off.at("grad_x") *= 1.001;
               return off;
             }},
            {"op_mutant:zero", [](const Case&, const Tensors& inputs) {
               return Tensors{{"grad_x", at::zeros_like(inputs.at("grad_out"))}};
             }}};
  }
  std::string classify(const Case&, const Judgement&) const override { return "zeroed"; }
};

/// A case whose axes differ from the usual ones as `axes`, JSON text, says.
Json item(const std::string& name, const std::string& axes = "{}",
          const std::string& role = "trigger") {
  Json all = {{"tokens", 4}, {"mixed", false}, {"num_labels", 100}};
  all.update(Json::parse(axes));
  return {{"name", name}, {"role", role}, {"axes", all}, {"judged_on", Json::array({"cpu"})}};
}

/// region -> what was seen of its mutant and on which case.
std::map<std::string, std::pair<CaseStatus, std::string>> regions_of(
    const Json& cases, const Json& more = Json::object()) {
  const ScratchFolder folder;
  const RunResult run =
      run_toy(folder, cases, {"--subject", "op", "--regions"}, GradientPack(), more);
  EXPECT_EQ(run.code, 0);
  std::map<std::string, std::pair<CaseStatus, std::string>> answers;
  for (const Observation& o : run.observations) {
    if (!o.subject.is_region_mutant()) {
      EXPECT_EQ(o.status, CaseStatus::kAbsent) << o.case_name;
      continue;
    }
    EXPECT_EQ(o.subject, SubjectKind::kOpMutant) << o.subject.text();
    const std::string region = o.subject.mutant_name();
    EXPECT_TRUE(answers.emplace(region, std::pair(o.status, o.case_name)).second)
        << region << " twice";
    EXPECT_EQ(o.reason == "no case is in this region", o.status == CaseStatus::kUnsupported)
        << o.reason;
  }
  return answers;
}

using Answer = std::pair<CaseStatus, std::string>;

TEST(Regions, WhatNoCaseLooksAtIsNamed) {
  const auto answers = regions_of(Json::array({item("small")}));
  const std::map<std::string, Answer> wanted = {
      {"beyond_tokens", {CaseStatus::kUnsupported, "small"}},
      {"expanded_gradient", {CaseStatus::kUnsupported, "small"}},
      {"large_gradient", {CaseStatus::kUnsupported, "small"}},
      {"last_odd_row", {CaseStatus::kUnsupported, "small"}},
      {"second_backward", {CaseStatus::kUnsupported, "small"}},
      {"ties", {CaseStatus::kUnsupported, "small"}},
      {"tiny_gradient", {CaseStatus::kUnsupported, "small"}}};
  EXPECT_EQ(answers, wanted);
}

TEST(Regions, ACaseInARegionCatchesItsMutant) {
  const auto answers = regions_of(
      {item("small"), item("odd", R"({"tokens": 5})"), item("many", R"({"tokens": 17})"),
       item("labels", R"({"num_labels": 2})", "control"), item("twice", R"({"backwards": 2})"),
       item("tiny", R"({"scaled_from": "small", "gradient_times": 1e-7})"),
       item("large", R"({"scaled_from": "small", "gradient_times": 65536})"),
       item("one", R"({"grad_layout": "expanded"})", "silent")});
  const std::map<std::string, Answer> wanted = {
      {"beyond_tokens", {CaseStatus::kPresent, "many"}},
      {"expanded_gradient", {CaseStatus::kPresent, "one"}},
      {"large_gradient", {CaseStatus::kPresent, "large"}},
      {"last_odd_row", {CaseStatus::kPresent, "odd"}},
      {"second_backward", {CaseStatus::kPresent, "twice"}},
      {"ties", {CaseStatus::kPresent, "labels"}},
      {"tiny_gradient", {CaseStatus::kPresent, "tiny"}}};
  EXPECT_EQ(answers, wanted);
}

TEST(Regions, ASmallRowBesideLargeOnesDoesNotShowItsMutant) {
  const auto answers = regions_of(Json::array({item("mixed", R"({"mixed": true})")}));
  EXPECT_EQ(answers.at("tiny_gradient"), Answer(CaseStatus::kAbsent, "mixed"));
}

TEST(Regions, ASiteWithoutCountsHasNoneToGoBeyond) {
  const auto answers = regions_of(Json::array({item("small", R"({"site": "pointer"})")}));
  EXPECT_FALSE(answers.contains("beyond_pointer_tokens"));
  EXPECT_TRUE(answers.contains("ties"));
}

TEST(Regions, AFactorIsNoCount) {
  const GradientPack pack;
  Case one;
  one.axes = {{"tokens", 5}, {"scale_times", 2}, {"gradient_times", 256}, {"backwards", 2}};
  EXPECT_EQ(pack.Pack::extents(one), (std::map<std::string, int64_t>{{"tokens", 5}}));
}

TEST(Regions, SurveyCasesAreNotAsked) {
  const auto answers =
      regions_of(Json::array({item("small"), item("many", R"({"tokens": 17})", "survey")}));
  EXPECT_EQ(answers.at("beyond_tokens").first, CaseStatus::kUnsupported);
}

TEST(Regions, WaivedOnesAreNotAskedFor) {
  const auto answers = regions_of(Json::array({item("small")}),
                                  {{"waived_regions", {"beyond_*", "ties", "last_odd_row"}}});
  EXPECT_EQ(answers.size(), 4u);
  EXPECT_FALSE(answers.contains("ties") || answers.contains("beyond_tokens"));
}

TEST(Linear, AScaledCaseIsComparedWithItsBase) {
  const Json cases = {item("base"),
                      item("scaled", R"({"scaled_from": "base", "gradient_times": 65536})")};
  const auto measured = [&](const std::string& subject) {
    const ScratchFolder folder;
    return run_toy(folder, cases, {"--subject", subject, "--all-layers"}, GradientPack())
        .of("scaled");
  };
  const Observation right = measured("op"), off = measured("model");
  EXPECT_EQ(right.status, CaseStatus::kAbsent);
  EXPECT_EQ(off.status, CaseStatus::kPresent);
  const auto linear = [](const Observation& o) {
    return *std::find_if(o.measures.begin(), o.measures.end(),
                         [](const Measure& m) { return m.layer == "linear"; });
  };
  EXPECT_EQ(linear(right).got, 0);
  EXPECT_NEAR(linear(off).got, 1e-3, 1e-5);
  for (const Measure& m : off.measures) EXPECT_EQ(m.pass, m.layer != "linear") << m.layer;
}

TEST(Linear, TheScaledCaseHasTheInputsOfItsBase) {
  const ScratchFolder folder;
  const RunResult run =
      run_toy(folder, {item("base"), item("same", R"({"scaled_from": "base"})"), item("other")},
              {"--subject", "op"}, GradientPack());
  EXPECT_EQ(run.of("same").inputs_sha256, run.of("base").inputs_sha256);
  EXPECT_NE(run.of("other").inputs_sha256, run.of("base").inputs_sha256);
}

/// The cases that were judged with --stop-at-red, in their order.
std::vector<std::string> judged_of(const std::string& subject) {
  Json cases = {item("control", "{}", "control"), item("large", R"({"tokens": 900})")};
  for (int i = 0; i < 8; ++i) cases.push_back(item(fmt::format("small_{}", i)));
  const ScratchFolder folder;
  const RunResult run =
      run_toy(folder, cases, {"--subject", subject, "--stop-at-red"}, GradientPack());
  EXPECT_EQ(run.code, 0);
  std::vector<std::string> names;
  for (const Observation& o : run.observations) names.push_back(o.case_name);
  return names;
}

TEST(StopAtRed, AsksTheRestWhereNoCheapTriggerIsRed) {
  const std::vector<std::string> all = judged_of("op");
  ASSERT_EQ(all.size(), 10u);
  EXPECT_EQ(all.front(), "small_0");
  EXPECT_EQ(all.back(), "large");
  EXPECT_EQ(judged_of("op_mutant:zero").size(), 8u);
}

}  // namespace
}  // namespace patchbench::harness::testing
