#pragma once
#include <cstdint>

#include "../kernel/sm90/mla_backward.h"
#include "sm90_loads.h"

// What the backward works on: bfloat16, copied as it is. Grid: num_items.
namespace patchbench::ops::sparse_mla_dims {

using SlopeTeam = Team<0, kSlopeThreads>;

/// kBlocks: those of q.
template <int kBlocks_>
struct Operands : CtaOperands<SparseMla, SparseMlaGrads, Cta> {
  using CtaOperands::CtaOperands;
  static constexpr int kBlocks = kBlocks_;
  static constexpr bool kAddsBeside = true;
  SlopeTeam team;
  int32_t slots[SlopeTeam::kEach];

  PB_DEVICE void load_q_tile() const {
    team.copy<0, kBlocks>(team.find_query(p, cta), p.head_dim_qk, kBlocks, places.query());
    team.copy<0, kBlocks>(
        team.find_heads(g.grad_out + cta.first_row * p.head_dim_v, p.head_dim_v, cta.num_rows),
        p.head_dim_v, places.value_blocks, places.grad_out());
  }
  PB_DEVICE void read_slots(int64_t tile) { team.read_slots(p, cta, tile, slots); }
  PB_DEVICE void load_k_tile(int64_t tile) const {
    int32_t index[SlopeTeam::kEach];
    team.keys_of(p, slots, index);
    team.note_indices(index, places.shared().index[tile % 2]);
    team.copy<0, kBlocks>(team.find_keys(p, cta, index), p.head_dim_qk, kBlocks, places.keys());
  }
  PB_DEVICE float query_scale(int /*row*/) const { return 1.0f; }
  PB_DEVICE float key_scale(int64_t /*tile*/, int /*key*/) const { return 1.0f; }
};

}  // namespace patchbench::ops::sparse_mla_dims
