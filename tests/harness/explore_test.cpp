#include "harness/explore.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "harness/axes.h"
#include "harness/toy_pack.h"

namespace patchbench::harness::testing {
namespace {

constexpr const char* kWhy = "products of two fp32 numbers";

/// grad_x[t,:] = grad_out[t,:] * w; packed rows count as one. The subjects are wrong in one way
/// each.
class RowsPack final : public Pack {
 public:
  std::string slug() const override { return "rows_pack"; }
  void check(const Case& item) const override {
    std::vector<std::string> known = {"tokens", "width", "answers"};
    if (item.axes.contains("lengths")) known.emplace_back("lengths");
    check_axes(item, known);
    if (extent(item, "width") == 13) refuse(item, "no width of 13");
  }
  at::ScalarType dtype(const Case&) const override { return at::kFloat; }
  Tensors inputs(const Case& item, uint64_t seed) const override {
    const auto draw = [&](const char* name) { return Draw(seed, item.name + "/" + name); };
    const int64_t width = extent(item, "width");
    return {{"grad_out", draw("grad_out").normal({extent(item, "tokens"), width}).to(at::kFloat)},
            {"w", draw("w").normal({width}).to(at::kFloat)}};
  }
  static Tensors compute(const Tensors& inputs) {
    const at::Tensor product = inputs.at("grad_out") * inputs.at("w");
    return {{"grad_x", product}, {"grad_w", product.sum(0)}};
  }
  Tensors oracle(const Case&, const Tensors& inputs) const override {
    return compute(in_fp64(inputs));
  }
  Tensors plain(const Case&, const Tensors& inputs) const override { return compute(inputs); }
  Tolerances tolerances(const Case&, const std::string&) const override {
    // 2e-3: so wide that 1e-3 passes all layers except relations.
    const Tolerance wide{0, 16777, kWhy};
    return {wide, wide, wide, wide};
  }
  std::map<std::string, InProcessSubject> subjects() const override {
    const auto wrong_where = [](const std::function<bool(const Case&, const Tensors&)>& is_wrong,
                                double factor) {
      return [=](const Case& item, const Tensors& inputs) {
        Tensors outputs = compute(inputs);
        if (is_wrong(item, inputs)) outputs.at("grad_x") = outputs.at("grad_x") * factor;
        return outputs;
      };
    };
    return {
        {"op", [](const Case&, const Tensors& inputs) { return compute(inputs); }},
        {"op_mutant:many_odd", wrong_where(
                                   [](const Case& item, const Tensors&) {
                                     return extent(item, "tokens") > 20 &&
                                            extent(item, "width") % 2 == 1;
                                   },
                                   0)},
        {"op_mutant:expanded",
         wrong_where([](const Case&,
                        const Tensors& inputs) { return inputs.at("grad_out").stride(0) == 0; },
                     0)},
        {"op_mutant:size", wrong_where(
                               [](const Case&, const Tensors& inputs) {
                                 return inputs.at("grad_out").abs().max().item<double>() > 100;
                               },
                               1.001)},
        {"op_mutant:parts",
         wrong_where([](const Case& item, const Tensors&) { return extent(item, "tokens") > 4; },
                     1.001)},
        {"op_mutant:summed",
         [](const Case&, const Tensors& inputs) -> Tensors {
           Tensors outputs = compute(inputs);
           for (auto& [name, tensor] : outputs) tensor = tensor.sum();
           return outputs;
         }},
        {"op_mutant:raises", [](const Case& item, const Tensors& inputs) -> Tensors {
           if (extent(item, "tokens") == 7) throw ModelRaised("seven");
           return compute(inputs);
         }}};
  }
  std::string classify(const Case&, const Judgement& judgement) const override {
    return judgement.got.at("grad_x").eq(0).all().item<bool>() ? "zeroed" : "";
  }
};

const Json kAlong = {{"grad_out", 0}, {"grad_x", 0}};
const Json kRelations = {{{"name", "linear"}},
                         {{"name", "permuted"}, {"along", kAlong}},
                         {{"name", "parts"}, {"axis", "tokens"}, {"along", kAlong}},
                         {{"name", "rerun"}}};

Json space(const Json& more = Json::object(), const Json& relations = kRelations) {
  Json axes = {
      {"tokens", {{"from", 1}, {"to", 60}}},
      {"width", {{"from", 1}, {"to", 40}}},
      {"answers", 1},
      {"gradient_times", {{"power_of", 2}, {"from", -24}, {"to", 16}}},
      {"grad_layout", {nullptr, "expanded", "transposed", "strided", "offset", "first_expanded"}},
      {"grad_mask", {nullptr, "first_row"}},
      {"backwards", {nullptr, 2}}};
  axes.update(more);
  return {{"name", "rows"}, {"axes", axes}, {"relations", relations}, {"count", 1}};
}

RunResult explored(const std::string& subject, int num, const Json& spaces = Json::array({space()}),
                   std::vector<std::string> more = {}) {
  const ScratchFolder folder;
  more.insert(more.end(), {"--subject", subject, "--draw", std::to_string(num)});
  const RunResult run = run_toy(folder, Json::array(), more, RowsPack(), {{"spaces", spaces}});
  EXPECT_EQ(run.code, 0);
  return run;
}

const Observation& summary(const RunResult& run) { return run.of("drawn_from_rows"); }

enum class Kind { kAny, kRaised };

/// The one smallest red case of a kind.
Observation smallest(const RunResult& run, Kind kind = Kind::kAny) {
  const auto is_smallest = [&](const Observation& o) {
    return o.drawn.contains("shrunk") && (kind == Kind::kAny || o.has_raised());
  };
  EXPECT_EQ(std::count_if(run.observations.begin(), run.observations.end(), is_smallest), 1);
  return *std::find_if(run.observations.begin(), run.observations.end(), is_smallest);
}

TEST(Explore, ARightSubjectIsGreenOnAllThatIsDrawn) {
  const RunResult run = explored("op", 100, Json::array({space()}), {"--seeds", "3-4"});
  const Observation& all = summary(run);
  EXPECT_EQ(all.status, CaseStatus::kAbsent);
  EXPECT_EQ(all.drawn["asked"], 200);
  EXPECT_EQ(all.drawn["red"], 0);
  EXPECT_EQ(all.drawn["judged"].get<int>() + all.drawn["same"].get<int>(), 200);
  EXPECT_EQ(all.drawn["seeds"], Json({3, 4}));
}

TEST(Explore, EveryRegionMutantOfARightSubjectIsCaught) {
  const Json drawn = summary(explored("op", 200, Json::array({space()}), {"--regions"})).drawn;
  EXPECT_EQ(drawn["regions_open"], Json::object());
  for (const char* region :
       {"beyond_tokens", "beyond_width", "odd_tokens", "one_width", "large_gradient",
        "tiny_gradient", "expanded_gradient", "last_odd_row", "transposed_gradient",
        "strided_gradient", "offset_gradient", "masked_first_row", "second_backward"})
    EXPECT_TRUE(drawn["regions"].contains(region)) << region << drawn.dump();
}

TEST(Explore, AFailureIsMadeAsSmallAsItGoes) {
  const Observation red = smallest(explored("op_mutant:many_odd", 200));
  EXPECT_EQ(red.failure_class, "zeroed");
  EXPECT_EQ(red.drawn["axes"],
            Json::parse(R"({"tokens": 21, "width": 1, "answers": 1, "gradient_times": 1.0})"));
}

TEST(Explore, AFailureOfALayoutKeepsIt) {
  const Json axes = smallest(explored("op_mutant:expanded", 100)).drawn["axes"];
  EXPECT_EQ(axes["grad_layout"], "expanded");
  EXPECT_EQ(axes["width"], 1);
}

TEST(Explore, ARelationSeesWhatATolerancePasses) {
  for (const auto& [subject, layer] :
       {std::pair{"op_mutant:size", "linear"}, std::pair{"op_mutant:parts", "parts"}}) {
    Json only = Json::array();
    for (const Json& relation : kRelations)
      if (relation["name"] == layer) only.push_back(relation);
    const Json spaces = Json::array({space(Json::object(), only)});
    const Observation red = smallest(explored(subject, 300, spaces));
    bool has_failed = false;
    for (const Measure& m : red.measures) {
      EXPECT_TRUE(m.pass || m.layer == layer) << m.tensor << " " << m.layer;
      has_failed |= !m.pass;
    }
    EXPECT_TRUE(has_failed);
    // Without it nothing is red.
    const Json without = Json::array({space(Json::object(), Json::array())});
    EXPECT_EQ(summary(explored(subject, 100, without)).status, CaseStatus::kAbsent);
  }
}

TEST(Explore, WhatRaisesHasNoAnswerAndIsMadeSmall) {
  const RunResult run = explored("op_mutant:raises", 200);
  EXPECT_EQ(summary(run).drawn["red"].get<int>() > 0, true);
  // A part of seven rows raises, too, and leaves the relation of a larger case without an answer.
  EXPECT_EQ(smallest(run, Kind::kRaised).drawn["axes"]["tokens"], 7);
}

TEST(Explore, AnOutputOfAnotherShapeIsRedInEveryRelation) {
  const Json found = summary(explored("op_mutant:summed", 100)).drawn;
  EXPECT_EQ(found["red"], found["asked"]);
}

TEST(Explore, AGivenCaseIsJudgedByItself) {
  const ScratchFolder folder;
  const Json axes = {{"tokens", 21}, {"width", 1}, {"answers", 1}};
  const RunResult run = run_toy(folder, Json::array(), {"--subject", "op_mutant:many_odd"},
                                RowsPack(), {{"given", Json::array({axes})}});
  ASSERT_EQ(run.observations.size(), 1U);
  EXPECT_EQ(run.observations[0].status, CaseStatus::kPresent);
  EXPECT_EQ(run.observations[0].drawn["axes"], axes);
}

TEST(Explore, AGivenCaseHasTheInputsOfItsSeed) {
  const RunResult drawn =
      explored("op_mutant:many_odd", 60, Json::array({space()}), {"--seeds", "4"});
  const Observation red = smallest(drawn);
  EXPECT_EQ(red.seed, 4U);
  const ScratchFolder folder;
  const RunResult again =
      run_toy(folder, Json::array(), {"--subject", "op_mutant:many_odd", "--seed", "4"}, RowsPack(),
              {{"given", Json::array({red.drawn["axes"]})}});
  EXPECT_EQ(again.observations.at(0).inputs_sha256, red.inputs_sha256);
}

TEST(Explore, PropertiesOfTheInputsGoAlong) {
  const RunResult run = explored("op", 40);
  for (const Observation& o : run.observations) {
    if (o.is_summary()) continue;
    const Json& properties = o.drawn.at("properties");
    const std::string layout = o.drawn["axes"].value("grad_layout", "");
    // One row is its own repetition.
    const bool is_expanded =
        layout == "expanded" || (layout == "first_expanded" && o.drawn["axes"]["tokens"] > 1);
    EXPECT_EQ(properties.at("grad_out.has_stride_0"), is_expanded);
    if (o.drawn["axes"]["tokens"] > 1) {
      EXPECT_EQ(properties.at("grad_out.first_row_zero").get<bool>(),
                o.drawn["axes"].contains("grad_mask") &&
                    o.drawn["axes"].value("grad_layout", "") != "expanded");
    }
  }
}

TEST(Explore, AWrongSpaceIsRefused) {
  const ScratchFolder folder;
  const auto code = [&](const Json& one) {
    return run_toy(folder, Json::array(), {"--subject", "op", "--draw", "5"}, RowsPack(),
                   {{"spaces", Json::array({one})}})
        .code;
  };
  EXPECT_EQ(code(space({{"tokens", {{"from", 1}}}})), 2);
  EXPECT_EQ(code(space({{"width", 13}})), 2);
}

}  // namespace
}  // namespace patchbench::harness::testing
