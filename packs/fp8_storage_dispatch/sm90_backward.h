#pragma once
#include <cmath>
#include <cstdint>

#include "../kernel/sm90/mla_backward.h"
#include "sm90_forward.h"

// Operands of the backward: the stored bytes, converted to bfloat16 on their way to shared memory,
// without a change of value. The scale of a row stays float32; the block scales of the 656-byte
// layout are multiplied into the values (exact for powers of two). dS uses P as it is; out uses P
// rounded to float16, or to bfloat16 with 656-byte keys. Grid: num_items.
namespace patchbench::ops::fp8_storage_dispatch {

/// Lies behind the shared memory of sm90::backward_cta.
struct BackwardScales {
  float query[kRows], key[2][kRows];  ///< of the keys, by tile
};
constexpr int64_t kBackwardBytes =
    backward_bytes(kHeadDim, kHeadDimV) + static_cast<int64_t>(sizeof(BackwardScales));
static_assert(kBackwardBytes <= 227 * 1024, "a CTA of sm_90 has 227 KiB");

/// Loads this thread's part of row `row` (576 bytes) as bfloat16 to the blocks from `to` on; zeros
/// if not is_row. All loads are issued before the first value is used.
PB_DEVICE void load_row_as_bf16(const void* rows, int64_t row, bool is_row, const RowSlice& slice,
                                uint32_t to) {
  constexpr int kPieces = kHeadDim / 64;
  const uint8_t* from = static_cast<const uint8_t*>(rows) + row * kHeadDim + slice.chunk * 16;
  Vec128 bytes[kPieces];
  PB_UNROLL
  for (int piece = 0; piece < kPieces; ++piece)
    bytes[piece] = is_row ? load_128(from + piece * 64) : Vec128();
  PB_UNROLL
  for (int piece = 0; piece < kPieces; ++piece)
    store_as_bf16(to + static_cast<uint32_t>(piece) * kBlockBytes, slice, bytes[piece], 1.0f);
}

/// The scale of a row, as a divisor: a magnitude below 2^-60 becomes 2^-60.
PB_DEVICE float divisible_scale(const float* scales, int64_t stride, int64_t row, bool is_row) {
  const float scale = is_row ? scales[row * stride] : 1.0f;
  return fabsf(scale) < 0x1p-60f ? 0x1p-60f : scale;
}

/// kIsBlock: keys of 656 bytes; otherwise keys with one scale for each, or for all.
template <bool kIsBlock>
struct Operands : CtaOperands<SparseMla, SparseMlaGrads, Cta> {
  using CtaOperands::CtaOperands;
  static constexpr int kBlocks = num_blocks(kHeadDim);
  static constexpr bool kHasRemainder = false;
  RowSlice slice;
  int32_t slot = -1;

  PB_DEVICE BackwardScales& scales() const {
    return *reinterpret_cast<BackwardScales*>(&smem.shared() + 1);
  }

  PB_DEVICE void load_q_tile() const {
    const int64_t row = cta.first_row + slice.row;
    const bool is_row = slice.row < cta.num_rows;
    float scale = 1.0f;
    if (p.q_scale == nullptr) {
      load_query<Form::kBlockDenseQuery>(p, cta, slice, smem.q_tile());
    } else {
      load_row_as_bf16(p.q, row, is_row, slice, smem.q_tile());
      scale = divisible_scale(p.q_scale, p.q_scale_stride, row, is_row);
    }
    if (slice.chunk == 0) scales().query[slice.row] = scale;
    const auto* from = reinterpret_cast<const uint8_t*>(g.grad_out + row * kHeadDimV);
    copy_row<kHeadDimV / 32>(from + slice.chunk * 16, is_row, slice, smem.grad_out_tile());
    // The scales are read next, even without a tile.
    named_barrier_sync(kDqBarrier, kDqThreads);
  }

  PB_DEVICE void read_slots(int64_t tile) { slot = index_at(p, cta, slice, tile); }
  PB_DEVICE void load_k_tile(int64_t tile) const {
    const int32_t index = slot < 0 || slot >= p.seqlen_k ? -1 : slot;
    const int64_t row = cta.batch * p.seqlen_k + index;
    if constexpr (kIsBlock) {
      KeyPart<Form::kBlockDenseQuery> key;
      key.load(p, cta, slice, index);
      key.store_row_as_bf16(slice, smem.k_tile());
    } else {
      load_row_as_bf16(p.kv, row, index >= 0, slice, smem.k_tile());
    }
    if (slice.chunk != 0) return;
    smem.shared().index[tile % 2][slice.row] = index;
    if constexpr (!kIsBlock)
      scales().key[tile % 2][slice.row] =
          divisible_scale(p.kv_scale, p.kv_scale_stride, row, index >= 0);
  }

  PB_DEVICE float query_scale(int row) const { return scales().query[row]; }
  PB_DEVICE float key_scale(int64_t tile, int row) const {
    return kIsBlock ? 1.0f : scales().key[tile % 2][row];
  }
};

}  // namespace patchbench::ops::fp8_storage_dispatch
