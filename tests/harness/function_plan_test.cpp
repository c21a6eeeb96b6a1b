#include <gtest/gtest.h>

#include "core/error.h"
#include "function/function_pack.h"
#include "function/plan.h"

namespace patchbench::function {
namespace {

const char* const kAxes = R"({
  "axes": {"rows": {"from": 1, "to": 30}, "heads, width": [[2, 8], [4, 16]], "dtype": ["float32", "float16"], "eps": [null, 0.1]},
  "tensors": {"x": {"shape": ["rows", "heads*width", 3]}, "labels": {"shape": ["rows"], "values": {"integers": [-1, "width"]}},
              "kept": {"shape": ["rows"], "values": "mask"}, "bias": {"shape": [], "values": "tied", "dtype": "float32"}},
  "arguments": ["eps"], "gradients": ["x", "bias"], "output": {"shape": ["rows"]}})";

/// kAxes with one value changed, at a JSON pointer.
Json changed(const std::string& at, const Json& value) {
  Json json = Json::parse(kAxes);
  json[Json::json_pointer(at)] = value;
  return json;
}

std::string refusal(const Json& json) {
  try {
    parse_plan(json);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "";
}

Case case_of(const Json& axes) {
  Case item{};
  item.name = "some";
  item.axes = axes;
  return item;
}

TEST(FunctionPlan, TensorsAreDrawnAsTheFileSays) {
  const FunctionPack pack(parse_plan(Json::parse(kAxes)), Bf16::kRounded);
  const Case item = case_of({{"rows", 5}, {"heads", 2}, {"width", 8}, {"dtype", "float16"}});
  pack.check(item);
  const harness::Tensors inputs = pack.inputs(item, 1);
  EXPECT_EQ(inputs.at("x").sizes(), (std::vector<int64_t>{5, 16, 3}));
  EXPECT_EQ(inputs.at("x").scalar_type(), at::kHalf);
  EXPECT_EQ(inputs.at("bias").scalar_type(), at::kFloat);
  EXPECT_EQ(inputs.at("bias").dim(), 0);
  EXPECT_EQ(inputs.at("kept").scalar_type(), at::kBool);
  EXPECT_EQ(inputs.at("labels").scalar_type(), at::kLong);
  EXPECT_GE(inputs.at("labels").min().item<int64_t>(), -1);
  EXPECT_LT(inputs.at("labels").max().item<int64_t>(), 8);
  EXPECT_EQ(inputs.at("grad_output").sizes(), (std::vector<int64_t>{5}));
}

TEST(FunctionPlan, TheFormsOfItsInputsAreThereUnlessTheFileSaysNo) {
  const Json axes = parse_plan(Json::parse(kAxes)).space.at("axes");
  for (const char* name :
       {"grad_layout", "grad_mask", "gradient_times", "backwards", "input_times"})
    EXPECT_TRUE(axes.contains(name)) << name;
  EXPECT_FALSE(axes.contains("input_layout"));
  EXPECT_TRUE(parse_plan(changed("/layouts", "all")).space.at("axes").contains("input_layout"));
  for (const char* name : {"grad_layout", "input_times"})
    EXPECT_FALSE(parse_plan(changed("/layouts", "none")).space.at("axes").contains(name)) << name;
  const Json own = {nullptr, "strided"};
  EXPECT_EQ(parse_plan(changed("/axes/grad_layout", own)).space["axes"]["grad_layout"], own);
}

TEST(FunctionPlan, AWrongFileIsRefusedByPlaceAndReason) {
  for (const auto& [at, value, said] : std::vector<std::tuple<const char*, Json, const char*>>{
           {"/tensor", 1, "axes.json: no key 'tensor'; did you mean tensors?"},
           {"/tensors/x/shape", {"row"}, "tensor 'x': shape: no axis 'row'; did you mean rows?"},
           {"/tensors/x/shape", {1.5}, "wants a whole number or the name of an axis"},
           {"/tensors/x/values", "norml", "no values 'norml'; did you mean normal?"},
           {"/tensors/x/dtype", "float23", "no dtype 'float23'"},
           {"/tensors/grad_x", {{"shape", {"rows"}}}, "that of an upstream gradient"},
           {"/arguments", {"epsilon"}, "arguments: no axis 'epsilon'"},
           {"/gradients", {"labels"}, "gradients: no floating tensor 'labels'"},
           {"/axes/depth", 3, "axis 'depth': nothing uses it"},
           {"/axes/rows", {{"from", 1}}, "axis 'rows' wants a value, a list"},
           {"/layouts", "any", "layouts: no 'any'"},
           {"/relations", {{{"name", "liner"}}}, "no relation 'liner'; did you mean linear?"},
           {"/axes", Json::object(), "wants \"axes\""}}) {
    const std::string got = refusal(changed(at, value));
    EXPECT_NE(got.find(said), std::string::npos) << at << ": " << got;
  }
  Json without = Json::parse(kAxes);
  without.erase("output");
  EXPECT_NE(refusal(without).find("gradients want \"output\""), std::string::npos);
  without.erase("gradients");
  without["axes"]["backwards"] = 2;
  EXPECT_NE(refusal(without).find("axis 'backwards': is of use only"), std::string::npos);
}

TEST(FunctionPlan, ACaseIsCheckedAgainstTheFile) {
  const FunctionPack pack(parse_plan(Json::parse(kAxes)), Bf16::kRounded);
  const Json right = {{"rows", 5}, {"heads", 2}, {"width", 8}};
  EXPECT_NO_THROW(pack.check(case_of(right)));
  for (const auto& [axis, value] : std::vector<std::pair<const char*, Json>>{
           {"rowz", 5}, {"rows", "many"}, {"rows", 1 << 28}, {"dtype", "int64"}}) {
    Json wrong = right;
    wrong[axis] = value;
    EXPECT_THROW(pack.check(case_of(wrong)), Error) << axis;
  }
  EXPECT_THROW(pack.check(case_of({{"rows", 5}})), Error);
}

}  // namespace
}  // namespace patchbench::function
