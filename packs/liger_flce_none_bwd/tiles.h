#pragma once
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "rows.h"

/// The matrix products of the op, tile by tile. For op.cpp alone; nothing here checks its
/// arguments.
namespace patchbench::ops::liger_flce_none_bwd {

inline constexpr int64_t kTileStep = 128;  // tile edges are multiples: GEMM tiles and aligned rows

/// How many rows (or classes) of length `other` a tile may have.
inline int64_t tile_edge(const Problem& problem, int64_t other, int64_t whole) {
  const int64_t edge = std::max<int64_t>(1, problem.tile_elements / other);
  if (edge >= whole) return whole;
  return edge < kTileStep ? edge : edge / kTileStep * kTileStep;
}

/// The logits of one tile, in the front of `slab`.
inline Tensor make_logits(const Problem& problem, const Tile& tile, const Tensor& slab) {
  Tensor logits = slab.narrow(0, 0, tile.rows * tile.classes).view({tile.rows, tile.classes});
  const Tensor hidden = problem.hidden.narrow(0, tile.first_row, tile.rows);
  const Tensor weight = problem.weight.narrow(0, tile.first_class, tile.classes).t();
  if (problem.bias.defined()) {
    const Tensor bias = problem.bias.narrow(0, tile.first_class, tile.classes);
    at::addmm_out(logits, bias, hidden, weight);
  } else {
    at::mm_out(logits, hidden, weight);
  }
  return logits;
}

/// A gradient that is a sum of products over tiles. Tiles either cover disjoint parts of it (one
/// product each, written in place) or all of it (summed in float32 and rounded once at the end).
class Projection {
 public:
  Projection(const Problem& problem, int64_t length, bool is_disjoint)
      : out_type_(problem.hidden.scalar_type()), is_fp32_accumulated_(problem.path == Path::kCuda) {
    const auto type = is_disjoint ? out_type_ : problem.acc;
    const auto options = problem.hidden.options().dtype(type);
    const std::vector<int64_t> shape{length, problem.features};
    sum_ = is_disjoint ? at::empty(shape, options) : at::zeros(shape, options);
    is_disjoint_ = is_disjoint;
  }

  /// Rows [first, first + left.size(0)) += left @ right.
  void add(int64_t first, const Tensor& left, const Tensor& right) {
    Tensor part = sum_.narrow(0, first, left.size(0));
    if (is_disjoint_) {
      at::mm_out(part, left, right);
    } else if (part.scalar_type() == left.scalar_type()) {
      part.addmm_(left, right);
    } else if (is_fp32_accumulated_) {
      at::addmm_out(part, part, left, right, at::kFloat);
    } else {
      part.add_(at::mm(left, right));
    }
  }
  Tensor result() const { return sum_.to(out_type_); }

 private:
  Tensor sum_;
  at::ScalarType out_type_;
  bool is_fp32_accumulated_, is_disjoint_ = false;
};

/// Sums over the rows. On the CPU a sum with another dtype would first convert the whole tile.
inline Tensor column_sum(const Problem& problem, const Tensor& tile) {
  return problem.hidden.is_cpu() ? at::sum(tile, {0}) : at::sum(tile, {0}, false, problem.acc);
}

}  // namespace patchbench::ops::liger_flce_none_bwd
