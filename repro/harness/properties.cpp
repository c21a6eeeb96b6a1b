#include "harness/properties.h"

#include <algorithm>

namespace patchbench::harness {
namespace {

bool is_uniform(const at::Tensor& values) {
  return values.numel() == 0 || values.eq(values.flatten()[0]).all().item<bool>();
}

/// Which rows an integer input of one value a row keeps.
at::Tensor kept_rows(const Case& item, const at::Tensor& labels) {
  at::Tensor kept = labels.ge(0);
  if (item.axes.contains("ignore_index"))
    kept = kept.logical_and(labels.ne(item.axes.at("ignore_index").get<int64_t>()));
  return kept;
}

void describe_floats(const std::string& name, const at::Tensor& tensor, Json& found) {
  const auto strides = tensor.strides();
  found[name + ".uniform"] = is_uniform(tensor);
  found[name + ".has_stride_0"] =
      std::any_of(strides.begin(), strides.end(), [](int64_t step) { return step == 0; });
  found[name + ".is_contiguous"] = tensor.is_contiguous();
  found[name + ".has_offset"] = tensor.storage_offset() != 0;
  if (tensor.dim() > 0 && tensor.size(0) > 1)
    found[name + ".first_row_zero"] = tensor[0].eq(0).all().item<bool>();
}

}  // namespace

Json properties_of(const Case& item, const Tensors& inputs) {
  Json found = Json::object();
  for (const auto& [name, tensor] : inputs) {
    if (tensor.is_floating_point()) {
      describe_floats(name, tensor, found);
    } else if (tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt) {
      found[name + ".has_negative"] = tensor.lt(0).any().item<bool>();
      const at::Tensor sorted = std::get<0>(tensor.flatten().sort());
      const int64_t last = std::max<int64_t>(sorted.numel() - 1, 0);
      found[name + ".has_ties"] = sorted.narrow(0, 0, last)
                                      .eq(sorted.narrow(0, sorted.numel() - last, last))
                                      .any()
                                      .item<bool>();
    }
  }
  for (const auto& [name, labels] : inputs) {
    if (labels.dim() != 1 || labels.is_floating_point()) continue;
    if (labels.scalar_type() != at::kLong && labels.scalar_type() != at::kInt) continue;
    const at::Tensor kept = kept_rows(item, labels);
    for (const auto& [other, values] : inputs) {
      const bool is_by_row = values.is_floating_point() && values.dim() > 0 &&
                             values.size(0) == labels.size(0) && other.starts_with("grad_");
      if (is_by_row)
        found[other + ".uniform_where_kept"] =
            is_uniform(at::cat({values.narrow(0, 0, 1), values.index({kept})}));
    }
  }
  return found;
}

}  // namespace patchbench::harness
