#pragma once
#include <cmath>
#include <cstdint>

#include "../kernel/sm90/softmax.h"
#include "sm90_loads.h"

// Shared memory of the backward, and what does not depend on who computes it.
namespace patchbench::ops::sparse_mla_dims {

constexpr int kBackwardThreads = 384;

struct BackwardShared {
  float delta[kRows];
  /// P = exp2(z log2(e) - base) * p_factor, where base is the whole part of lse.
  float base[kRows], p_factor[kRows];
  int32_t index[2][kRows];  ///< of the keys, by tile
  float ds_sum[kRows];      ///< of the rounded dS of a row; 0 where Delta is of a rounded out
};

PB_CONSTEXPR int64_t backward_bytes(int head_dim_qk, int head_dim_v) {
  return (2 * num_blocks(head_dim_qk) + num_blocks(head_dim_v) + 2) * int64_t{kBlockBytes} +
         static_cast<int64_t>(sizeof(BackwardShared));
}

/// Shared memory of a CTA.
struct BackwardSmem {
  int blocks, value_blocks;
  unsigned char* storage;
  PB_DEVICE uint32_t q_tile() const { return shared_address(storage); }
  PB_DEVICE uint32_t grad_out_tile() const { return q_tile() + blocks * kBlockBytes; }
  PB_DEVICE uint32_t k_tile() const { return grad_out_tile() + value_blocks * kBlockBytes; }
  PB_DEVICE unsigned char* p_tile() const {
    return storage + (2 * blocks + value_blocks) * kBlockBytes;
  }
  PB_DEVICE unsigned char* ds_tile() const { return p_tile() + kBlockBytes; }
  PB_DEVICE BackwardShared& shared() const {
    return *reinterpret_cast<BackwardShared*>(ds_tile() + kBlockBytes);
  }
};

PB_DEVICE float dot_pair(uint32_t a, uint32_t b, uint32_t c) {
  return bf16_low(a) * (bf16_low(b) + bf16_low(c)) + bf16_high(a) * (bf16_high(b) + bf16_high(c));
}

/// Adds <a, b + c> over the 8 elements of each.
PB_DEVICE void add_dot(float& sum, const Vec128& a, const Vec128& b, const Vec128& c) {
  PB_UNROLL
  for (int word = 0; word < 4; ++word) sum += dot_pair(a.words[word], b.words[word], c.words[word]);
}

/// Stores what lse gives for a row: the base of its exponents, and the factor of P, 0 without a
/// head.
template <typename Operands, typename Shared>
PB_DEVICE void store_base(const Operands& o, Shared& shared, int row) {
  const float lse = row < o.cta.num_rows ? o.g.lse[o.cta.first_row + row] : 0.0f;
  shared.base[row] = floorf(lse);
  shared.p_factor[row] = row < o.cta.num_rows ? exp2_of(floorf(lse) - lse) : 0.0f;
}

/// Stores Delta of a row, and that no dS was summed yet.
PB_DEVICE void store_delta(BackwardShared& shared, int row, float delta) {
  shared.delta[row] = delta;
  shared.ds_sum[row] = 0.0f;
}

/// P of a tile from its logits, relative to the base of the row; 0 for an invalid key.
template <typename Operands>
PB_DEVICE void compute_p(float (&s)[32], const Operands& o, int64_t tile,
                         const BackwardShared& shared, const Fragment& f) {
  const int32_t(&index)[kRows] = shared.index[tile % 2];
  float scale[2];
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    scale[half] = o.p.softmax_scale * kLog2e * o.query_scale(f.row + 8 * half);
  PB_UNROLL
  for (int i = 0; i < 32; ++i) {
    const int half = i / 2 % 2, key = f.column(i);
    const float z = s[i] * o.key_scale(tile, key);
    const float power = exp2_ftz(fmaf(z, scale[half], -shared.base[f.row + 8 * half]));
    s[i] = index[key] < 0 ? 0.0f : power;
  }
}

/// Pair i of a thread in a packed [64 heads, 64 keys] tile in shared memory.
PB_DEVICE uint32_t& pair_at(unsigned char* tile, const Fragment& f, int i) {
  return *reinterpret_cast<uint32_t*>(tile +
                                      swizzled_offset(f.row + i % 2 * 8, 2 * f.column(2 * i)));
}

}  // namespace patchbench::ops::sparse_mla_dims
