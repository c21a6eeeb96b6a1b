#pragma once
#include <cmath>
#include <cstdint>

#include "softmax.h"

// The backward of sparse multi-head latent attention, for any storage of its operands. 384 threads,
// one CTA per SM: 64 heads of one query; the keys come in tiles of 64. P is computed again from
// lse.
//   Warpgroups 0 and 1: warpgroup 0 computes S and P, warpgroup 1 computes dP and, with P, dS: [64,
//   64], 32 registers a thread. Each then computes half of the columns of dQ, 16 registers a thread
//   for each block. They load the next K tile when both are done with this one.
//   Warpgroup 2: dKV, [64 keys, 64 columns] at a time, 32 registers a thread, added to memory in
//   float32, 16 bytes a thread, 64 heads at once. It needs P and dS but not K, and runs one tile
//   behind.
// Shared memory: blocks of q, grad_out, one K tile, P, dS, and 1.25 KiB: 225 KiB at 576/512.
// Rounded to bfloat16: P, dS, grad_q. Sums are float32.
//
// Operands of a pack derive from CtaOperands and load what they own:
//   kBlocks: blocks of q.
//   kOverlapsAdds: the adds of one dKV block run during the product of the next. This gains up to 4
//   % where operands are copied; where they are converted it loses 4 to 9 % to register use.
//   load_q_tile(): starts the copies of q and grad_out to shared memory.
//   read_slots(tile): reads the indices of the next tile to registers.
//   load_k_tile(tile): starts the copies of the keys, and stores their indices, -1 where invalid.
//   query_scale(row), key_scale(tile, key): scales of the bfloat16 values in shared memory; not 0.
// dS is multiplied by both scales, P by the scale of the key. Sums over keys are divided by the
// scale of the query, sums over heads by the scale of the key.
namespace patchbench::ops::sm90 {

constexpr int kBackwardThreads = 384, kDqThreads = 256;
/// Registers of a thread of warpgroup 2, and of warpgroups 0 and 1.
template <typename Operands>
constexpr int kDkvRegisters = Operands::kOverlapsAdds ? 88 : 72;
template <typename Operands>
constexpr int kDqRegisters = (3 * kLaunchRegisters - kDkvRegisters<Operands>) / 2;
/// kDqBarrier: all threads of warpgroups 0 and 1. kDsReady: P and dS are stored. kDsFree: P and dS
/// are no longer read. kPReady: P is stored.
enum BackwardBarrier { kDqBarrier = 1, kDsReady, kDsFree, kPReady };

struct BackwardShared {
  float delta[kRows];
  /// P = exp2(z log2(e) - base) * p_factor, where base is the whole part of lse.
  float base[kRows], p_factor[kRows];
  int32_t index[2][kRows];  ///< of the keys, by tile
};

PB_CONSTEXPR int64_t backward_bytes(int head_dim_qk, int head_dim_v) {
  return (2 * num_blocks(head_dim_qk) + num_blocks(head_dim_v) + 2) * int64_t{kBlockBytes} +
         static_cast<int64_t>(sizeof(BackwardShared));
}

PB_DEVICE float dot_pair(uint32_t a, uint32_t b, uint32_t c) {
  return bf16_low(a) * (bf16_low(b) + bf16_low(c)) + bf16_high(a) * (bf16_high(b) + bf16_high(c));
}

/// Delta = <grad_out, out + out_remainder> and lse of the heads of the CTA, four threads a head.
template <typename Operands>
PB_DEVICE void load_delta_and_lse(const Operands& o, BackwardShared& shared) {
  const auto& g = o.g;
  const int row = thread_index() / 4, quarter = thread_index() % 4;
  float delta = 0.0f;
  if (row < o.cta.num_rows) {
    const int64_t first = (o.cta.first_row + row) * o.p.head_dim_v;
    const auto pair_at = [&](const uint16_t* from, int column) {
      return *reinterpret_cast<const uint32_t*>(from + first + column);
    };
    for (int column = 2 * quarter; column < o.p.head_dim_v; column += 8)
      delta += dot_pair(pair_at(g.grad_out, column), pair_at(g.out, column),
                        g.out_remainder == nullptr ? 0 : pair_at(g.out_remainder, column));
  }
  delta = quad_sum(delta);
  if (quarter != 0) return;
  shared.delta[row] = delta;
  const float lse = row < o.cta.num_rows ? g.lse[o.cta.first_row + row] : 0.0f;
  shared.base[row] = floorf(lse);
  shared.p_factor[row] = row < o.cta.num_rows ? exp2_of(floorf(lse) - lse) : 0.0f;
}

/// P of a tile from its logits, packed to bfloat16, and P as the forward rounded it.
template <typename Operands>
PB_DEVICE void compute_p(const float (&s)[32], const Operands& o, int64_t tile,
                         const BackwardShared& shared, const Fragment& f, uint32_t (&p)[16],
                         uint32_t (&rounded)[16]) {
  const int32_t(&index)[kRows] = shared.index[tile % 2];
  float scale[2];
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    scale[half] = o.p.softmax_scale * kLog2e * o.query_scale(f.row + 8 * half);
  PB_UNROLL
  for (int i = 0; i < 32; i += 2) {
    const int half = i / 2 % 2, row = f.row + 8 * half, key = f.column(i);
    float unscaled[2], factor[2];
    PB_UNROLL
    for (int e = 0; e < 2; ++e) {
      const float key_scale = o.key_scale(tile, key + e);
      const float z = s[i + e] * key_scale;
      const float power = exp2_ftz(fmaf(z, scale[half], -shared.base[row]));
      unscaled[e] = index[key + e] < 0 ? 0.0f : power;
      factor[e] = shared.p_factor[row] * key_scale;
    }
    rounded[i / 2] = pack_bf16(unscaled[0], unscaled[1]);
    p[i / 2] = pack_bf16(factor[0] * unscaled[0], factor[1] * unscaled[1]);
  }
}

/// Pair i of a thread in a packed [64 heads, 64 keys] tile in shared memory.
PB_DEVICE uint32_t& pair_at(unsigned char* tile, const Fragment& f, int i) {
  return *reinterpret_cast<uint32_t*>(tile +
                                      swizzled_offset(f.row + i % 2 * 8, 2 * f.column(2 * i)));
}

/// Replaces P, as the forward rounded it, by dS. out is a mean with exactly these P, so Delta fits
/// them, and sum_j dS_j is 0 up to the rounding of dS.
template <typename Operands>
PB_DEVICE void compute_ds(const float (&grad_p)[32], const Operands& o, int64_t tile,
                          const BackwardShared& shared, const Fragment& f, unsigned char* ds_tile) {
  float factor[2], delta[2];
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    factor[half] = o.p.softmax_scale * shared.p_factor[row] * o.query_scale(row);
    delta[half] = shared.delta[row];
  }
  // Loads of several pairs come before their stores: a load waits for stores that may alias it.
  constexpr int kAtATime = 4;
  PB_UNROLL
  for (int first = 0; first < 16; first += kAtATime) {
    uint32_t pairs[kAtATime];
    PB_UNROLL
    for (int i = 0; i < kAtATime; ++i) pairs[i] = pair_at(ds_tile, f, first + i);
    PB_UNROLL
    for (int i = 0; i < kAtATime; ++i) {
      const int at = 2 * (first + i), half = i % 2;
      const float low = o.key_scale(tile, f.column(at)), high = o.key_scale(tile, f.column(at + 1));
      pairs[i] = pack_bf16(
          factor[half] * low * bf16_low(pairs[i]) * (grad_p[at] * low - delta[half]),
          factor[half] * high * bf16_high(pairs[i]) * (grad_p[at + 1] * high - delta[half]));
    }
    PB_UNROLL
    for (int i = 0; i < kAtATime; ++i) pair_at(ds_tile, f, first + i) = pairs[i];
  }
}

/// Exchanges values with the thread `mask` away: bit `bit` of the index and bit `mask` of the
/// thread index change roles.
PB_DEVICE void butterfly_exchange(float (&d)[32], int bit, int mask) {
  const bool is_upper = (thread_index() & mask) != 0;
  PB_UNROLL
  for (int i = 0; i < 32; ++i) {
    if ((i & bit) != 0) continue;
    const float other = shfl_xor_sync(is_upper ? d[i] : d[i + bit], mask);
    if (is_upper) {
      d[i] = other;
    } else {
      d[i + bit] = other;
    }
  }
}

/// Rows of grad_kv to which a thread adds: keys 2 (t % 32 / 8) + 16 (t % 128 / 32) and 1, 8, 9
/// further; null for an invalid index. Sums are divided by the scale of the key.
struct DkvRows {
  float* to[4];
  float inverse[4];
  template <typename Operands>
  PB_DEVICE DkvRows(const Operands& o, int64_t tile) {
    const int first = thread_index() % 128 / 32 * 16 + thread_index() % 32 / 8 * 2;
    PB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = first + i % 2 + i / 2 * 8;
      const int32_t key = o.smem.shared().index[tile % 2][row];
      to[i] =
          key < 0 ? nullptr : o.g.grad_kv + (o.cta.batch * o.p.seqlen_k + key) * o.p.head_dim_qk;
      inverse[i] = 1.0f / o.key_scale(tile, row);
    }
  }
};

/// Adds d, [64 keys, 64 columns], to memory. Eight consecutive threads add 128 bytes of one row.
PB_DEVICE void atomic_add_dkv(float (&d)[32], int block, int head_dim_qk, const DkvRows& rows) {
  // Column bit 1 comes from the thread index; column bits 3 and 4 go to the thread index, in
  // exchange for it and for bit 0 of the row.
  butterfly_exchange(d, 4, 1);
  butterfly_exchange(d, 8, 4);
  const int lane = thread_index() % 32;
  const int first = block * kColumns + lane / 4 % 2 * 16 + lane % 2 * 8 + lane / 2 % 2 * 4;
  PB_UNROLL
  for (int i = 0; i < 8; ++i) {
    const int at = i / 4 * 16 + i % 2 * 8 + i / 2 % 2 * 2, column = first + i / 4 * 32;
    float* const to = rows.to[i % 4];
    const float inverse = rows.inverse[i % 4];
    if (to == nullptr || column >= head_dim_qk) continue;
    atomic_add_f32x4(to + column, inverse * d[at], inverse * d[at + 1], inverse * d[at + 4],
                     inverse * d[at + 5]);
  }
}

/// One warpgroup's half of the columns of grad_q. The first warpgroup has the first blocks, the
/// second one the last blocks. If the count is odd, each has half of the middle block.
template <int kBlocks>
struct DqAccumulator {
  static constexpr int kWhole = kBlocks / 2;
  static constexpr bool kIsOdd = kBlocks % 2 == 1;
  float whole[kWhole > 0 ? 32 * kWhole : 1] = {};
  float rest[16] = {};

  PB_DEVICE static int first_whole(const Fragment& f) {
    return f.warpgroup == 0 ? 0 : kWhole + (kIsOdd ? 1 : 0);
  }
  PB_DEVICE void add(const Fragment& f, uint32_t ds_tile, uint32_t k_tile) {
    wgmma_fence(whole, rest);
    if constexpr (kWhole > 0)
      mma_ab<Major::kK, 64 * kWhole>(whole, ds_tile, k_tile + first_whole(f) * kBlockBytes, true);
    if constexpr (kIsOdd)
      mma_ab<Major::kK, 32>(rest, ds_tile,
                            k_tile + kWhole * kBlockBytes + f.warpgroup * (kRowBytes / 2), true);
    wgmma_commit();
    wgmma_wait(whole, rest);
  }
  template <typename Operands, int kCount>
  PB_DEVICE static void store(const float (&d)[kCount], const Operands& o, const Fragment& f,
                              int first_column) {
    const int head_dim_qk = o.p.head_dim_qk;
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = f.row + 8 * half;
      const float inverse = 1.0f / o.query_scale(row);
      uint16_t* const to = o.g.grad_q + (o.cta.first_row + row) * head_dim_qk + first_column;
      PB_UNROLL
      for (int i = 2 * half; i + 1 < kCount; i += 4) {
        if (row < o.cta.num_rows && first_column + f.column(i) < head_dim_qk)
          *reinterpret_cast<uint32_t*>(to + f.column(i)) =
              pack_bf16(inverse * d[i], inverse * d[i + 1]);
      }
    }
  }
  template <typename Operands>
  PB_DEVICE void store(const Operands& o, const Fragment& f) const {
    store(whole, o, f, first_whole(f) * kColumns);
    if constexpr (kIsOdd) store(rest, o, f, kWhole * kColumns + f.warpgroup * (kColumns / 2));
  }
};

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

/// The problem and the heads of a CTA.
template <typename Problem, typename Grads, typename Cta>
struct CtaOperands {
  const Problem& p;
  const Grads& g;
  Cta cta;
  BackwardSmem smem;

  /// `storage`: shared memory, aligned to 1024 bytes.
  PB_DEVICE CtaOperands(const Problem& problem, const Grads& grads, const Cta& heads,
                        unsigned char* storage)
      : p(problem),
        g(grads),
        cta(heads),
        smem{num_blocks(problem.head_dim_qk), num_blocks(problem.head_dim_v), storage} {}
};

/// Warpgroups 0 and 1: P, dS and grad_q.
template <typename Operands>
PB_DEVICE void compute_ds_dq(Operands& o, int64_t num_tiles) {
  const BackwardSmem& smem = o.smem;
  const uint32_t k = smem.k_tile();
  BackwardShared& shared = smem.shared();
  o.load_q_tile();
  o.read_slots(0);
  if (num_tiles > 0) o.load_k_tile(0);
  load_delta_and_lse(o, shared);
  Fragment f;
  DqAccumulator<Operands::kBlocks> grad_q;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    cp_async_wait_all();
    fence_async_proxy();
    // The K tile is complete.
    named_barrier_sync(kDqBarrier, kDqThreads);
    o.read_slots(tile + 1);
    float d[32];
    wgmma_fence(d);
    mma_abt(d, f.warpgroup == 0 ? smem.q_tile() : smem.grad_out_tile(), k,
            f.warpgroup == 0 ? smem.blocks : smem.value_blocks, false);
    wgmma_commit();
    wgmma_wait(d);
    f.rematerialize();
    if (f.warpgroup == 0) {
      uint32_t p[16], rounded[16];
      compute_p(d, o, tile, shared, f, p, rounded);
      // Warpgroup 2 no longer reads P and dS of the previous tile.
      if (tile > 0) named_barrier_sync(kDsFree, kBackwardThreads / 3 * 2);
      PB_UNROLL
      for (int i = 0; i < 16; ++i) {
        pair_at(smem.p_tile(), f, i) = p[i];
        pair_at(smem.ds_tile(), f, i) = rounded[i];
      }
      named_barrier_arrive(kPReady, kDqThreads);
    } else {
      named_barrier_sync(kPReady, kDqThreads);
      compute_ds(d, o, tile, shared, f, smem.ds_tile());
    }
    fence_async_proxy();
    named_barrier_arrive(kDsReady, kBackwardThreads);
    // Each warpgroup reads both halves of dS.
    named_barrier_sync(kDqBarrier, kDqThreads);
    grad_q.add(f, shared_address(smem.ds_tile()), k);
    // Both warpgroups are done with the K tile.
    named_barrier_sync(kDqBarrier, kDqThreads);
    if (tile + 1 < num_tiles) o.load_k_tile(tile + 1);
  }
  grad_q.store(o, f);
}

/// Issues the products of one dKV block, [64 keys, 64 columns]; kHasValues: its columns are also
/// columns of V.
template <bool kHasValues>
PB_DEVICE void issue_dkv(float (&d)[32], const BackwardSmem& smem, int block) {
  wgmma_fence(d);
  mma_ab<Major::kMn, 64>(d, shared_address(smem.ds_tile()), smem.q_tile() + block * kBlockBytes,
                         false);
  if constexpr (kHasValues)
    mma_ab<Major::kMn, 64>(d, shared_address(smem.p_tile()),
                           smem.grad_out_tile() + block * kBlockBytes, true);
  wgmma_commit();
}

/// Warpgroup 2: grad_kv.
template <typename Operands>
PB_DEVICE void accumulate_dkv(const Operands& o, int64_t num_tiles) {
  const BackwardSmem& smem = o.smem;
  const int head_dim_qk = o.p.head_dim_qk, last = smem.value_blocks - 1;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    named_barrier_sync(kDsReady, kBackwardThreads);
    const DkvRows rows(o, tile);
    float d[32];
    for (int block = last + 1; block < smem.blocks; ++block) {
      issue_dkv<false>(d, smem, block);
      wgmma_wait(d);
      atomic_add_dkv(d, block, head_dim_qk, rows);
    }
    issue_dkv<true>(d, smem, 0);
    for (int block = 0; block < last; ++block) {
      wgmma_wait(d);
      if constexpr (Operands::kOverlapsAdds) {
        float done[32];
        PB_UNROLL
        for (int i = 0; i < 32; ++i) done[i] = d[i];
        // The block that is added must be in other registers than the next product.
        warpgroup_fence_operand(done);
        issue_dkv<true>(d, smem, block + 1);
        atomic_add_dkv(done, block, head_dim_qk, rows);
      } else {
        atomic_add_dkv(d, block, head_dim_qk, rows);
        issue_dkv<true>(d, smem, block + 1);
      }
    }
    wgmma_wait(d);
    if (tile + 1 < num_tiles) named_barrier_arrive(kDsFree, kBackwardThreads / 3 * 2);
    atomic_add_dkv(d, last, head_dim_qk, rows);
  }
}

template <typename Operands>
PB_DEVICE void backward_cta(Operands& o) {
  const int64_t num_tiles = (o.p.topk + kRows - 1) / kRows;
  if (warp_broadcast(thread_index() / 128) < 2) {
    warpgroup_reg_alloc<kDqRegisters<Operands>>();
    compute_ds_dq(o, num_tiles);
  } else {
    warpgroup_reg_dealloc<kDkvRegisters<Operands>>();
    accumulate_dkv(o, num_tiles);
  }
}

}  // namespace patchbench::ops::sm90
