#pragma once
#include <cmath>
#include <cstdint>

#include "../kernel/sm90/mla_backward.h"
#include "sm90_forward.h"

// What the backward works on: the stored bytes, made bfloat16 of the same value on their way to
// shared memory. A row's scale stays float32; those of 656 bytes go to the value (exact if they are
// powers of two). dS is of weights rounded to bfloat16, where out is of half precision's: that is
// an error of each key's own. Grid: num_items.
namespace patchbench::ops::fp8_storage_dispatch {

/// Follows what the backward has in shared memory.
struct BackwardScales {
  float query[kRows], key[2][kRows];  ///< of the keys, by tile
};
constexpr int64_t kBackwardBytes =
    backward_bytes(kHeadDim, kHeadDimV) + static_cast<int64_t>(sizeof(BackwardScales));
static_assert(kBackwardBytes <= 227 * 1024, "a CTA of sm_90 has 227 KiB");

/// A thread's part of row `row` of 576 bytes, to blocks of shared memory from `to` on; zeros where
/// there is none. All loads are under way before the first is used.
PB_DEVICE void put_row(const void* rows, int64_t row, bool is_row, const Place& place,
                       uint32_t to) {
  constexpr int kPieces = kHeadDim / 64;
  const uint8_t* from = static_cast<const uint8_t*>(rows) + row * kHeadDim + place.chunk * 16;
  Chunk bytes[kPieces];
  PB_UNROLL
  for (int piece = 0; piece < kPieces; ++piece)
    bytes[piece] = is_row ? load_chunk(from + piece * 64) : Chunk();
  PB_UNROLL
  for (int piece = 0; piece < kPieces; ++piece)
    store_wide(to + static_cast<uint32_t>(piece) * kBlockBytes, place, bytes[piece], 1.0f);
}

/// The scale of a row, which sums are divided by: one next to 0 is as good as 0 where it is small.
PB_DEVICE float divisible_scale(const float* scales, int64_t stride, int64_t row, bool is_row) {
  const float scale = is_row ? scales[row * stride] : 1.0f;
  return fabsf(scale) < 0x1p-60f ? 0x1p-60f : scale;
}

/// Keys with one scale each, or of 656 bytes.
template <bool kIsBlock>
struct Operands : CtaOperands<SparseMla, SparseMlaGrads, Cta> {
  using CtaOperands::CtaOperands;
  static constexpr int kBlocks = num_blocks(kHeadDim);
  static constexpr bool kAddsBeside = false;
  Place place;
  int32_t slot = -1;

  PB_DEVICE BackwardScales& scales() const {
    return *reinterpret_cast<BackwardScales*>(&places.shared() + 1);
  }

  PB_DEVICE void load_q_tile() const {
    const int64_t row = cta.first_row + place.row;
    const bool is_row = place.row < cta.num_rows;
    float scale = 1.0f;
    if (p.q_scale == nullptr) {
      load_query<Form::kBlockDenseQuery>(p, cta, place, places.query());
    } else {
      put_row(p.q, row, is_row, place, places.query());
      scale = divisible_scale(p.q_scale, p.q_scale_stride, row, is_row);
    }
    if (place.chunk == 0) scales().query[place.row] = scale;
    const auto* from = reinterpret_cast<const uint8_t*>(g.grad_out + row * kHeadDimV);
    copy_row<kHeadDimV / 32>(from + place.chunk * 16, is_row, place, places.grad_out());
    // Where there is no tile, the scales are what is read next.
    named_barrier_sync(kSlopeTeam, kSlopeThreads);
  }

  PB_DEVICE void read_slots(int64_t tile) { slot = slot_of(p, cta, place, tile); }
  PB_DEVICE void load_k_tile(int64_t tile) const {
    const int32_t index = slot < 0 || slot >= p.seqlen_k ? -1 : slot;
    const int64_t row = cta.batch * p.seqlen_k + index;
    if constexpr (kIsBlock) {
      KeyPart<Form::kBlockDenseQuery> key;
      key.load(p, cta, place, index);
      key.store_wide_row(place, places.keys());
    } else {
      put_row(p.kv, row, index >= 0, place, places.keys());
    }
    if (place.chunk != 0) return;
    places.shared().index[tile % 2][place.row] = index;
    if constexpr (!kIsBlock)
      scales().key[tile % 2][place.row] =
          divisible_scale(p.kv_scale, p.kv_scale_stride, row, index >= 0);
  }

  PB_DEVICE float query_scale(int row) const { return scales().query[row]; }
  PB_DEVICE float key_scale(int64_t tile, int row) const {
    return kIsBlock ? 1.0f : scales().key[tile % 2][row];
  }
};

}  // namespace patchbench::ops::fp8_storage_dispatch
