#pragma once
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "product.h"
#include "rows.h"

/// The matrix products of the op, tile by tile. For op.cpp alone; nothing here checks its
/// arguments.
namespace patchbench::ops::liger_flce_none_bwd {

inline constexpr int64_t kTileStep = 128;  // tile edges are multiples: GEMM tiles and aligned rows

/// How many rows (or classes) of length `other` a tile of `elements` may have.
inline int64_t tile_edge(int64_t elements, int64_t other, int64_t whole) {
  const int64_t edge = std::max<int64_t>(1, elements / other);
  if (edge >= whole) return whole;
  return edge < kTileStep ? edge : edge / kTileStep * kTileStep;
}

/// Which edge of the logits is cut into tiles.
enum class Walk { kRows, kClasses };

/// The tile of at most `step` rows or classes from `first` on, whole along the other edge.
inline Tile tile_of(const Problem& problem, Walk walk, int64_t first, int64_t step) {
  Tile tile{0, problem.tokens, 0, problem.terms.vocab};
  if (walk == Walk::kRows) {
    tile.first_row = first;
    tile.rows = std::min(step, problem.tokens - first);
  } else {
    tile.first_class = first;
    tile.classes = std::min(step, problem.terms.vocab - first);
  }
  return tile;
}

/// How many rows or classes a tile has.
inline int64_t step_of(const Problem& problem, Walk walk) {
  return walk == Walk::kRows
             ? tile_edge(problem.row_tile_elements, problem.terms.vocab, problem.tokens)
             : tile_edge(problem.class_tile_elements, problem.tokens, problem.terms.vocab);
}

/// Logits that forward leaves for backward, tile after tile of `step` classes: `count` tiles in the
/// memory that grad_weight takes over, then `num_added` in memory of their own.
struct Kept {
  Tensor memory;  // [vocab, features], or null: none
  Tensor added;   // flat, or null: none
  int64_t step = 0, count = 0, num_added = 0;

  int64_t first_added() const { return count * step; }
  bool has(const Tile& tile) const { return tile.first_class < (count + num_added) * step; }
};

/// Which logits are kept in grad_weight's memory: as many tiles of equal size as fit; all if tokens
/// <= features. None where less than half a tile fits.
inline Kept kept_in_grad_weight(const Problem& problem) {
  const int64_t vocab = problem.terms.vocab, tokens = problem.tokens;
  // A product that goes where its own logits lie is made next to them first: the larger one counts.
  const int64_t most =
      tile_edge(problem.class_tile_elements, std::max(tokens, problem.features), vocab);
  const int64_t classes = std::min(vocab, vocab * problem.features / tokens);
  if (classes == vocab) return {{}, {}, most, (vocab + most - 1) / most};
  if (2 * classes < most) return {{}, {}, step_of(problem, Walk::kClasses)};
  int64_t step = classes / ((classes + most - 1) / most);
  if (step > kTileStep) step -= step % kTileStep;
  return {{}, {}, step, classes / step};
}

/// Which logits are kept. All of them, in one tile with memory of its own, if keep_elements has
/// room for them, or if they fit both in a tile of rows, which a reduced loss makes, and in the
/// size of grad_weight. Otherwise those that fit in grad_weight's memory and in keep_elements.
inline Kept kept_of(const Problem& problem) {
  const int64_t vocab = problem.terms.vocab, all = problem.tokens * vocab;
  const bool is_small = problem.tokens <= problem.features && all <= problem.row_tile_elements;
  if (is_small || all <= problem.keep_elements) return {{}, {}, vocab, 0, 1};
  Kept kept = kept_in_grad_weight(problem);
  const int64_t left = (vocab + kept.step - 1) / kept.step - kept.count;
  kept.num_added = std::min(left, problem.keep_elements / (kept.step * problem.tokens));
  return kept;
}

/// Where a tile's logits are made: among the kept ones, or in the front of `slab`.
inline Tensor place_of(const Problem& problem, const Tile& tile, const Tensor& slab,
                       const Kept& kept) {
  int64_t first = 0;
  Tensor flat = slab;
  if (kept.has(tile)) {
    const bool is_added = tile.first_class >= kept.first_added();
    flat = is_added ? kept.added : kept.memory.view(-1);
    first = (tile.first_class - (is_added ? kept.first_added() : 0)) * problem.tokens;
  }
  return flat.narrow(0, first, tile.rows * tile.classes).view({tile.rows, tile.classes});
}

/// The logits of one tile, written over `logits`.
inline void make_logits(const Problem& problem, const Tile& tile, Tensor& logits) {
  const Tensor hidden = problem.hidden.narrow(0, tile.first_row, tile.rows);
  const Tensor weight = problem.weight.narrow(0, tile.first_class, tile.classes).t();
  if (problem.bias.defined()) {
    const Tensor bias = problem.bias.narrow(0, tile.first_class, tile.classes);
    at::addmm_out(logits, bias, hidden, weight);
  } else if (tile.classes < problem.terms.vocab ||
             !product_by_own_tiles(Product::kLogits, logits, hidden, weight, 0)) {
    at::mm_out(logits, hidden, weight);
  }
}

/// Whether two contiguous tensors share memory.
inline bool is_shared(const Tensor& a, const Tensor& b) {
  const auto* a_begin = static_cast<const char*>(a.const_data_ptr());
  const auto* b_begin = static_cast<const char*>(b.const_data_ptr());
  return a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

/// How the products of a gradient's tiles come together: each covers a part of its own, or all of
/// it; then their sum is kept in float32 and rounded at its end, or rounded after each tile.
enum class Sum { kDisjoint, kWide, kRounded };

/// A gradient that is a sum of products over tiles.
class Projection {
 public:
  /// `memory` [length, features] is used where it is not null.
  Projection(const Problem& problem, int64_t length, Sum sum, const Tensor& memory = {})
      : sum_(memory),
        out_type_(problem.hidden.scalar_type()),
        is_fp32_accumulated_(problem.path == Path::kCuda),
        is_disjoint_(sum == Sum::kDisjoint) {
    const auto type = sum == Sum::kWide ? problem.acc : out_type_;
    if (!sum_.defined())
      sum_ = at::empty({length, problem.features}, problem.hidden.options().dtype(type));
  }

  /// Rows [first, first + left.size(0)) += left @ right. The first product of a sum is written over
  /// what was there.
  void add(int64_t first, const Tensor& left, const Tensor& right) {
    Tensor part = sum_.narrow(0, first, left.size(0));
    const bool is_added = !is_disjoint_ && std::exchange(is_begun_, true);
    if (is_shared(part, left)) {
      part.copy_(at::mm(left, right));  // kept logits that lie where their own classes' rows go
    } else if (part.scalar_type() == left.scalar_type()) {
      const float beta = is_added ? 1 : 0;
      if (is_disjoint_ || !product_by_own_tiles(Product::kRoundedSum, part, left, right, beta)) {
        is_added ? part.addmm_(left, right) : at::mm_out(part, left, right);
      }
    } else if (is_fp32_accumulated_) {
      is_added ? at::addmm_out(part, part, left, right, at::kFloat)
               : at::mm_out(part, left, right, at::kFloat);
    } else {
      const Tensor product = at::mm(left, right);
      is_added ? part.add_(product) : part.copy_(product);
    }
  }
  Tensor result() const { return sum_.to(out_type_); }

 private:
  Tensor sum_;
  at::ScalarType out_type_;
  bool is_fp32_accumulated_, is_disjoint_, is_begun_ = false;
};

/// Sums over the rows. On the CPU a sum with another dtype would first convert the whole tile.
inline Tensor column_sum(const Problem& problem, const Tensor& tile) {
  return problem.hidden.is_cpu() ? at::sum(tile, {0}) : at::sum(tile, {0}, false, problem.acc);
}

using Mask = std::array<bool, 3>;  // grad_hidden, grad_weight, grad_bias
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

/// How project goes about it.
struct Plan {
  Walk walk;
  Sum sum;    // of the gradient whose parts the tiles do not cut
  Kept kept;  // of a walk by classes
};

/// The gradients, tile by tile. `make_grad(logits, tile)` overwrites a tile's logits with dz.
template <typename MakeGrad>
Gradients project(const Problem& problem, const Plan& plan, const Mask& mask,
                  const MakeGrad& make_grad) {
  const auto& kept = plan.kept;
  const bool by_class = plan.walk == Walk::kClasses;
  const int64_t vocab = problem.terms.vocab, tokens = problem.tokens;
  const int64_t step = kept.step > 0 ? kept.step : step_of(problem, plan.walk);
  const int64_t num_tiles = ((by_class ? vocab : tokens) + step - 1) / step;
  const Sum row_sum = num_tiles == 1 || !by_class ? Sum::kDisjoint : plan.sum;
  const Sum class_sum = num_tiles == 1 || by_class ? Sum::kDisjoint : plan.sum;
  std::optional<Projection> grad_hidden, grad_weight;
  if (mask[0]) grad_hidden.emplace(problem, tokens, row_sum);
  if (mask[1]) grad_weight.emplace(problem, vocab, class_sum, kept.memory);
  Tensor bias_sum;
  if (mask[2]) bias_sum = at::zeros({vocab}, problem.hidden.options().dtype(problem.acc));
  const int64_t slab_tiles = num_tiles - kept.count - kept.num_added;
  Tensor slab = at::empty({slab_tiles > 0 ? step * (by_class ? tokens : vocab) : 0},
                          problem.hidden.options());
  // The rows of grad_weight that a tile writes may take the place of its own kept logits or of ones
  // that are done with, never of later ones: rows are shorter than kept columns, or it goes
  // backwards.
  const bool is_backwards = kept.memory.defined() && tokens < problem.features;
  for (int64_t k = 0; k < num_tiles; ++k) {
    const int64_t first = (is_backwards ? num_tiles - 1 - k : k) * step;
    const Tile tile = tile_of(problem, plan.walk, first, step);
    Tensor grad_logits = place_of(problem, tile, slab, kept);
    if (!kept.has(tile)) make_logits(problem, tile, grad_logits);
    make_grad(grad_logits, tile);
    const Tensor hidden = problem.hidden.narrow(0, tile.first_row, tile.rows);
    const Tensor weight = problem.weight.narrow(0, tile.first_class, tile.classes);
    if (mask[2]) {
      bias_sum.narrow(0, tile.first_class, tile.classes).add_(column_sum(problem, grad_logits));
    }
    if (grad_hidden) grad_hidden->add(tile.first_row, grad_logits, weight);
    if (grad_weight) grad_weight->add(tile.first_class, grad_logits.t(), hidden);
  }
  slab.reset();  // before the sums are rounded: that needs memory of its own
  return {grad_hidden ? grad_hidden->result() : Tensor(),
          grad_weight ? grad_weight->result() : Tensor(),
          mask[2] ? bias_sum.to(problem.bias.scalar_type()) : Tensor()};
}

}  // namespace patchbench::ops::liger_flce_none_bwd
