#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "harness/pack.h"

namespace patchbench::function {

/// How an input tensor of a function is drawn.
struct TensorPlan {
  enum class Values { kNormal, kUniform, kTied, kIntegers, kMask };
  std::string name;         ///< the function's parameter
  std::vector<Json> shape;  ///< each a whole number, an axis, or axes joined by "*"
  Values values = Values::kNormal;
  Json low, high;     ///< kIntegers: low <= value < high, each a whole number or an axis
  std::string dtype;  ///< a torch dtype; empty: the case's
};

/// What axes.json says of a function: which cases there are, and how it is called in each.
struct FunctionPlan {
  Json space;  ///< the body of a harness::Space
  std::vector<std::string> axes;
  std::vector<TensorPlan> tensors;  ///< with grad_output where there are gradients
  std::vector<std::string> arguments, gradients;
};

/// Reads axes.json (repro/function/README.md). These axes get a range unless the file names them:
/// `input_times` and, with gradients, `grad_layout`, `grad_mask`, `gradient_times` and `backwards`.
/// Throws Error(kUsage) `axes.json: <where>: <reason>`.
FunctionPlan parse_plan(const Json& json);

/// The shape of a tensor in a case. Throws Error(kUsage) where an axis of it is missing or is no
/// whole number of at least 0, or the tensor has more than 2^28 elements.
std::vector<int64_t> shape_of(const Case& item, const TensorPlan& tensor);

/// The bounds [low, high) of a tensor of integers in a case; throws as shape_of does.
std::pair<int64_t, int64_t> range_of(const Case& item, const TensorPlan& tensor);

}  // namespace patchbench::function
