#pragma once
#include <cmath>
#include <cstdint>

#include "../kernel/sm90/softmax.h"
#include "sm90_loads.h"

// The forward. 384 threads, one CTA per SM, persistent: a CTA takes every gridDim.x-th item. An
// item is 64 heads of one query; the keys come in tiles of 64.
//   Warpgroup 2, the producer, loads the query, and K tiles into two stages.
//   Warpgroups 0 and 1, the consumers: warpgroup 0 has tiles 0, 2, ..., warpgroup 1 has the others.
//   A consumer computes S [64, 64] and P of its own tile, 32 registers a thread. It accumulates its
//   half of the columns of out, kHalf blocks of 64, 32 kHalf registers a thread, over all tiles in
//   order: its own with P from registers, the other's with P from shared memory.
// Tiles are processed in pairs. Both consumers compute S. Warpgroup 1 computes P as soon as
// warpgroup 0 has stored its row_max. Then each adds both tiles to its half of out, rescaled when
// row_max grew. row_max is rounded up to a whole number: then a new row_max only changes P by a
// power of two, and the backward, which rounds P again, gets the same bits.
// A stage is released in three sets of columns: the columns that are not part of V after S; the V
// columns of warpgroup 0, then of warpgroup 1, after their products. Loads follow the same
// order, the tile's own warpgroup first.
// The last block of the query is kept in registers, 16 a thread, because its shared memory holds P
// of warpgroup 1. It is loaded last, after the rest of the next query and the first tile have been
// started.
// Tiles after the last valid index of an item are skipped: indices of a causal query end in -1.
// Shared memory: two K tiles, the query, P, and 2.1 KiB: 226 KiB at 576.
// Rounded to bfloat16: P, out, and out_remainder. Sums, row_max and lse are float32.
namespace patchbench::ops::sparse_mla_dims {

constexpr int kForwardThreads = 384, kConsumers = 256;
/// Registers of a thread.
constexpr int kProducerRegisters = 72, kConsumerRegisters = 216;
static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 3 * kLaunchRegisters,
              "a warpgroup waits for ever for registers that the CTA was not launched with");
/// Parts of a K tile: columns outside of V (set kNoValues), and two sets of V columns.
constexpr int kParts = 3, kNoValues = 2;
/// Named barriers. kRowMaxReady: warpgroup 0 has stored its row_max. kPStored + w: warpgroup w has
/// stored P and row_max of its tile. kRowSumReady: both have stored their sums.
enum ForwardBarrier { kRowMaxReady = 1, kPStored = 2, kRowSumReady = 4 };

struct ForwardShared {
  int32_t index[2][kRows];  ///< of the keys, by stage
  float row_max[2][kRows];  ///< after the last tile of the warpgroup
  float row_sum[2][kRows], rounded_sum[2][kRows];
  Mbarrier full[2][kParts];            ///< one for each part of a stage
  Mbarrier free[2][3];                 ///< one for each set of a stage
  Mbarrier query_full, query_free[2];  ///< [0]: all blocks but the last; [1]: the last
  alignas(4) uint8_t has_gaps[2][4];   ///< whether a tile has invalid indices, by warp
  int32_t num_tiles;                   ///< of the item
};

PB_CONSTEXPR int64_t forward_bytes(int head_dim_qk) {
  return (3 * num_blocks(head_dim_qk) + 1) * int64_t{kBlockBytes} +
         static_cast<int64_t>(sizeof(ForwardShared));
}

/// Shared memory of a CTA.
struct ForwardSmem {
  int blocks;
  unsigned char* storage;
  PB_DEVICE uint32_t k_tile(int stage) const {
    return shared_address(storage) + stage * blocks * kBlockBytes;
  }
  PB_DEVICE uint32_t q_tile() const { return k_tile(2); }
  PB_DEVICE unsigned char* q_last_block() const { return storage + (3 * blocks - 1) * kBlockBytes; }
  PB_DEVICE unsigned char* p_tile(int warpgroup) const {
    return storage + (3 * blocks - warpgroup) * kBlockBytes;
  }
  PB_DEVICE ForwardShared& shared() const {
    return *reinterpret_cast<ForwardShared*>(storage + (3 * blocks + 1) * kBlockBytes);
  }
};

/// Part `part` of a K tile: its set of columns and the blocks of that set. `mine`: the warpgroup
/// that owns the tile.
template <int kHalf>
struct Part {
  int set, begin, end;
  PB_CONSTEXPR Part(int part, int mine)
      : set(part == 0   ? kNoValues
            : part == 1 ? mine
                        : 1 - mine),
        begin(set * kHalf),
        end(set == kNoValues ? kMaxBlocks : begin + kHalf) {}
};

/// The items of one CTA: first, first + step, ...
struct Items {
  int64_t first, step;
};

PB_DEVICE void init_mbarriers(ForwardShared& shared) {
  if (thread_index() == 0) {
    constexpr int kCopiers = kForwardThreads - kConsumers;
    PB_UNROLL
    for (int stage = 0; stage < 2; ++stage) {
      // Each producer thread arrives with its copies; for part 1 it arrives once more after it has
      // stored the indices.
      PB_UNROLL
      for (int part = 0; part < kParts; ++part)
        mbarrier_init(shared.full[stage][part], part == 1 ? 2 * kCopiers : kCopiers);
      PB_UNROLL
      for (Mbarrier& barrier : shared.free[stage]) mbarrier_init(barrier, kConsumers / 2 / 32);
    }
    // One arrival more: num_tiles is stored.
    mbarrier_init(shared.query_full, kCopiers + 1);
    PB_UNROLL
    for (Mbarrier& barrier : shared.query_free) mbarrier_init(barrier, kConsumers / 32);
  }
  // No thread may use a barrier before it is initialised.
  sync_threads();
}

using KvLoader = RowLoader<kConsumers, kForwardThreads - kConsumers>;

/// Stores the indices of a tile, and for each warp whether some are invalid.
PB_DEVICE void store_tile_indices(const int32_t (&index)[KvLoader::kEach], ForwardShared& shared,
                                  int stage) {
  const KvLoader loader;
  bool has_gap = false;
  PB_UNROLL
  for (int i = 0; i < KvLoader::kEach; ++i) has_gap |= index[i] < 0;
  has_gap = any_sync(has_gap);
  loader.store_indices(index, shared.index[stage]);
  if (loader.thread % 32 == 0) shared.has_gaps[stage][loader.thread / 32] = has_gap ? 1 : 0;
}

/// Loads the parts of a tile from kPart on, each when its set is free.
template <int kHalf, int kStage, int kPart = 0>
PB_DEVICE void load_parts(const SparseMla& p, const ForwardSmem& smem, const KvLoader::Rows& rows,
                          const int32_t (&index)[KvLoader::kEach], int parity) {
  constexpr Part<kHalf> kThis(kPart, kStage);
  ForwardShared& shared = smem.shared();
  mbarrier_wait(shared.free[kStage][kThis.set], parity);
  KvLoader().template load_blocks<kThis.begin, kThis.end>(rows, p.head_dim_qk, smem.blocks,
                                                          smem.k_tile(kStage));
  cp_async_mbarrier_arrive(shared.full[kStage][kPart]);
  if constexpr (kPart == 1) {
    // All readers of the previous indices have released this set.
    store_tile_indices(index, shared, kStage);
    mbarrier_arrive(shared.full[kStage][kPart]);
  }
  if constexpr (kPart + 1 < kParts)
    load_parts<kHalf, kStage, kPart + 1>(p, smem, rows, index, parity);
}

/// Loads the last block of the query, when P in the same shared memory is no longer read.
PB_DEVICE void load_q_last_block(const SparseMla& p, const ForwardSmem& smem, const Cta& cta,
                                 int parity) {
  const KvLoader loader;
  const int last = smem.blocks - 1;
  KvLoader::Rows heads = loader.query_rows(p, cta);
  PB_UNROLL
  for (const uint16_t*& first : heads.first) first += last * kColumns;
  mbarrier_wait(smem.shared().query_free[1], parity);
  loader.load_blocks<0, 1>(heads, p.head_dim_qk - last * kColumns, 1,
                           smem.q_tile() + last * kBlockBytes);
  cp_async_mbarrier_arrive(smem.shared().query_full);
}

/// The tiles of an item up to the last one with a valid index. Each warp finds the same number.
PB_DEVICE int count_tiles(const SparseMla& p, const Cta& cta) {
  constexpr int kAtATime = 16;
  const int32_t* const slots = p.indices + cta.query * p.topk;
  for (auto end = static_cast<int>(p.topk); end > 0; end -= 32 * kAtATime) {
    const int first = end - 1 - thread_index() % 32;
    // No branch is between the loads, so that all are in flight together.
    int32_t index[kAtATime];
    PB_UNROLL
    for (int i = 0; i < kAtATime; ++i) index[i] = 32 * i <= first ? slots[first - 32 * i] : -1;
    int last = -1;
    PB_UNROLL
    for (int i = kAtATime - 1; i >= 0; --i)
      if (index[i] >= 0 && index[i] < p.seqlen_k) last = first - 32 * i;
    last = max_sync(last);
    if (last >= 0) return last / kRows + 1;
  }
  return 0;
}

template <int kHalf>
PB_DEVICE void produce(const SparseMla& p, const ForwardSmem& smem, const Items& items) {
  const KvLoader loader;
  int free_parities = 3, query_parity = 1;  // free_parities: one bit for each stage
  for (int64_t item = items.first; item < num_items(p); item += items.step) {
    const Cta cta(p, item);
    int32_t next[KvLoader::kEach];
    loader.read_slots(p, cta, 0, next);
    const int num_tiles = count_tiles(p, cta);
    mbarrier_wait(smem.shared().query_free[0], query_parity);
    if (loader.thread == 0) {
      smem.shared().num_tiles = num_tiles;
      mbarrier_arrive(smem.shared().query_full);
    }
    loader.load_blocks<0, kMaxBlocks>(loader.query_rows(p, cta), p.head_dim_qk, smem.blocks - 1,
                                      smem.q_tile());
    for (int tile = 0; tile < num_tiles; ++tile) {
      int32_t index[KvLoader::kEach];
      loader.valid_indices(p, next, index);
      const KvLoader::Rows rows = loader.key_rows(p, cta, index);
      if (tile + 1 < num_tiles) loader.read_slots(p, cta, tile + 1, next);
      const int parity = free_parities >> tile % 2 & 1;
      if (tile % 2 == 0) {
        load_parts<kHalf, 0>(p, smem, rows, index, parity);
      } else {
        load_parts<kHalf, 1>(p, smem, rows, index, parity);
      }
      free_parities ^= 1 << tile % 2;
      // Its shared memory is released last.
      if (tile == 0) load_q_last_block(p, smem, cta, query_parity);
    }
    if (num_tiles == 0) load_q_last_block(p, smem, cta, query_parity);
    query_parity ^= 1;
  }
}

/// Softmax state of the two rows of a thread: row_max, and sums over this thread's columns of its
/// warpgroup's tiles.
struct RowStats {
  float row_max[2] = {-INFINITY, -INFINITY};
  float row_sum[2] = {0, 0};      ///< sum of P
  float rounded_sum[2] = {0, 0};  ///< of the rounded P

  PB_DEVICE float base(int half) const {
    // Before the first valid key row_max is -inf, and -inf - -inf is NaN.
    return row_max[half] == -INFINITY ? 0.0f : row_max[half];
  }
  /// Sets row_max to a value that is at least as large. `alpha` rescales earlier sums.
  PB_DEVICE void update(int half, float higher, float (&alpha)[2]) {
    const float before = row_max[half];
    row_max[half] = higher;
    alpha[half] = exp2_of(before - base(half));
    row_sum[half] *= alpha[half];
    rounded_sum[half] *= alpha[half];
  }
};

/// row_max is taken before scaling, and -inf * 0 is NaN: the scale is never 0.
PB_DEVICE float abs_scale(float scale) { return fmaxf(fabsf(scale), 1e-37f); }

template <int kCount>
PB_DEVICE void rescale(float (&o)[kCount], const float (&alpha)[2]) {
  if (!any_sync(alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
  PB_UNROLL
  for (int i = 0; i < kCount; ++i) o[i] *= alpha[i / 2 % 2];
}

/// The row maxima of a tile, scaled and rounded up. Logits of invalid indices become -inf. For a
/// negative scale the logits are negated.
PB_DEVICE void find_tile_max(float (&s)[32], float signed_scale, const ForwardShared& shared,
                             int stage, const Fragment& f, float (&tile_max)[2]) {
  if (signed_scale < 0) {
    PB_UNROLL
    for (int i = 0; i < 32; ++i) s[i] = -s[i];
  }
  if (*reinterpret_cast<const uint32_t*>(shared.has_gaps[stage]) != 0) {
    PB_UNROLL
    for (int i = 0; i < 32; ++i)
      if (shared.index[stage][f.column(i)] < 0) s[i] = -INFINITY;
  }
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    tile_max[half] = s[2 * half];
    PB_UNROLL
    for (int i = 2 * half; i < 32; i += 4)
      tile_max[half] = fmaxf(tile_max[half], fmaxf(s[i], s[i + 1]));
    tile_max[half] = ceilf(quad_max(tile_max[half]) * abs_scale(signed_scale));
  }
}

/// S to P: packed in `own` for this warpgroup's product, and stored at `p` for the other's.
PB_DEVICE void softmax_tile(const float (&s)[32], float signed_scale, const Fragment& f,
                            unsigned char* p, RowStats& stats, uint32_t (&own)[16]) {
  const float scale = abs_scale(signed_scale);
  PB_UNROLL
  for (int i = 0; i < 32; i += 2) {
    const int half = i / 2 % 2;
    const float base = stats.base(half);
    const float first = exp2_ftz(fmaf(s[i], scale, -base));
    const float second = exp2_ftz(fmaf(s[i + 1], scale, -base));
    own[i / 2] = pack_bf16(first, second);
    stats.row_sum[half] += first + second;
    *reinterpret_cast<uint32_t*>(p + swizzled_offset(f.row + 8 * half, 2 * f.column(i))) =
        own[i / 2];
  }
}

/// Adds the rounded P to the sums. Not while wgmma reads `own`.
PB_DEVICE void add_rounded_sum(const uint32_t (&own)[16], RowStats& stats) {
  PB_UNROLL
  for (int i = 0; i < 16; ++i) stats.rounded_sum[i % 2] += bf16_low(own[i]) + bf16_high(own[i]);
}

/// 4 x 4 transpose within a quad: word i of thread j becomes word j of thread i. A thread then
/// holds eight consecutive columns.
PB_DEVICE void transpose_in_quad(Vec128& c, const Fragment& f) {
  PB_UNROLL
  for (int mask = 1; mask < 4; mask *= 2) {
    const bool is_upper = (f.quad & mask) != 0;
    PB_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((i & mask) != 0) continue;
      uint32_t &low = c.words[i], &high = c.words[i + mask];
      const uint32_t other = shfl_xor_sync(is_upper ? low : high, mask);
      if (is_upper) {
        low = other;
      } else {
        high = other;
      }
    }
  }
}

/// lse of the thread's rows, and the factor that turns `o` into out. out is divided by the sum of
/// the rounded P, because V was multiplied by the rounded P. Otherwise the rounding error of a
/// dominant key stays in out, and so in Delta.
PB_DEVICE void finalize_rows(const Fragment& f, const RowStats& stats, ForwardShared& shared,
                             float (&lse)[2], float (&inverse)[2]) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(stats.row_sum[half]), rounded = quad_sum(stats.rounded_sum[half]);
    if (f.quad != 0) continue;
    shared.row_sum[f.warpgroup][f.row + 8 * half] = sum;
    shared.rounded_sum[f.warpgroup][f.row + 8 * half] = rounded;
  }
  // The sums of both warpgroups are read next.
  named_barrier_sync(kRowSumReady, kConsumers);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    const float sum = shared.row_sum[0][row] + shared.row_sum[1][row];
    const float rounded = shared.rounded_sum[0][row] + shared.rounded_sum[1][row];
    lse[half] = sum == 0.0f ? 0.0f : log2_of(sum) + stats.row_max[half];
    inverse[half] = sum == 0.0f ? 0.0f : 1.0f / rounded;
  }
  // If an item has one tile, no other barrier keeps a warpgroup from overwriting these sums before
  // the other has read them.
  named_barrier_sync(kRowSumReady, kConsumers);
}

/// Stores out, out_remainder (what rounding removed from out; not where it is null) and lse.
template <int kHalf>
PB_DEVICE void store_forward(const SparseMla& p, const SparseMlaResults& r, const Cta& cta,
                             const Fragment& f, const RowStats& stats, ForwardShared& shared,
                             const float (&o)[32 * kHalf]) {
  float lse[2], inverse[2];
  finalize_rows(f, stats, shared, lse, inverse);
  const bool has_rest = r.out_remainder != nullptr;
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    if (f.warpgroup == 0 && f.quad == 0 && row < cta.num_rows)
      r.lse[cta.first_row + row] = lse[half];
    const int64_t first = (cta.first_row + row) * p.head_dim_v;
    PB_UNROLL
    for (int m = 0; m < 2 * kHalf; ++m) {
      Vec128 out, rest;
      PB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int i = 16 * m + 4 * j + 2 * half;
        const float low = o[i] * inverse[half], high = o[i + 1] * inverse[half];
        out.words[j] = pack_bf16(low, high);
        rest.words[j] = pack_bf16(low - bf16_low(out.words[j]), high - bf16_high(out.words[j]));
      }
      transpose_in_quad(out, f);
      if (has_rest) transpose_in_quad(rest, f);
      const int column = (f.warpgroup * kHalf + m / 2) * kColumns + m % 2 * 32 + f.quad * 8;
      if (row >= cta.num_rows || column >= p.head_dim_v) continue;
      store_128(r.out + first + column, out);
      if (has_rest) store_128(r.out_remainder + first + column, rest);
    }
  }
}

/// Issues the last block of S, with the query from registers.
PB_DEVICE void issue_qk_last(float (&s)[32], const uint32_t (&last)[16], uint32_t k) {
  PB_UNROLL
  for (int step = 0; step < 4; ++step)
    wgmma_rs<64, Major::kK>(s, last + 4 * step, smem_desc(k + step * kStepColumns), true);
}

/// S of the warpgroup's tile, part by part as the loads complete. `num_left`: tiles that are left,
/// this one included.
template <int kHalf, int kMine>
PB_DEVICE void compute_logits(float (&s)[32], const ForwardSmem& smem, const uint32_t (&last)[16],
                              int parity, int num_left) {
  const int before = smem.blocks - 1;
  ForwardShared& shared = smem.shared();
  const uint32_t q = smem.q_tile(), k = smem.k_tile(kMine);
  PB_UNROLL
  for (float& logit : s) logit = 0;
  wgmma_fence(s);
  PB_ROLLED
  for (int i = 0; i < kParts; ++i) {
    const Part<kHalf> part(i, kMine);
    mbarrier_wait(shared.full[kMine][i], parity);
    // The products read what other threads copied.
    fence_async_proxy();
    mma_abt(s, q + part.begin * kBlockBytes, k + part.begin * kBlockBytes,
            (part.end < before ? part.end : before) - part.begin, true);
    if (part.begin <= before && before < part.end) issue_qk_last(s, last, k + before * kBlockBytes);
  }
  wgmma_commit();
  wgmma_wait(s);
  mbarrier_arrive_warp(shared.free[kMine][kNoValues]);
  if (num_left <= 2) mbarrier_arrive_warp(shared.query_free[0]);
}

/// Loads a [64, 64] block as the A operand of wgmma_rs.
PB_DEVICE void load_a_fragment(uint32_t (&a)[16], const unsigned char* block, const Fragment& f) {
  PB_UNROLL
  for (int i = 0; i < 16; ++i)
    a[i] = *reinterpret_cast<const uint32_t*>(
        block + swizzled_offset(f.row + i % 2 * 8, 2 * f.column(2 * i)));
}

/// Softmax state and accumulator of a warpgroup for the current item.
template <int kHalf>
struct Accumulator {
  RowStats stats;
  float o[32 * kHalf] = {};
};

/// Takes over the other warpgroup's row_max. `alpha` rescales `o`.
template <int kHalf, int kMine>
PB_DEVICE void take_other_max(const ForwardShared& shared, const Fragment& f,
                              Accumulator<kHalf>& acc, float (&alpha)[2]) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    acc.stats.update(half, shared.row_max[1 - kMine][f.row + 8 * half], alpha);
}

/// Issues o += P V of the other warpgroup's last tile.
template <int kHalf, int kMine>
PB_DEVICE void issue_pv_other(const ForwardSmem& smem, Accumulator<kHalf>& acc) {
  wgmma_fence(acc.o);
  mma_ab<Major::kK, 64 * kHalf>(acc.o, shared_address(smem.p_tile(1 - kMine)),
                                smem.k_tile(1 - kMine) + kMine * kHalf * kBlockBytes, true);
  wgmma_commit();
}

/// Waits for that product and releases the stage.
template <int kHalf, int kMine>
PB_DEVICE void finish_pv_other(const ForwardSmem& smem, Accumulator<kHalf>& acc) {
  wgmma_wait(acc.o);
  mbarrier_arrive_warp(smem.shared().free[1 - kMine][kMine]);
}

/// Issues o += P V of the warpgroup's own tile.
template <int kHalf, int kMine>
PB_DEVICE void issue_pv_own(const ForwardSmem& smem, const uint32_t (&own)[16],
                            Accumulator<kHalf>& acc) {
  wgmma_fence(acc.o);
  PB_UNROLL
  for (int step = 0; step < kRows / 16; ++step)
    wgmma_rs<64 * kHalf, Major::kMn>(
        acc.o, own + 4 * step,
        smem_desc(smem.k_tile(kMine) + kMine * kHalf * kBlockBytes + step * kStepRows), true);
  wgmma_commit();
}

/// Processes one tile of this warpgroup, and the other's tile before or after it, if there is one.
/// Warpgroup 1 computes P as soon as row_max of warpgroup 0 is stored.
template <int kHalf, int kMine>
PB_DEVICE void process_tile(const ForwardSmem& smem, Fragment& f, float scale,
                            const uint32_t (&last)[16], int parity, int num_left,
                            Accumulator<kHalf>& acc) {
  ForwardShared& shared = smem.shared();
  float s[32], tile_max[2], other_alpha[2], alpha[2];
  uint32_t own[16];
  compute_logits<kHalf, kMine>(s, smem, last, parity, num_left);
  f.rematerialize();
  find_tile_max(s, scale, shared, kMine, f, tile_max);
  if constexpr (kMine == 1) {
    named_barrier_sync(kRowMaxReady, kConsumers);
    take_other_max<kHalf, kMine>(shared, f, acc, other_alpha);
  }
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    acc.stats.update(half, fmaxf(acc.stats.row_max[half], tile_max[half]), alpha);
    if (f.quad == 0) shared.row_max[kMine][f.row + 8 * half] = acc.stats.row_max[half];
  }
  if constexpr (kMine == 0) named_barrier_arrive(kRowMaxReady, kConsumers);
  if constexpr (kMine == 0) rescale(acc.o, alpha);
  if constexpr (kMine == 1) rescale(acc.o, other_alpha);
  softmax_tile(s, scale, f, smem.p_tile(kMine), acc.stats, own);
  fence_async_proxy();
  named_barrier_arrive(kPStored + kMine, kConsumers);
  if constexpr (kMine == 1) {
    named_barrier_sync(kPStored, kConsumers);
    issue_pv_other<kHalf, kMine>(smem, acc);
    add_rounded_sum(own, acc.stats);
    finish_pv_other<kHalf, kMine>(smem, acc);
    rescale(acc.o, alpha);
  }
  issue_pv_own<kHalf, kMine>(smem, own, acc);
  wgmma_wait(acc.o, own);
  mbarrier_arrive_warp(shared.free[kMine][kMine]);
  if constexpr (kMine == 0) {
    add_rounded_sum(own, acc.stats);
    if (num_left == 1) return;
    named_barrier_sync(kPStored + 1, kConsumers);
    take_other_max<kHalf, kMine>(shared, f, acc, other_alpha);
    rescale(acc.o, other_alpha);
    issue_pv_other<kHalf, kMine>(smem, acc);
    finish_pv_other<kHalf, kMine>(smem, acc);
  }
}

/// Warpgroup 1 adds the last tile of warpgroup 0 when it has no tile of its own after it.
template <int kHalf>
PB_DEVICE void process_last_tile(const ForwardSmem& smem, const Fragment& f,
                                 Accumulator<kHalf>& acc) {
  float alpha[2];
  named_barrier_sync(kRowMaxReady, kConsumers);
  take_other_max<kHalf, 1>(smem.shared(), f, acc, alpha);
  rescale(acc.o, alpha);
  named_barrier_sync(kPStored, kConsumers);
  issue_pv_other<kHalf, 1>(smem, acc);
  finish_pv_other<kHalf, 1>(smem, acc);
}

template <int kHalf, int kMine>
PB_DEVICE void consume(const SparseMla& p, const SparseMlaResults& r, const ForwardSmem& smem,
                       const Items& items) {
  ForwardShared& shared = smem.shared();
  Fragment f;
  const float scale = p.softmax_scale * kLog2e;
  int parity = 0, query_parity = 0;
  for (int64_t item = items.first; item < num_items(p); item += items.step) {
    mbarrier_wait(shared.query_full, query_parity);
    query_parity ^= 1;
    const int num_tiles = shared.num_tiles;
    uint32_t last[16];
    load_a_fragment(last, smem.q_last_block(), f);
    fence_async_proxy();
    Accumulator<kHalf> acc;
    for (int tile = kMine; tile < num_tiles; tile += 2) {
      process_tile<kHalf, kMine>(smem, f, scale, last, parity, num_tiles - tile, acc);
      parity ^= 1;
    }
    if (num_tiles <= kMine) mbarrier_arrive_warp(shared.query_free[0]);
    // P of warpgroup 1 shares memory with the last block of the query. It is not read after this
    // point.
    mbarrier_arrive_warp(shared.query_free[1]);
    if constexpr (kMine == 1)
      if (num_tiles % 2 == 1) process_last_tile<kHalf>(smem, f, acc);
    store_forward<kHalf>(p, r, Cta(p, item), f, acc.stats, shared, acc.o);
  }
}

/// `storage`: forward_bytes, aligned to 1024 bytes. kHalf: half of the blocks of out, rounded up.
/// If their count is odd, the last block of warpgroup 1 reads columns behind V and is not stored.
template <int kHalf>
PB_DEVICE void forward_cta(const SparseMla& p, const SparseMlaResults& r, const Items& items,
                           unsigned char* storage) {
  const ForwardSmem smem{num_blocks(p.head_dim_qk), storage};
  init_mbarriers(smem.shared());
  const int warpgroup = warp_broadcast(thread_index() / 128);
  if (warpgroup == 2) {
    warpgroup_reg_dealloc<kProducerRegisters>();
    produce<kHalf>(p, smem, items);
  } else if (warpgroup == 0) {
    warpgroup_reg_alloc<kConsumerRegisters>();
    consume<kHalf, 0>(p, r, smem, items);
  } else {
    warpgroup_reg_alloc<kConsumerRegisters>();
    consume<kHalf, 1>(p, r, smem, items);
  }
}

}  // namespace patchbench::ops::sparse_mla_dims
