#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_cluster_loads.h"

// The backward of bfloat16 where uses_cluster says so: head_dim_v 512, head_dim_qk 512 or 576. A
// cluster of two CTAs, 384 threads each, one CTA per SM: 128 heads of one query; the keys come in
// tiles of 64. Each CTA has half of the columns: 256 that are also columns of V, and 32 or none
// that are not. So a row of grad_kv is added to once for 128 heads, and a key is read once. A CTA
// owns 32 keys of a tile: rows 0 to 31 of its K tile. Three warpgroups:
//   Warpgroups 0 and 1, 64 heads each: S and dP over the columns of the CTA. The half that belongs
//   to the keys of the other CTA is sent to it. The sums give P and dS of the own keys, stored in
//   both CTAs. Then dQ of the columns of the CTA. They load the next K tile when nothing reads this
//   one.
//   Warpgroup 2: dKV, [64 keys, 64 columns] at a time, added to memory in float32, 128 heads at
//   once. It needs P and dS but not K, and runs one tile behind.
// A tile without a valid index is skipped. grad_kv is summed in the order of kGroupColumns.
// Registers of a thread of warpgroups 0 and 1: 144 for dQ, 32 for dP, 16 for P. Shared memory: q 72
// KiB, grad_out 64, K 40, P and dS 32, received partial sums 16, 2.7 for the rest.
// Rounded to bfloat16: dS, grad_q, grad_kv, and P where it is multiplied; dS is formed with P as it
// is. Sums are float32.
namespace patchbench::ops::sparse_mla_dims {

/// The exchange of partial sums: a thread sends to the same thread of the other CTA.
struct Exchange {
  uint32_t here;  ///< this thread's place in the received sums
  Mbarrier& full;
  template <typename Operands>
  PB_DEVICE explicit Exchange(const Operands& o)
      : here(o.smem.received(thread_index() / 32) + thread_index() % 32 * 16),
        full(o.smem.shared().received[thread_index() / 32]) {}
  /// Sends 4 kCount values to the other CTA: they belong to its keys.
  template <int kCount, typename Operands>
  PB_DEVICE void send(const Operands& o, const float* values) const {
    const uint32_t to = o.other(here), barrier = o.other(full);
    PB_UNROLL
    for (int i = 0; i < kCount; ++i)
      store_async_128(to + i * 512,
                      {as_bits(values[4 * i]), as_bits(values[4 * i + 1]),
                       as_bits(values[4 * i + 2]), as_bits(values[4 * i + 3])},
                      barrier);
  }
  /// values = combine(values, what the other CTA has sent).
  template <int kCount, typename Combine>
  PB_DEVICE void receive(float* values, int parity, const Combine& combine) const {
    if (thread_index() % 32 == 0) mbarrier_arrive_expect(full, kCount * 512);
    mbarrier_wait_cluster(full, parity);
    PB_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const Vec128 other = load_shared_128(here + i * 512);
      PB_UNROLL
      for (int e = 0; e < 4; ++e)
        values[4 * i + e] = combine(values[4 * i + e], as_float(other.words[e]));
    }
  }
};
PB_DEVICE float sum_of(float a, float b) { return a + b; }

/// This CTA's part of the exponent of P, relative to the base of the row, for its keys.
template <typename Operands>
PB_DEVICE void scale_own_s(const float (&s)[32], const Operands& o, const Fragment& f,
                           float (&exponent)[16]) {
  const float* const base = o.smem.shared().base + f.warpgroup * kRows + f.row;
  const float scale = o.p.softmax_scale * kLog2e;
  PB_UNROLL
  for (int i = 0; i < 16; ++i) exponent[i] = fmaf(s[i], scale, -base[i / 2 % 2 * 8]);
}

/// P from its exponents; 0 for an invalid key.
PB_DEVICE void compute_own_p(float (&p)[16], const int32_t (&index)[kRows], const Fragment& f) {
  PB_UNROLL
  for (int i = 0; i < 16; ++i) p[i] = index[f.column(i)] < 0 ? 0.0f : exp2_ftz(p[i]);
}

/// As compute_shift, for the keys of this CTA.
PB_DEVICE void compute_own_shift(const float (&p)[16], const float (&centered)[16],
                                 float (&shift)[2]) {
  float sum[2] = {}, excess[2] = {};
  PB_UNROLL
  for (int i = 0; i < 16; i += 2) {
    const int half = i / 2 % 2;
    const uint32_t rounded = pack_bf16(p[i], p[i + 1]);
    sum[half] += p[i] + p[i + 1];
    excess[half] += (p[i] - bf16_low(rounded)) * centered[i] +
                    (p[i + 1] - bf16_high(rounded)) * centered[i + 1];
  }
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float whole = quad_sum(sum[half]);
    shift[half] = whole == 0.0f ? 0.0f : quad_sum(excess[half]) * rcp_approx(whole);
  }
}

/// P and dS of the keys of this CTA, rounded and packed, from P and dP; adds dS to the sums of the
/// thread.
template <typename Operands>
PB_DEVICE void compute_own_p_ds(const float (&p)[16], float (&grad_p)[16], const Operands& o,
                                const Fragment& f, uint32_t (&p_pairs)[8], uint32_t (&ds_pairs)[8],
                                float (&ds_sum)[2]) {
  const ClusterShared& shared = o.smem.shared();
  const int row = f.warpgroup * kRows + f.row;
  float delta[2], factor[2], shift[2];
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    delta[half] = shared.delta[0][row + 8 * half] + shared.delta[1][row + 8 * half];
    factor[half] = shared.p_factor[row + 8 * half];
  }
  PB_UNROLL
  for (int i = 0; i < 16; ++i) grad_p[i] -= delta[i / 2 % 2];
  compute_own_shift(p, grad_p, shift);
  PB_UNROLL
  for (int i = 0; i < 8; ++i) {
    const float low = factor[i % 2] * p[2 * i], high = factor[i % 2] * p[2 * i + 1];
    p_pairs[i] = pack_bf16(low, high);
    ds_pairs[i] = pack_bf16(o.p.softmax_scale * low * (grad_p[2 * i] - shift[i % 2]),
                            o.p.softmax_scale * high * (grad_p[2 * i + 1] - shift[i % 2]));
    ds_sum[i % 2] += bf16_low(ds_pairs[i]) + bf16_high(ds_pairs[i]);
  }
}

/// Stores P and dS of a warp, 16 heads and the keys of this CTA, in both CTAs: here in the first
/// half of the rows, there in the second one.
template <typename Operands>
PB_DEVICE void store_own_p_ds(const Operands& o, const Fragment& f, const uint32_t (&p_pairs)[8],
                              const uint32_t (&ds_pairs)[8]) {
  ClusterShared& shared = o.smem.shared();
  const int lane = thread_index() % 32, first_row = thread_index() / 32 % 4 * 16;
  const uint32_t tiles[2] = {o.smem.p_tile(f.warpgroup), o.smem.ds_tile(f.warpgroup)};
  PB_UNROLL
  for (int m = 0; m < 2; ++m) {
    const uint32_t at = swizzled_offset(first_row + lane % 16, 32 * m + 16 * (lane / 16));
    stmatrix(tiles[0] + at, p_pairs + 4 * m);
    stmatrix(tiles[1] + at, ds_pairs + 4 * m);
  }
  fence_async_proxy();
  // The other lanes' elements are read next, and lane 0 arrives for all.
  sync_warp();
  if (lane == 0) mbarrier_arrive_expect(shared.ds_full[f.warpgroup], kWarpBytes);
  const uint32_t barrier = o.other(shared.ds_full[f.warpgroup]);
  PB_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + 8 * i + lane / 8 + lane / 4 % 2 * 4;
    const uint32_t at = swizzled_offset(row, lane % 4 * 16);
    PB_UNROLL
    for (const uint32_t tile : tiles)
      store_async_128(o.other(tile + (at ^ kRowBytes / 2)), load_shared_128(tile + at), barrier);
  }
}

/// The columns of grad_q that a warpgroup has.
template <int kRest>
struct ClusterDq {
  float first[64] = {}, second[64] = {}, rest[kRest > 0 ? kRest / 2 : 1] = {};
  /// Issues the product of a tile, in two groups: the blocks that load_cluster_keys<0> overwrites
  /// come first.
  PB_DEVICE void issue(const ClusterSmem& smem, uint32_t ds_tile) {
    wgmma_fence(first, second, rest);
    mma_ab<Major::kK, 128>(first, ds_tile, smem.k_tile(), true);
    wgmma_commit();
    mma_ab<Major::kK, 128>(second, ds_tile, smem.k_tile() + 2 * kBlockBytes, true);
    if constexpr (kRest > 0) mma_ab<Major::kK, kRest>(rest, ds_tile, smem.k_rest(), true);
    wgmma_commit();
  }
};

/// The heads of a warpgroup, for store_grad_q.
template <typename Operands>
struct HeadGroup {
  const SparseMla& p;
  const SparseMlaGrads& g;
  struct {
    int64_t first_row, num_rows;
  } cta;
  float sums[2];  ///< of dS of the two rows of a thread
  PB_DEVICE HeadGroup(const Operands& o, int warpgroup, const float (&ds_sum)[2])
      : p(o.p),
        g(o.g),
        cta{o.cta.first_row + warpgroup * kRows, o.cta.num_rows - warpgroup * kRows},
        sums{ds_sum[0], ds_sum[1]} {}
  PB_DEVICE float ds_sum(int row) const { return row / 8 % 2 == 0 ? sums[0] : sums[1]; }
};

/// Stores columns of grad_q from first_column on. The dS of a row add up to 0 but for rounding. The
/// error e of their sum is taken back in proportion to P: e sum_j P_j v_j = e out is subtracted
/// from the columns of V. sum_j P_j k_j of the other columns is not known.
template <typename Group, int kCount>
PB_DEVICE void store_grad_q(const float (&d)[kCount], const Group& o, const Fragment& f,
                            int first_column) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    if (row >= o.cta.num_rows) continue;
    const float ds_sum = o.ds_sum(row);
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
        mean[i] = is_value ? *from : 0;
      }
      PB_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = first + 4 * i + 2 * half, column = first_column + f.column(at);
        if (column < o.p.head_dim_qk)
          *reinterpret_cast<uint32_t*>(to + column) = pack_bf16(
              d[at] - ds_sum * bf16_low(mean[i]), d[at + 1] - ds_sum * bf16_high(mean[i]));
      }
    }
  }
}

/// S of a tile over the columns of this CTA.
template <typename Operands>
PB_DEVICE void issue_part_of_s(float (&s)[32], const Operands& o, int group, int parity) {
  const ClusterSmem& smem = o.smem;
  const uint32_t q = smem.q_tile(group), k = smem.k_tile();
  // The copies of all threads of the first two blocks of K, and of q and grad_out before them.
  mbarrier_wait(smem.shared().k_full[0], parity);
  fence_async_proxy();
  wgmma_fence(s);
  mma_abt_unrolled<2>(s, q, k);
  mbarrier_wait(smem.shared().k_full[1], parity);
  fence_async_proxy();
  mma_abt_unrolled<kValueBlocks - 2>(s, q + 2 * kBlockBytes, k + 2 * kBlockBytes, true);
  if constexpr (Operands::kRest > 0) {
    PB_UNROLL
    for (uint32_t step = 0; step < kRowBytes / 2; step += kStepColumns)
      wgmma_ss<64, Major::kK, Major::kK>(s,
                                         smem_desc(smem.q_rest() + group * (kRowBytes / 2) + step),
                                         smem_desc(smem.k_rest() + step), true);
  }
  wgmma_commit();
}

/// P and dS of a tile to shared memory, of 64 heads.
template <typename Operands>
PB_DEVICE void compute_cluster_tile(const Operands& o, int count, Fragment& f,
                                    const Exchange& exchange, float (&ds_sum)[2]) {
  const ClusterSmem& smem = o.smem;
  ClusterShared& shared = smem.shared();
  const int warp = thread_index() / 32;
  float p[16];
  {
    float s[32];
    issue_part_of_s(s, o, f.warpgroup, count % 2);
    wgmma_wait(s);
    // The other CTA has read its part of dP of the tile before: its P and dS have come since.
    exchange.send<4>(o, s + 16);
    // The registers of s become free for dP.
    scale_own_s(s, o, f, p);
  }
  float grad_p[32];
  wgmma_fence(grad_p);
  mma_abt_unrolled<kValueBlocks>(grad_p, smem.grad_out_tile(f.warpgroup), smem.k_tile());
  wgmma_commit();
  const float scale = o.p.softmax_scale * kLog2e;
  exchange.receive<4>(p, 0, [scale](float own, float other) { return fmaf(other, scale, own); });
  sync_warp();
  // Without it dP is sent over a part of S that is still read.
  if (thread_index() % 32 == 0) mbarrier_arrive_cluster(o.other(shared.s_read[warp]));
  f.rematerialize();
  compute_own_p(p, shared.index[count % 2], f);
  wgmma_wait(grad_p);
  mbarrier_wait_cluster(shared.s_read[warp], count % 2);
  exchange.send<4>(o, grad_p + 16);
  float own[16];
  PB_UNROLL
  for (int i = 0; i < 16; ++i) own[i] = grad_p[i];
  exchange.receive<4>(own, 1, sum_of);
  f.rematerialize();
  uint32_t p_pairs[8], ds_pairs[8];
  compute_own_p_ds(p, own, o, f, p_pairs, ds_pairs, ds_sum);
  // Without it P and dS of the tile before are overwritten while products read them, here or in
  // the other CTA.
  if (count > 0) mbarrier_wait_cluster(shared.ds_free[f.warpgroup], (count - 1) % 2);
  store_own_p_ds(o, f, p_pairs, ds_pairs);
}

/// The last step of a thread. Without it the other CTA stores to, or arrives in, shared memory that
/// is no longer of this CTA.
PB_DEVICE void leave_cluster() {
  sync_warp();
  cluster_sync();
}

/// Stores grad_q of a warpgroup. ds_sum: over the keys of this CTA; the other CTA has the rest.
template <typename Operands>
PB_DEVICE void store_cluster_dq(const ClusterDq<Operands::kRest>& grad_q, const Operands& o,
                                const Exchange& exchange, const float (&ds_sum)[2], Fragment& f) {
  float sums[4] = {quad_sum(ds_sum[0]), quad_sum(ds_sum[1])};
  exchange.send<1>(o, sums);
  exchange.receive<1>(sums, 0, sum_of);
  if (o.g.out_remainder == nullptr) sums[0] = sums[1] = 0.0f;
  const HeadGroup<Operands> heads(o, f.warpgroup, {sums[0], sums[1]});
  f.rematerialize();
  store_grad_q(grad_q.first, heads, f, o.value_column());
  store_grad_q(grad_q.second, heads, f, o.value_column() + 2 * kColumns);
  if constexpr (Operands::kRest > 0) store_grad_q(grad_q.rest, heads, f, o.rest_column());
}

/// Warpgroups 0 and 1: loads, P, dS and grad_q.
template <typename Operands>
PB_DEVICE void compute_heads_role(const Operands& o) {
  const ClusterSmem& smem = o.smem;
  ClusterShared& shared = smem.shared();
  const int64_t num_tiles = (o.p.topk + kRows - 1) / kRows;
  OwnSlots slots;
  int32_t index[HeadLoader::kEach];
  const auto find_tile = [&](int64_t tile) {
    while (tile < num_tiles && !slots.has_key()) {
      ++tile;
      slots.read(o, tile);
    }
    return tile;
  };
  const auto load_first_half = [&](int buffer) {
    slots.indices(index);
    HeadLoader().store_indices(index, shared.index[buffer]);
    load_cluster_keys<0>(o, index);
  };
  slots.read(o, 0);
  load_cluster_queries(o);
  int64_t tile = find_tile(0);
  if (tile < num_tiles) {
    load_first_half(0);
    load_cluster_keys<1>(o, index);
  }
  load_cluster_rows(o);
  // Delta, lse and the indices are read next.
  cluster_sync();
  Fragment f;
  const Exchange exchange(o);
  float ds_sum[2] = {};
  ClusterDq<Operands::kRest> grad_q;
  int count = 0;
  for (; tile < num_tiles; ++count) {
    compute_cluster_tile(o, count, f, exchange, ds_sum);
    slots.read(o, tile + 1);
    // dS of all threads of the warpgroup, and of the other CTA.
    mbarrier_wait_cluster(shared.ds_full[f.warpgroup], count % 2);
    fence_async_proxy();
    grad_q.issue(smem, smem.ds_tile(f.warpgroup));
    tile = find_tile(tile + 1);
    wgmma_wait<1>(grad_q.first);
    // Without it the next K tile is copied over this one while the other warpgroup reads it.
    named_barrier_sync(kHeadBarrier, kHeadThreads);
    if (tile < num_tiles) load_first_half((count + 1) % 2);
    wgmma_wait(grad_q.second, grad_q.rest);
    sync_warp();
    if (thread_index() % 32 == 0) mbarrier_arrive_cluster(o.other(shared.ds_free[f.warpgroup]));
    // The same for the other blocks; and the indices are read next.
    named_barrier_sync(kHeadBarrier, kHeadThreads);
    if (tile < num_tiles) load_cluster_keys<1>(o, index);
  }
  store_cluster_dq(grad_q, o, exchange, ds_sum, f);
  if (f.warpgroup == 1) return;
  // Without it ds_full is two phases ahead of warpgroup 2, which then waits for ever.
  if (count > 0) mbarrier_wait_cluster(shared.ds_free[0], (count - 1) % 2);
  if (thread_index() == 0) shared.index[count % 2][0] = kNoMoreTiles;
  mbarrier_arrive_warp(shared.ds_full[0]);
}

/// Issues dKV of kCount columns from `block` on, or of those that are not columns of V.
template <bool kHasValues, int kCount>
PB_DEVICE void issue_cluster_dkv(float (&d)[kCount / 2], const ClusterSmem& smem, int block) {
  wgmma_fence(d);
  PB_UNROLL
  for (int group = 0; group < 2; ++group) {
    const uint32_t q = kHasValues ? smem.q_tile(group) + block * kBlockBytes
                                  : smem.q_rest() + group * (kRowBytes / 2);
    mma_ab<Major::kMn, kCount>(d, smem.ds_tile(group), q, group > 0);
    if constexpr (kHasValues)
      mma_ab<Major::kMn, kCount>(d, smem.p_tile(group),
                                 smem.grad_out_tile(group) + block * kBlockBytes, true);
  }
  wgmma_commit();
}

/// Warpgroup 2: grad_kv.
template <typename Operands>
PB_DEVICE void accumulate_keys_role(const Operands& o) {
  const ClusterSmem& smem = o.smem;
  ClusterShared& shared = smem.shared();
  // All threads of the cluster come here: Delta is stored.
  cluster_sync();
  float* const grad_kv_sum = o.g.grad_kv_sum + o.cta.batch * o.p.seqlen_k * o.p.head_dim_qk;
  for (int count = 0;; ++count) {
    mbarrier_wait_cluster(shared.ds_full[0], count % 2);
    if (shared.index[count % 2][0] == kNoMoreTiles) break;
    mbarrier_wait_cluster(shared.ds_full[1], count % 2);
    fence_async_proxy();
    // Before the last arrival at ds_free: then the indices of another tile may be stored there.
    int32_t keys[4];
    read_keys(shared.index[count % 2], keys);
    if constexpr (Operands::kRest > 0) {
      float d[Operands::kRest / 2];
      issue_cluster_dkv<false, Operands::kRest>(d, smem, 0);
      wgmma_wait(d);
      add_dkv(d, o.rest_column(), o.p, grad_kv_sum, keys);
    }
    PB_ROLLED
    for (int block = 0; block < kValueBlocks; ++block) {
      float d[32];
      issue_cluster_dkv<true, kColumns>(d, smem, block);
      wgmma_wait(d);
      if (block + 1 == kValueBlocks) {
        sync_warp();
        // P and dS are no longer read: 4 arrivals of a warp, at both halves in both CTAs.
        if (thread_index() % 32 < 4) {
          const int lane = thread_index() % 32;
          mbarrier_arrive_cluster(
              cluster_address(shared_address(&shared.ds_free[lane % 2]), lane / 2));
        }
      }
      add_dkv(d, o.value_column() + block * kColumns, o.p, grad_kv_sum, keys);
    }
  }
}

/// `storage`: kClusterBytes, aligned to 1024 bytes.
template <int kRest>
PB_DEVICE void cluster_backward_cta(const SparseMla& p, const SparseMlaGrads& g, int64_t item,
                                    unsigned char* storage) {
  const ClusterOperands<kRest> o{p, g, Cta(p, item, kClusterHeads), {storage}, cluster_rank()};
  ClusterShared& shared = o.smem.shared();
  if (thread_index() == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(shared.k_full[i], kHeadThreads);
      // The four warps that store P and dS of these heads.
      mbarrier_init(shared.ds_full[i], 4);
      // The warps of both warpgroups 2, and those that compute dQ from the other CTA's dS.
      mbarrier_init(shared.ds_free[i], 12);
    }
    for (int warp = 0; warp < kHeadWarps; ++warp) {
      mbarrier_init(shared.received[warp], 1);
      mbarrier_init(shared.s_read[warp], 1);
    }
  }
  // No thread may use a barrier, or shared memory of the other CTA, before both have come here.
  cluster_sync();
  if (warp_broadcast(thread_index() / kGroupThreads) < 2) {
    warpgroup_reg_alloc<kHeadRegisters<kRest>>();
    compute_heads_role(o);
    leave_cluster();
  } else {
    warpgroup_reg_dealloc<kKeyRegisters>();
    accumulate_keys_role(o);
    leave_cluster();
  }
}

}  // namespace patchbench::ops::sparse_mla_dims
