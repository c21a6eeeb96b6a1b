#pragma once
#include <cstdint>

#include "../kernel/sm90/mla_backward.h"
#include "sm90_loads.h"

// Operands of the backward: bfloat16, copied unchanged. Grid: num_items.
namespace patchbench::ops::sparse_mla_dims {

using DqLoader = RowLoader<0, kDqThreads>;

/// kBlocks_: blocks of q.
template <int kBlocks_>
struct Operands : CtaOperands<SparseMla, SparseMlaGrads, Cta> {
  using CtaOperands::CtaOperands;
  static constexpr int kBlocks = kBlocks_;
  static constexpr bool kHasRemainder = true;
  static constexpr bool kOverlapsAdds = true;
  DqLoader loader;
  int32_t slots[DqLoader::kEach];

  PB_DEVICE void load_q_tile() const {
    loader.load_blocks<0, kBlocks>(loader.query_rows(p, cta), p.head_dim_qk, kBlocks,
                                   smem.q_tile());
    loader.load_blocks<0, kBlocks>(
        loader.head_rows(g.grad_out + cta.first_row * p.head_dim_v, p.head_dim_v, cta.num_rows),
        p.head_dim_v, smem.value_blocks, smem.grad_out_tile());
  }
  PB_DEVICE void read_slots(int64_t tile) { loader.read_slots(p, cta, tile, slots); }
  PB_DEVICE void load_k_tile(int64_t tile) const {
    int32_t index[DqLoader::kEach];
    loader.valid_indices(p, slots, index);
    loader.store_indices(index, smem.shared().index[tile % 2]);
    loader.load_blocks<0, kBlocks>(loader.key_rows(p, cta, index), p.head_dim_qk, kBlocks,
                                   smem.k_tile());
  }
  PB_DEVICE float query_scale(int /*row*/) const { return 1.0f; }
  PB_DEVICE float key_scale(int64_t /*tile*/, int /*key*/) const { return 1.0f; }
};

}  // namespace patchbench::ops::sparse_mla_dims
