#include "harness/layouts.h"

#include "core/error.h"

namespace patchbench::harness {
namespace {

constexpr double kGap = 1e3;

at::Tensor with_reversed_axes(const at::Tensor& tensor) {
  std::vector<int64_t> order;
  for (int64_t axis = tensor.dim(); axis-- > 0;) order.push_back(axis);
  return tensor.permute(order).contiguous().permute(order);
}

at::Tensor with_gaps(const at::Tensor& tensor) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.push_back(2);
  const at::Tensor wide = at::full(sizes, kGap, tensor.options());
  wide.select(-1, 0).copy_(tensor);
  return wide.select(-1, 0);
}

at::Tensor with_offset(const at::Tensor& tensor) {
  const at::Tensor storage = at::full({tensor.numel() + 1}, kGap, tensor.options());
  const at::Tensor inner = storage.narrow(0, 1, tensor.numel());
  inner.copy_(tensor.flatten());
  return inner.view(tensor.sizes());
}

}  // namespace

const std::vector<std::string>& layouts() {
  static const std::vector<std::string> names = {"transposed", "strided", "offset",
                                                 "first_expanded", "last_expanded"};
  return names;
}

at::Tensor laid_out(const at::Tensor& tensor, const std::string& layout) {
  if (tensor.dim() == 0 || tensor.numel() == 0) return tensor;
  const auto repeated = [&](int64_t axis) {
    return tensor.narrow(axis, 0, 1).clone().expand_as(tensor);
  };
  if (layout == "transposed") return with_reversed_axes(tensor);
  if (layout == "strided") return with_gaps(tensor);
  if (layout == "offset") return with_offset(tensor);
  if (layout == "first_expanded") return repeated(0);
  if (layout == "last_expanded") return repeated(tensor.dim() - 1);
  throw Error(ErrorCode::kInternal, "no layout '" + layout + "'");
}

const std::vector<std::string>& masks() {
  static const std::vector<std::string> names = {"first_row", "all_but_last", "all"};
  return names;
}

at::Tensor masked(const at::Tensor& tensor, const std::string& mask) {
  if (tensor.numel() == 0) return tensor;
  if (tensor.dim() == 0) return mask == "all" ? at::zeros_like(tensor) : tensor;
  const int64_t rows = tensor.size(0);
  at::Tensor values = tensor.contiguous().clone();
  if (mask == "all") return values.zero_();
  if (mask == "first_row") values.narrow(0, 0, rows > 1 ? 1 : 0).zero_();
  if (mask == "all_but_last") values.narrow(0, 0, rows - 1).zero_();
  return values;
}

}  // namespace patchbench::harness
