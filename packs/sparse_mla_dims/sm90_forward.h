#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_loads.h"

// The forward. Grid (seqlen_q * ceil(num_heads / 64), batch), 256 threads, one CTA per SM: 64 heads
// of one query, whose keys pass by in tiles of 64.
//   Logits: each warpgroup those of 32 keys of the tile, [64, 32] in 16 registers a thread.
//   out: each warpgroup kHalf blocks of 64 columns, 32 kHalf registers a thread, rescaled when a
//   row's maximum grows. The next tile is gathered while this one is multiplied.
// Shared memory: blocks of q, two tiles of keys, P, and 2 KiB: 226 KiB at 576.
// Rounded to bfloat16: P, out, and what that left. Sums, maxima and lse are float32.
namespace patchbench::ops::sparse_mla_dims {

struct ForwardShared {
  SoftmaxShared softmax;
  int32_t index[2][kRows];  ///< of the keys, by tile
};

PB_CONSTEXPR int64_t forward_bytes(int head_dim_qk) {
  return (3 * num_blocks(head_dim_qk) + 1) * int64_t{kBlockBytes} +
         static_cast<int64_t>(sizeof(ForwardShared));
}

/// Logits to P: writes the warpgroup's half of P [64, 64] and returns in `alpha` what earlier sums
/// are worth. `index` is that of the tile.
PB_DEVICE void soften(float (&s)[16], float scale, const int32_t (&index)[kRows], const Fragment& f,
                      ForwardShared& shared, unsigned char* p, Softmax& state, float (&alpha)[2]) {
  PB_UNROLL
  for (int i = 0; i < 16; ++i) s[i] = index[f.key(i)] < 0 ? -INFINITY : s[i] * scale;
  float base[2];
  raise_top(s, f, shared.softmax, state, base, alpha);
  PB_UNROLL
  for (int i = 0; i < 16; i += 2) {
    const int half = i / 2 % 2;
    const float first = exp2_of(s[i] - base[half]), second = exp2_of(s[i + 1] - base[half]);
    const uint32_t rounded = pack(first, second);
    state.sum[half] += first + second;
    state.weight[half] += low_of(rounded) + high_of(rounded);
    *reinterpret_cast<uint32_t*>(p + in_block(f.row + 8 * half, 2 * f.key(i))) = rounded;
  }
}

/// out, what its rounding took, and lse, from the sums over all keys.
template <int kHalf>
PB_DEVICE void store_forward(const SparseMla& p, const SparseMlaResults& r, const Cta& cta,
                             const Fragment& f, const Softmax& state, ForwardShared& shared,
                             const float (&o)[32 * kHalf]) {
  float lse[2], inverse[2];
  finish(f, state, shared.softmax, lse, inverse);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    if (row >= cta.num_rows) continue;
    if (f.warpgroup == 0 && f.quad == 0) r.lse[cta.first_row + row] = lse[half];
    const int64_t first = (cta.first_row + row) * p.head_dim_v;
    PB_UNROLL
    for (int i = 2 * half; i < 32 * kHalf; i += 4) {
      const int column = f.warpgroup * kHalf * kColumns + f.column(i);
      if (column >= p.head_dim_v) continue;
      const float low = o[i] * inverse[half], high = o[i + 1] * inverse[half];
      const uint32_t rounded = pack(low, high);
      *reinterpret_cast<uint32_t*>(r.out + first + column) = rounded;
      *reinterpret_cast<uint32_t*>(r.out_remainder + first + column) =
          pack(low - low_of(rounded), high - high_of(rounded));
    }
  }
}

/// `storage`: forward_bytes at a multiple of 1024. kHalf: half the blocks of out, rounded up. Where
/// they are odd the second warpgroup's last block is of whatever follows the values, and not
/// stored.
template <int kHalf>
PB_DEVICE void forward_cta(const SparseMla& p, const SparseMlaResults& r, const Cta& cta,
                           unsigned char* storage) {
  const int blocks = num_blocks(p.head_dim_qk);
  const uint32_t q = shared_address(storage), tile_bytes = blocks * kBlockBytes;
  const uint32_t keys = q + tile_bytes, weights = keys + 2 * tile_bytes;
  unsigned char* p_tile = storage + 3 * tile_bytes;
  ForwardShared& shared = *reinterpret_cast<ForwardShared*>(p_tile + kBlockBytes);
  const Fragment f;
  const float scale = p.softmax_scale * kLog2e;
  const int64_t num_tiles = (p.topk + kRows - 1) / kRows;
  Softmax state;
  float o[32 * kHalf] = {};
  load_query(p, cta, q);
  if (num_tiles > 0) load_keys(p, cta, 0, keys, shared.index[0]);
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int stage = static_cast<int>(tile % 2);
    const uint32_t k = keys + stage * tile_bytes;
    wait_for_copies();
    fence_async_proxy();
    // The tile is whole; its predecessor's values, P and maxima are no longer read.
    sync_threads();
    float s[16];
    wgmma_fence(s);
    dot_rows(s, q, k + f.warpgroup * 32 * kRowBytes, blocks, false);
    wgmma_commit();
    if (tile + 1 < num_tiles)
      load_keys(p, cta, tile + 1, keys + (1 - stage) * tile_bytes, shared.index[1 - stage]);
    wgmma_wait(s);
    float alpha[2];
    soften(s, scale, shared.index[stage], f, shared, p_tile, state, alpha);
    if (any_in_warp(alpha[0] != 1.0f || alpha[1] != 1.0f)) {
      PB_UNROLL
      for (int i = 0; i < 32 * kHalf; ++i) o[i] *= alpha[i / 2 % 2];
    }
    fence_async_proxy();
    // Each warpgroup multiplies by both halves of P.
    sync_threads();
    wgmma_fence(o);
    multiply_rows<Major::kK, 64 * kHalf>(o, weights, k + f.warpgroup * kHalf * kBlockBytes, true);
    wgmma_commit();
    wgmma_wait(o);
  }
  store_forward<kHalf>(p, r, cta, f, state, shared, o);
}

}  // namespace patchbench::ops::sparse_mla_dims
