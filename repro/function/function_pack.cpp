#include "function/function_pack.h"

#include <algorithm>

#include "core/error.h"
#include "core/slug.h"
#include "harness/axes.h"

namespace patchbench::function {
namespace {

using harness::Tensors;

constexpr std::string_view kWhy =
    "a function may add in another order than its reference, and may round once more where it "
    "stores what the reference keeps";

at::ScalarType dtype_named(const std::string& name) {
  static const std::map<std::string, at::ScalarType> known = {
      {"float16", at::kHalf},   {"bfloat16", at::kBFloat16}, {"float32", at::kFloat},
      {"float64", at::kDouble}, {"int32", at::kInt},         {"int64", at::kLong},
      {"bool", at::kBool}};
  return known.at(name);
}

at::Tensor drawn(const Case& item, const TensorPlan& tensor, const harness::Draw& draw) {
  using Values = TensorPlan::Values;
  const std::vector<int64_t> shape = shape_of(item, tensor);
  switch (tensor.values) {
    case Values::kNormal:
      return draw.normal(shape);
    case Values::kUniform:
      return draw.uniform(shape, -1, 1);
    case Values::kTied:
      return draw.tied(shape, 5);
    case Values::kMask:
      return draw.mask(shape, 0.5);
    case Values::kIntegers: {
      const auto [low, high] = range_of(item, tensor);
      return draw.integers(shape, low, high);
    }
  }
  throw Error(ErrorCode::kInternal, "no such values");
}

[[noreturn]] void is_outside() {
  throw Error(ErrorCode::kInternal, "a function's reference is in another process");
}

}  // namespace

void FunctionPack::check(const Case& item) const {
  std::vector<std::string> present;
  for (const auto& [name, value] : item.axes.items()) {
    if (std::find(plan_.axes.begin(), plan_.axes.end(), name) == plan_.axes.end())
      harness::refuse(item, "no axis '" + name + "'" + did_you_mean(name, plan_.axes));
    present.push_back(name);
  }
  harness::check_axes(item, present);
  // Zeros in every row show nothing of a backward.
  if (item.axes.value("grad_layout", "") == "first_expanded" && item.axes.contains("grad_mask"))
    harness::refuse(item, "a first row that is masked and then expanded is 0 everywhere");
  if (item.axes.contains("dtype"))
    harness::choice(item, "dtype", {"float32", "bfloat16", "float16", "float64"});
  for (const TensorPlan& tensor : plan_.tensors) {
    shape_of(item, tensor);
    if (tensor.values != TensorPlan::Values::kIntegers) continue;
    const auto [low, high] = range_of(item, tensor);
    if (low >= high)
      harness::refuse(item, "tensor '" + tensor.name + "': integers want low < high");
  }
}

at::ScalarType FunctionPack::dtype(const Case& item) const {
  return dtype_named(item.axes.value("dtype", "float32"));
}

Tensors FunctionPack::inputs(const Case& item, uint64_t seed) const {
  Tensors made;
  for (const TensorPlan& tensor : plan_.tensors) {
    const harness::Draw draw(seed, item.name + "/" + tensor.name);
    const at::ScalarType type = tensor.dtype.empty() ? dtype(item) : dtype_named(tensor.dtype);
    made.emplace(tensor.name, drawn(item, tensor, draw).to(type));
  }
  return made;
}

Tensors FunctionPack::oracle(const Case&, const Tensors&) const { is_outside(); }
Tensors FunctionPack::plain(const Case&, const Tensors&) const { is_outside(); }

harness::Tolerances FunctionPack::tolerances(const Case& item, const std::string&) const {
  // 8 units of bf16 are 6 % of the largest element, which would hide a wrong column.
  const at::ScalarType type = dtype(item);
  if (type == at::kHalf || type == at::kBFloat16)
    return {Tolerance{2, 3, kWhy}, Tolerance{2, 6, kWhy}, Tolerance{2, 1, kWhy},
            Tolerance{2, 2, kWhy}};
  return {Tolerance{2, 8, kWhy}, Tolerance{2, 16, kWhy}, Tolerance{2, 4, kWhy},
          Tolerance{2, 4, kWhy}};
}

}  // namespace patchbench::function
