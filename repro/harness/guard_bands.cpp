#include "harness/guard_bands.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "harness/compare.h"
#include "harness/tensor_file.h"

namespace patchbench::harness {
namespace {

constexpr int64_t kTimesStorage = 4, kMultiple = 64;
constexpr std::string_view kPrefix = "guard/";

int64_t length_for(int64_t storage_numel) {
  const int64_t wanted = std::max<int64_t>(1, kTimesStorage * storage_numel);
  return (wanted + kMultiple - 1) / kMultiple * kMultiple;
}

at::Tensor band_values(const at::Tensor& like, int64_t length, const Draw& draw) {
  const at::Tensor values =
      like.is_floating_point() ? draw.uniform({2, length}, 2, 3) : draw.integers({2, length}, 0, 4);
  return values.to(like.scalar_type());
}

}  // namespace

Tensors lay_bands(Tensors& inputs, const std::string& case_name, uint64_t seed) {
  Tensors laid;
  for (auto& [name, tensor] : inputs) {
    const at::Tensor storage = storage_of(tensor);
    const int64_t length = length_for(storage.numel());
    const Draw draw(seed, case_name + "/" + name + "/guard_band");
    const at::Tensor bands = band_values(tensor, length, draw);
    const at::Tensor whole = at::cat({bands[0], storage, bands[1]});
    tensor =
        at::as_strided(whole, tensor.sizes(), tensor.strides(), tensor.storage_offset() + length);
    laid.emplace(name, bands);
  }
  return laid;
}

at::Tensor bands_around(const at::Tensor& tensor, int64_t length) {
  const at::Tensor whole = storage_of(tensor.detach());
  return at::stack({whole.narrow(0, 0, length), whole.narrow(0, whole.numel() - length, length)});
}

Tensors take_bands(Tensors& outputs) { return take_below(outputs, kPrefix); }

std::string wrong_bands(const Tensors& got, const Tensors& laid) {
  for (const auto& [name, bands] : laid) {
    const auto found = got.find(name);
    if (found == got.end()) return "the guard bands of '" + name + "' did not come back";
    const bool is_alike = found->second.sizes() == bands.sizes() &&
                          found->second.scalar_type() == bands.scalar_type();
    if (!is_alike)
      return "the guard bands of '" + name + "' came back as " + describe(found->second);
  }
  if (got.size() != laid.size()) return "guard bands came back that were not laid";
  return "";
}

Measure band_layer(const std::string& name, const at::Tensor& got, const at::Tensor& laid) {
  Measure measure = compare_bitwise(name, got, laid);
  measure.layer = "guard_band";
  return measure;
}

}  // namespace patchbench::harness
