#pragma once
#include <cmath>
#include <cstdint>

#include "softmax.h"

// The backward of sparse multi-head latent attention, for any storage of its operands. 384 threads,
// one CTA per SM: 64 heads of one query; the keys come in tiles of 64. P is computed again from
// lse.
//   Warpgroups 0 and 1: warpgroup 1 computes dP, warpgroup 0 computes S, P and, with dP, dS: [64,
//   64], 32 registers a thread. Each then computes half of the columns of dQ, 16 registers a thread
//   for each block. They load the next K tile when both are done with this one.
//   Warpgroup 2: dKV, [64 keys, 64 columns] at a time, 32 registers a thread, added to memory in
//   float32, 16 bytes a thread, 64 heads at once. It needs P and dS but not K, and runs one tile
//   behind.
// Shared memory: blocks of q, grad_out, one K tile, P, dS, and 1.5 KiB: 225.5 KiB at 576/512.
// Rounded to bfloat16: dS, grad_q, and P where it is multiplied; dS is formed with P as it is. Sums
// are float32.
//
// Operands of a pack derive from CtaOperands and load what they own:
//   kBlocks: blocks of q.
//   kHasRemainder: ds_sum(row) is the sum of the rounded dS of a row (store_grad_q).
//   load_q_tile(): starts the copies of q and grad_out to shared memory.
//   read_slots(tile): reads the indices of the next tile to registers.
//   load_k_tile(tile): starts the copies of the keys, and stores their indices, -1 where invalid.
//   query_scale(row), key_scale(tile, key): scales of the bfloat16 values in shared memory; not 0.
// dS is multiplied by both scales, P by the scale of the key. Sums over keys are divided by the
// scale of the query, sums over heads by the scale of the key.
namespace patchbench::ops::sm90 {

constexpr int kBackwardThreads = 384, kDqThreads = 256;
/// Registers of a thread of warpgroup 2, and of warpgroups 0 and 1.
constexpr int kDkvRegisters = 72, kDqRegisters = (3 * kLaunchRegisters - kDkvRegisters) / 2;
/// kDqBarrier: all threads of warpgroups 0 and 1. kDsReady: P and dS are stored. kDsFree: P and dS
/// are no longer read. kDpReady: dP is stored.
enum BackwardBarrier { kDqBarrier = 1, kDsReady, kDsFree, kDpReady };

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
  store_delta(shared, row, delta);
  store_base(o, shared, row);
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

/// Stores dP - Delta for the thread that has the same P: the bfloat16 in the place of P, the
/// bfloat16 of the rest in the place of dS. 16 bits in all.
template <typename Operands>
PB_DEVICE void store_centered(const float (&grad_p)[32], const Operands& o, int64_t tile,
                              const BackwardShared& shared, const Fragment& f) {
  const float delta[2] = {shared.delta[f.row], shared.delta[f.row + 8]};
  PB_UNROLL
  for (int i = 0; i < 16; ++i) {
    const int at = 2 * i;
    const float low = grad_p[at] * o.key_scale(tile, f.column(at)) - delta[i % 2];
    const float high = grad_p[at + 1] * o.key_scale(tile, f.column(at + 1)) - delta[i % 2];
    const uint32_t pair = pack_bf16(low, high);
    pair_at(o.smem.p_tile(), f, i) = pair;
    pair_at(o.smem.ds_tile(), f, i) = pack_bf16(low - bf16_low(pair), high - bf16_high(pair));
  }
}

/// dP - Delta of kAtATime pairs, as store_centered left them.
constexpr int kAtATime = 2;
PB_DEVICE void load_centered(const BackwardSmem& smem, const Fragment& f, int first,
                             float (&centered)[2 * kAtATime]) {
  PB_UNROLL
  for (int i = 0; i < kAtATime; ++i) {
    const uint32_t pair = pair_at(smem.p_tile(), f, first + i);
    const uint32_t rest = pair_at(smem.ds_tile(), f, first + i);
    centered[2 * i] = bf16_low(pair) + bf16_low(rest);
    centered[2 * i + 1] = bf16_high(pair) + bf16_high(rest);
  }
}

/// Stores P and dS of a tile in the place of dP - Delta.
template <typename Operands>
PB_DEVICE void store_p_ds(const float (&p)[32], const Operands& o, int64_t tile,
                          const BackwardShared& shared, const Fragment& f) {
  float p_factor[2], ds_factor[2];
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    p_factor[half] = shared.p_factor[row];
    ds_factor[half] = o.p.softmax_scale * o.query_scale(row);
  }
  // Loads of several pairs come before their stores: a load waits for stores that may alias it.
  PB_UNROLL
  for (int first = 0; first < 16; first += kAtATime) {
    float centered[2 * kAtATime];
    load_centered(o.smem, f, first, centered);
    PB_UNROLL
    for (int i = 0; i < kAtATime; ++i) {
      const int at = 2 * (first + i), half = i % 2;
      float whole[2], ds[2];
      PB_UNROLL
      for (int e = 0; e < 2; ++e) {
        whole[e] = p_factor[half] * o.key_scale(tile, f.column(at + e)) * p[at + e];
        ds[e] = ds_factor[half] * whole[e] * centered[2 * i + e];
      }
      pair_at(o.smem.p_tile(), f, first + i) = pack_bf16(whole[0], whole[1]);
      pair_at(o.smem.ds_tile(), f, first + i) = pack_bf16(ds[0], ds[1]);
    }
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

/// Stores columns of grad_q from first_column on. The dS of a row add up to 0 but for rounding. The
/// error e of their sum is taken back in proportion to P: e sum_j P_j v_j = e out is subtracted
/// from the columns of V. sum_j P_j k_j of the other columns is not known.
template <typename Operands, int kCount>
PB_DEVICE void store_grad_q(const float (&d)[kCount], const Operands& o, const Fragment& f,
                            int first_column) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    if (row >= o.cta.num_rows) continue;
    const float inverse = 1.0f / o.query_scale(row);
    const float ds_sum = Operands::kHasRemainder ? o.ds_sum(row) : 0.0f;
    uint16_t* const to = o.g.grad_q + (o.cta.first_row + row) * o.p.head_dim_qk;
    const uint16_t* const out = o.g.out + (o.cta.first_row + row) * o.p.head_dim_v;
    // A load waits for stores that may alias it: the loads of 32 columns come before their stores.
    PB_UNROLL
    for (int first = 0; first < kCount; first += 16) {
      uint32_t mean[4] = {};
      PB_UNROLL
      for (int i = 0; i < 4; ++i) {
        // Any valid address where the column is not one of V: a branch would part the loads.
        const int column = first_column + f.column(first + 4 * i);
        const bool is_value = column < o.p.head_dim_v;
        const auto* from = reinterpret_cast<const uint32_t*>(out + (is_value ? column : 0));
        if constexpr (Operands::kHasRemainder) mean[i] = is_value ? *from : 0;
      }
      PB_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = first + 4 * i + 2 * half, column = first_column + f.column(at);
        if (column < o.p.head_dim_qk)
          *reinterpret_cast<uint32_t*>(to + column) =
              pack_bf16(inverse * d[at] - ds_sum * bf16_low(mean[i]),
                        inverse * d[at + 1] - ds_sum * bf16_high(mean[i]));
      }
    }
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
  template <typename Operands>
  PB_DEVICE void store(const Operands& o, const Fragment& f) const {
    if constexpr (kWhole > 0) store_grad_q(whole, o, f, first_whole(f) * kColumns);
    if constexpr (kIsOdd)
      store_grad_q(rest, o, f, kWhole * kColumns + f.warpgroup * (kColumns / 2));
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
  PB_DEVICE float ds_sum(int row) const { return smem.shared().ds_sum[row]; }
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
      compute_p(d, o, tile, shared, f);
      named_barrier_sync(kDpReady, kDqThreads);
      store_p_ds(d, o, tile, shared, f);
    } else {
      // Warpgroup 2 no longer reads P and dS of the previous tile.
      if (tile > 0) named_barrier_sync(kDsFree, kBackwardThreads / 3 * 2);
      store_centered(d, o, tile, shared, f);
      named_barrier_arrive(kDpReady, kDqThreads);
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
      atomic_add_dkv(d, block, head_dim_qk, rows);
      issue_dkv<true>(d, smem, block + 1);
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
    warpgroup_reg_alloc<kDqRegisters>();
    compute_ds_dq(o, num_tiles);
  } else {
    warpgroup_reg_dealloc<kDkvRegisters>();
    accumulate_dkv(o, num_tiles);
  }
}

}  // namespace patchbench::ops::sm90
