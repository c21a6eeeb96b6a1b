#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace patchbench::harness {

/// Named tensors of one case: inputs, outputs or references.
using Tensors = std::map<std::string, at::Tensor>;

/// Counter-based inputs: the element at a flat index is a function of (seed, name, index) alone, so
/// that it is the same on every machine and device, whatever else is drawn. Everything is made in
/// fp64 on the CPU from integer arithmetic and exact sums; cast afterwards.
class Draw {
 public:
  /// `name` keeps tensors and cases apart: "<case>/<tensor>".
  Draw(uint64_t seed, std::string_view name);

  /// 64 random bits for one counter.
  uint64_t bits(uint64_t index) const;
  /// Uniform on [low, high), multiples of (high - low) * 2^-53. [shape] fp64.
  at::Tensor uniform(const std::vector<int64_t>& shape, double low, double high) const;
  /// Mean 0, variance 1, within +-6: the sum of twelve uniforms less 6, which needs no libm and so
  /// is bitwise portable. [shape] fp64.
  at::Tensor normal(const std::vector<int64_t>& shape) const;
  /// Uniform integers in [low, high). [shape] int64. The bias is below (high - low) * 2^-64.
  at::Tensor integers(const std::vector<int64_t>& shape, int64_t low, int64_t high) const;
  /// True with the given probability. [shape] bool.
  at::Tensor mask(const std::vector<int64_t>& shape, double probability) const;
  /// Values from a grid of `num_levels` points on [-1, 1], so that equal values (ties) abound.
  /// [shape] fp64.
  at::Tensor tied(const std::vector<int64_t>& shape, int64_t num_levels) const;

 private:
  uint64_t key_;
};

/// Floating-point tensors in fp64, the others as they are.
Tensors in_fp64(const Tensors& inputs);

/// The machine epsilon of a floating dtype (2^-23 for fp32, 2^-7 for bf16): what `floor_ulp` counts
/// in. Throws Error(kInternal) for a dtype that has none.
double epsilon_of(at::ScalarType dtype);

/// The same view on another device: storage copied, sizes, strides and offset kept (so stride-0
/// stays stride-0).
at::Tensor view_on(const at::Tensor& tensor, const at::Device& device);

/// Takes the tensors whose names begin with `prefix` out of `tensors`; what follows it is the name.
Tensors take_below(Tensors& tensors, std::string_view prefix);

}  // namespace patchbench::harness
