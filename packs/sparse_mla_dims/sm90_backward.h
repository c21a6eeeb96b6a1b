#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_loads.h"

// The backward. Grid and threads as the forward; P is taken anew from lse.
//   Logits and grad_out V^T: each warpgroup those of 32 keys, 2 x 16 registers a thread.
//   grad_q: each warpgroup kHalf blocks of 64 columns, 32 kHalf registers a thread.
//   grad_kv: [64 keys, 64 columns] at a time, every second block a warpgroup, 32 registers a
//   thread; added to memory in float32, 16 bytes a thread, 64 heads at once. The next tile is
//   gathered meanwhile, for this step needs no keys.
// Shared memory: blocks of q, grad_out, one tile of keys, P, dS, and 1.25 KiB: 225 KiB at 576/512.
// Rounded to bfloat16: P, dS, grad_q. Sums are float32.
namespace patchbench::ops::sparse_mla_dims {

struct BackwardShared {
  float delta[kRows];
  float base[kRows], share[kRows];  ///< P = exp2(z log2(e) - base) share; base is a whole number
  int32_t index[2][kRows];          ///< of the keys, by tile
};

PB_CONSTEXPR int64_t backward_bytes(int head_dim_qk, int head_dim_v) {
  return (2 * num_blocks(head_dim_qk) + num_blocks(head_dim_v) + 2) * int64_t{kBlockBytes} +
         static_cast<int64_t>(sizeof(BackwardShared));
}

PB_DEVICE float dot_pair(uint32_t a, uint32_t b, uint32_t c) {
  return low_of(a) * (low_of(b) + low_of(c)) + high_of(a) * (high_of(b) + high_of(c));
}

/// Delta = <grad_out, out + out_remainder> and lse of the CTA's heads, four threads a head.
PB_DEVICE void load_sums(const SparseMla& p, const SparseMlaGrads& g, const Cta& cta,
                         BackwardShared& shared) {
  const int row = thread_index() / 4, quarter = thread_index() % 4;
  float delta = 0.0f;
  if (row < cta.num_rows) {
    const int64_t first = (cta.first_row + row) * p.head_dim_v;
    const auto pair_at = [&](const uint16_t* from, int column) {
      return *reinterpret_cast<const uint32_t*>(from + first + column);
    };
    for (int column = 2 * quarter; column < p.head_dim_v; column += 8)
      delta += dot_pair(pair_at(g.grad_out, column), pair_at(g.out, column),
                        g.out_remainder == nullptr ? 0 : pair_at(g.out_remainder, column));
  }
  delta = quad_sum(delta);
  if (quarter != 0) return;
  shared.delta[row] = delta;
  const float lse = row < cta.num_rows ? g.lse[cta.first_row + row] : 0.0f;
  shared.base[row] = floorf(lse);
  shared.share[row] = row < cta.num_rows ? exp2_of(floorf(lse) - lse) : 0.0f;
}

/// P and dS of the warpgroup's half of a tile. dS is formed with P as the forward rounded it: out
/// is a mean with those weights, so that Delta is theirs, and sum_j dS_j is 0 but for the rounding
/// of dS.
PB_DEVICE void differentiate(const float (&s)[16], const float (&grad_p)[16], float softmax_scale,
                             const int32_t (&index)[kRows], const BackwardShared& shared,
                             const Fragment& f, unsigned char* p, unsigned char* ds) {
  PB_UNROLL
  for (int i = 0; i < 16; i += 2) {
    const int row = f.row + i / 2 % 2 * 8, key = f.key(i);
    float weight[2];
    PB_UNROLL
    for (int e = 0; e < 2; ++e) {
      const float logit = s[i + e] * (softmax_scale * kLog2e);
      weight[e] = index[key + e] < 0 ? 0.0f : exp2_of(logit - shared.base[row]);
    }
    const uint32_t rounded = pack(weight[0], weight[1]);
    const float share = shared.share[row], factor = softmax_scale * share;
    const float first = factor * low_of(rounded) * (grad_p[i] - shared.delta[row]);
    const float second = factor * high_of(rounded) * (grad_p[i + 1] - shared.delta[row]);
    const uint32_t at = in_block(row, 2 * key);
    *reinterpret_cast<uint32_t*>(p + at) = pack(share * weight[0], share * weight[1]);
    *reinterpret_cast<uint32_t*>(ds + at) = pack(first, second);
  }
}

/// Adds [64 keys, 64 columns] to the rows of grad_kv that `index` names.
PB_DEVICE void add_block(const float (&d)[32], const SparseMla& p, const Cta& cta, int block,
                         const int32_t (&index)[kRows], const Fragment& f, float* grad_kv) {
  const bool is_odd = f.quad % 2 == 1;
  const int32_t key = index[f.row + (is_odd ? 8 : 0)];
  float* const to = grad_kv + (cta.batch * p.seqlen_k + key) * p.head_dim_qk;
  PB_UNROLL
  for (int i = 0; i < 32; i += 4) {
    // Neighbours trade pairs: the even one gets four columns of the upper row, the odd one those
    // of the lower row.
    const float first = shuffle_xor(is_odd ? d[i] : d[i + 2], 1);
    const float second = shuffle_xor(is_odd ? d[i + 1] : d[i + 3], 1);
    const int column = block * kColumns + i * 2 + f.quad / 2 * 4;
    if (key < 0 || column >= p.head_dim_qk) continue;
    if (is_odd) {
      add_four(to + column, first, second, d[i + 2], d[i + 3]);
    } else {
      add_four(to + column, d[i], d[i + 1], first, second);
    }
  }
}

template <int kHalf>
PB_DEVICE void store_grad_q(const SparseMla& p, const SparseMlaGrads& g, const Cta& cta,
                            const Fragment& f, const float (&dq)[kHalf][32]) {
  PB_UNROLL
  for (int b = 0; b < kHalf; ++b) {
    PB_UNROLL
    for (int i = 0; i < 32; i += 2) {
      const int row = f.row + i / 2 % 2 * 8;
      const int column = (f.warpgroup * kHalf + b) * kColumns + f.column(i);
      if (row >= cta.num_rows || column >= p.head_dim_qk) continue;
      *reinterpret_cast<uint32_t*>(g.grad_q + (cta.first_row + row) * p.head_dim_qk + column) =
          pack(dq[b][i], dq[b][i + 1]);
    }
  }
}

/// `storage`: backward_bytes at a multiple of 1024. kHalf: half the blocks of grad_q, rounded up.
template <int kHalf>
PB_DEVICE void backward_cta(const SparseMla& p, const SparseMlaGrads& g, const Cta& cta,
                            unsigned char* storage) {
  const int blocks = num_blocks(p.head_dim_qk), value_blocks = num_blocks(p.head_dim_v);
  const uint32_t q = shared_address(storage), grad_out = q + blocks * kBlockBytes;
  const uint32_t k = grad_out + value_blocks * kBlockBytes;
  const uint32_t weights = k + blocks * kBlockBytes, slopes = weights + kBlockBytes;
  unsigned char* p_tile = storage + (weights - q);
  BackwardShared& shared = *reinterpret_cast<BackwardShared*>(p_tile + 2 * kBlockBytes);
  const Fragment f;
  const int64_t num_tiles = (p.topk + kRows - 1) / kRows;
  float dq[kHalf][32] = {};
  load_query(p, cta, q);
  load_rows(grad_out, p.head_dim_v, p.q, [&](int row) {
    return row < cta.num_rows ? g.grad_out + (cta.first_row + row) * p.head_dim_v : nullptr;
  });
  if (num_tiles > 0) load_keys(p, cta, 0, k, shared.index[0]);
  load_sums(p, g, cta, shared);
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const auto& index = shared.index[tile % 2];
    wait_for_copies();
    fence_async_proxy();
    // The tile is whole, and nobody reads the last one's P and dS.
    sync_threads();
    float s[16], grad_p[16];
    const uint32_t half = f.warpgroup * 32 * kRowBytes;
    wgmma_fence(s, grad_p);
    dot_rows(s, q, k + half, blocks, false);
    dot_rows(grad_p, grad_out, k + half, value_blocks, false);
    wgmma_commit();
    wgmma_wait(s, grad_p);
    differentiate(s, grad_p, p.softmax_scale, index, shared, f, p_tile, p_tile + kBlockBytes);
    fence_async_proxy();
    // Each warpgroup multiplies by both halves of P and dS.
    sync_threads();
    wgmma_fence(dq);
    PB_UNROLL
    for (int b = 0; b < kHalf; ++b) {
      const int block = f.warpgroup * kHalf + b;
      if (block < blocks)
        multiply_rows<Major::kK, 64>(dq[b], slopes, k + block * kBlockBytes, true);
    }
    wgmma_commit();
    wgmma_wait(dq);
    // The keys have been used by both.
    sync_threads();
    if (tile + 1 < num_tiles) load_keys(p, cta, tile + 1, k, shared.index[(tile + 1) % 2]);
    for (int block = f.warpgroup; block < blocks; block += 2) {
      float d[32];
      wgmma_fence(d);
      multiply_rows<Major::kMn, 64>(d, slopes, q + block * kBlockBytes, false);
      if (block < value_blocks)
        multiply_rows<Major::kMn, 64>(d, weights, grad_out + block * kBlockBytes, true);
      wgmma_commit();
      wgmma_wait(d);
      add_block(d, p, cta, block, index, f, g.grad_kv);
    }
  }
  store_grad_q<kHalf>(p, g, cta, f, dq);
}

}  // namespace patchbench::ops::sparse_mla_dims
