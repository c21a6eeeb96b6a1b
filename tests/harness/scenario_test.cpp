// What a scenario changes in the judging of a case, and which drawn cases are in one.
#include "harness/scenario.h"

#include "core/scenario.h"
#include "harness/answer.h"
#include "harness/toy_pack.h"

namespace patchbench::harness::testing {
namespace {

Case in(const std::string& scenario) {
  Case item{};
  item.name = "a";
  if (!scenario.empty())
    item.axes = {{"scenario", scenario}};
  else
    item.axes = Json::object();
  return item;
}

at::Tensor number(float value) { return at::full({1}, value); }

TEST(Scenario, WhatIsSaidOfInputsIsTakenOutOfTheOutputs) {
  Tensors outputs = {{"loss", number(1)}, {"kept/x", number(0)}, {"kept/w", number(3)}};
  const Tensors kept = take_kept(outputs);
  EXPECT_EQ(outputs.size(), 1u);
  EXPECT_TRUE(kept_layer("x", kept.at("x")).pass);
  EXPECT_FALSE(kept_layer("w", kept.at("w")).pass);
}

TEST(Scenario, EveryInputIsAccountedFor) {
  const Tensors inputs = {{"x", number(1)}, {"w", number(2)}},
                all = {{"x", number(0)}, {"w", number(0)}};
  EXPECT_EQ(wrong_kept(in("inputs_kept"), all, inputs), "");
  EXPECT_NE(wrong_kept(in("inputs_kept"), {{"x", number(0)}}, inputs), "");
  EXPECT_NE(wrong_kept(in("inputs_kept"), {{"x", number(0)}, {"w", at::zeros({2})}}, inputs), "");
  Tensors more = all;
  more.emplace("y", number(0));
  EXPECT_NE(wrong_kept(in("inputs_kept"), more, inputs), "");
  EXPECT_NE(wrong_kept(in("twice"), all, inputs), "");
  EXPECT_EQ(wrong_kept(in(""), {}, inputs), "");
  EXPECT_EQ(wrong_kept(in("copied"), {{"module", number(0)}}, inputs), "");
  EXPECT_NE(wrong_kept(in("copied"), {}, inputs), "");
  EXPECT_NE(wrong_kept(in("copied"), all, inputs), "");
}

TEST(Scenario, OnlyGradientsThatNobodyHasMayBeMissing) {
  const Tensors plain = {{"loss", number(1)}, {"grad_x", number(2)}, {"grad_w", number(3)}};
  const auto filled = [&](const char* scenario, Tensors outputs) {
    fill_left_out(in(scenario), outputs, plain);
    return outputs.size();
  };
  const Tensors loss = {{"loss", number(1)}}, one = {{"loss", number(1)}, {"grad_x", number(2)}};
  EXPECT_EQ(filled("no_grad", loss), 3u);
  EXPECT_EQ(filled("inference_mode", loss), 3u);
  EXPECT_EQ(filled("frozen", one), 3u);
  EXPECT_EQ(filled("frozen", loss), 1u) << "a frozen argument leaves the others their gradients";
  EXPECT_EQ(filled("twice", one), 2u);
  EXPECT_EQ(filled("no_grad", {{"grad_x", number(2)}}), 1u) << "what is missing is not a gradient";
}

/// A subject that does as it is told in a line of Python over the cases of its folder.
std::string python_command(const ScratchFolder& folder, const std::string& outputs) {
  const std::string script = folder.write(
      "subject.py", R"(
import json, struct, sys
work = sys.argv[1]
cases = json.load(open(work + "/cases.json"))["cases"]
open(")" + (folder / "axes").string() +
                        R"(", "a").write("".join(json.dumps(c["axes"]) + "\n" for c in cases))
)" + outputs);
  return folder.write(
      "command.json",
      Json{{"argv", {"python3", script, (folder / "work").string()}}, {"timeout_s", 20}}.dump());
}

Json drawn_axes(const std::string& subject, const std::vector<std::string>& names) {
  const ScratchFolder folder;
  const Json space = {
      {"name", "all"}, {"axes", {{"rows", {{"from", 1}, {"to", 1000}}}}}, {"count", 1}};
  run_toy(folder, Json::array(),
          {"--subject", subject, "--draw", "100", "--subject-command", python_command(folder, "")},
          ToyPack(), {{"spaces", {space}}, {"scenarios", names}});
  std::ifstream lines(folder / "axes");
  Json all = Json::array();
  for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line));
  return all;
}

TEST(Scenario, HalfOfTheDrawnCasesOfAReleaseAreInOne) {
  std::map<std::string, int> counts;
  for (const Json& axes : drawn_axes("upstream", scenarios()))
    ++counts[axes.value("scenario", "none")];
  for (const std::string& name : scenarios()) EXPECT_GT(counts[name], 0) << name;
  EXPECT_GT(counts["none"], 20);
  EXPECT_LT(counts["none"], 80);
}

TEST(Scenario, WithoutAListThereAreNone) {
  for (const Json& axes : drawn_axes("upstream", {})) EXPECT_FALSE(axes.contains("scenario"));
}

}  // namespace
}  // namespace patchbench::harness::testing
