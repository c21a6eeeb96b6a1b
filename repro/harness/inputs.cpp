#include "harness/inputs.h"

#include <cmath>
#include <functional>
#include <numeric>

#include "core/error.h"

namespace patchbench::harness {
namespace {

/// One round of SplitMix64's finaliser: a bijection that spreads every input bit.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

int64_t count_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

double unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

/// Fills a new tensor element by element from its flat index.
template <typename T, typename F>
at::Tensor filled(const std::vector<int64_t>& shape, at::ScalarType dtype, const F& value_at) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(dtype));
  T* data = tensor.data_ptr<T>();
  const int64_t count = count_of(shape);
  for (int64_t i = 0; i < count; ++i) data[i] = value_at(static_cast<uint64_t>(i));
  return tensor;
}

}  // namespace

Draw::Draw(uint64_t seed, std::string_view name) : key_(mix(seed)) {
  for (const char c : name) key_ = mix(key_ ^ static_cast<unsigned char>(c));
}

uint64_t Draw::bits(uint64_t index) const {
  return mix(mix(key_ + 0x632be59bd9b4e019ULL * index) ^ key_);
}

at::Tensor Draw::uniform(const std::vector<int64_t>& shape, double low, double high) const {
  return filled<double>(shape, at::kDouble,
                        [&](uint64_t i) { return low + (high - low) * unit(bits(i)); });
}

at::Tensor Draw::normal(const std::vector<int64_t>& shape) const {
  return filled<double>(shape, at::kDouble, [&](uint64_t i) {
    // Twelve numbers of 32 bits: their sum is exact in fp64.
    uint64_t sum = 0;
    for (uint64_t j = 0; j < 6; ++j) {
      const uint64_t two = bits(6 * i + j);
      sum += (two >> 32) + (two & 0xffffffffULL);
    }
    return static_cast<double>(sum) * 0x1p-32 - 6.0;
  });
}

at::Tensor Draw::integers(const std::vector<int64_t>& shape, int64_t low, int64_t high) const {
  TORCH_CHECK(low < high, "an integer range wants low < high");
  const auto span = static_cast<uint64_t>(high - low);
  return filled<int64_t>(shape, at::kLong,
                         [&](uint64_t i) { return low + static_cast<int64_t>(bits(i) % span); });
}

at::Tensor Draw::mask(const std::vector<int64_t>& shape, double probability) const {
  return filled<bool>(shape, at::kBool, [&](uint64_t i) { return unit(bits(i)) < probability; });
}

at::Tensor Draw::tied(const std::vector<int64_t>& shape, int64_t num_levels) const {
  TORCH_CHECK(num_levels >= 2, "ties want at least two levels");
  const auto steps = static_cast<double>(num_levels - 1);
  return integers(shape, 0, num_levels).to(at::kDouble).mul_(2.0 / steps).sub_(1.0);
}

Tensors in_fp64(const Tensors& inputs) {
  Tensors wide;
  for (const auto& [name, tensor] : inputs)
    wide.emplace(name, tensor.is_floating_point() ? tensor.to(at::kDouble) : tensor);
  return wide;
}

double epsilon_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 0x1p-52;
    case at::kFloat:
      return 0x1p-23;
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      throw Error(ErrorCode::kInternal,
                  std::string("no machine epsilon for ") + at::toString(dtype));
  }
}

at::Tensor view_on(const at::Tensor& tensor, const at::Device& device) {
  const auto storage_numel =
      static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
  const at::Tensor flat =
      at::as_strided(tensor, {storage_numel}, {1}, 0).to(device, tensor.scalar_type(), false, true);
  return at::as_strided(flat, tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

Tensors take_below(Tensors& tensors, std::string_view prefix) {
  Tensors taken;
  for (auto entry = tensors.begin(); entry != tensors.end();) {
    if (!entry->first.starts_with(prefix)) {
      ++entry;
      continue;
    }
    taken.emplace(entry->first.substr(prefix.size()), std::move(entry->second));
    entry = tensors.erase(entry);
  }
  return taken;
}

}  // namespace patchbench::harness
