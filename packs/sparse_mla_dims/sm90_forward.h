#pragma once
#include <cmath>
#include <cstdint>

#include "../kernel/sm90/softmax.h"
#include "sm90_forward_loads.h"

// The forward. 384 threads, one CTA per SM, persistent: a CTA takes every gridDim.x-th item. An
// item is 64 heads of one query; the keys come in tiles of 64.
//   Warpgroup 2, the producer, loads the query, and K tiles into two stages.
//   Warpgroups 0 and 1, the consumers: warpgroup 0 has tiles 0, 2, ..., warpgroup 1 has the others.
//   A consumer computes S [64, 64] and P of its own tile, 32 registers a thread. It accumulates its
//   half of the columns of out, kHalf blocks of 64, 32 kHalf registers a thread, over all tiles in
//   order: its own with P from registers, the other's with P from shared memory.
// Tiles are processed in pairs. The tile of warpgroup 0 is added to the half of warpgroup 1 while
// that one computes P of its own tile. Warpgroup 0 issues S of its next tile behind its last
// product of this pair, and S of the next item before it stores out.
//
// row_max is a whole number: then a new row_max only changes P by a power of two, and the backward,
// which rounds P again, gets the same bits. It moves only where a logit is 8 above it: then out is
// seldom rescaled.
//
// A stage is released in two sets of columns: the V columns of warpgroup 0 with those outside of V,
// and the V columns of warpgroup 1. Loads follow the same order. Tiles after the last valid index
// of an item are skipped: indices of a causal query end in -1.
//
// P of warpgroup 1 is stored in its own K tile, in the last block, if the query has nine blocks:
// then that block is outside of V, and shared memory has no room for another.
//
// Shared memory: two K tiles, the query, P, and 1.9 KiB: 226 KiB at 576.
// Rounded to bfloat16: P, out, and out_remainder. Sums, row_max and lse are float32.
namespace patchbench::ops::sparse_mla_dims {

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
  /// Whether a logit is so far above row_max that row_max moves: sums are seldom rescaled, and P is
  /// at most 2^kSlack. Always true of a first tile.
  PB_DEVICE bool is_exceeded(int half, float logit) const {
    constexpr float kSlack = 8;
    return logit >= row_max[half] + kSlack;
  }
  /// Sets row_max to a value that is at least as large. `alpha` rescales earlier sums.
  PB_DEVICE void update(int half, float higher, float (&alpha)[2]) {
    const float before = row_max[half];
    row_max[half] = higher;
    alpha[half] = exp2_ftz(before - base(half));
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

/// The largest scaled logits of the thread's columns of a tile, by row. Logits of invalid indices
/// become -inf. For a negative scale the logits are negated.
PB_DEVICE void find_max(float (&s)[32], float signed_scale, const ForwardShared& shared, int stage,
                        const Fragment& f, float (&largest)[2]) {
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
    float pair[8];
    PB_UNROLL
    for (int i = 0; i < 8; ++i) pair[i] = fmaxf(s[4 * i + 2 * half], s[4 * i + 2 * half + 1]);
    PB_UNROLL
    for (int width = 4; width > 0; width /= 2) {
      PB_UNROLL
      for (int i = 0; i < width; ++i) pair[i] = fmaxf(pair[i], pair[i + width]);
    }
    largest[half] = pair[0] * abs_scale(signed_scale);
  }
}

/// Moves row_max, to a whole number, where a logit of the tile is kSlack above it, and stores it.
/// `alpha` rescales earlier sums.
PB_DEVICE void move_max(const float (&largest)[2], const Fragment& f, RowStats& stats,
                        float (&row_max)[kRows], float (&alpha)[2]) {
  alpha[0] = alpha[1] = 1;
  if (!any_sync(stats.is_exceeded(0, largest[0]) || stats.is_exceeded(1, largest[1]))) return;
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float tile_max = ceilf(quad_max(largest[half]));
    stats.update(half, stats.is_exceeded(half, tile_max) ? tile_max : stats.row_max[half], alpha);
    if (f.quad == 0) row_max[f.row + 8 * half] = stats.row_max[half];
  }
}

/// S to P: packed in `own` for this warpgroup's product, and stored at `to` for the other's.
PB_DEVICE void softmax_tile(const float (&s)[32], float signed_scale, const Fragment& f,
                            uint32_t to, RowStats& stats, uint32_t (&own)[16]) {
  const float scale = abs_scale(signed_scale);
  const float base[2] = {stats.base(0), stats.base(1)};
  const int lane = f.row % 8 * 4 + f.quad;
  to += swizzled_offset(f.row / 16 * 16 + lane % 16, lane / 16 * 16);
  PB_UNROLL
  for (int i = 0; i < 32; i += 8) {
    float p[8];
    PB_UNROLL
    for (int j = 0; j < 8; ++j) p[j] = exp2_ftz(fmaf(s[i + j], scale, -base[j / 2 % 2]));
    PB_UNROLL
    for (int j = 0; j < 8; j += 2) own[(i + j) / 2] = pack_bf16(p[j], p[j + 1]);
    stmatrix(to ^ i * 4, own + i / 2);
    PB_UNROLL
    for (int j = 0; j < 8; j += 2) stats.row_sum[j / 2 % 2] += p[j] + p[j + 1];
  }
}

/// Adds the rounded P to the sums. Not while wgmma reads `own`.
PB_DEVICE void add_rounded_sum(const uint32_t (&own)[16], RowStats& stats) {
  PB_UNROLL
  for (int i = 0; i < 16; ++i) stats.rounded_sum[i % 2] += bf16_low(own[i]) + bf16_high(own[i]);
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

/// Stores results in lines of 128 bytes, through 1 KiB of shared memory of the warp.
struct LineStore {
  uint32_t buffer;
  int lane = reread_thread_index() % 32;
  PB_DEVICE explicit LineStore(uint32_t storage) : buffer(storage) {}
  PB_DEVICE uint32_t at(int row, int chunk) const {
    return buffer + swizzled_offset(row, chunk * 16);
  }
  /// Stores 8 rows of 64 columns, of which the thread has columns 8 i + 2 (lane % 4) and the next
  /// one of row lane / 4 in words[i]. `to`: row lane / 8, column 8 (lane % 8). Rows from `rows` on
  /// do not exist.
  PB_DEVICE void store(const uint32_t (&words)[8], uint16_t* to, int64_t stride, int rows,
                       bool is_column) const {
    stmatrix(at(lane % 8, lane / 8), words);
    stmatrix(at(lane % 8, 4 + lane / 8), words + 4);
    sync_warp();
    PB_UNROLL
    for (int row = 0; row < 8; row += 4) {
      const Vec128 line = load_shared_128(at(row + lane / 8, lane % 8));
      if (row + lane / 8 < rows && is_column) store_128(to + row * stride, line);
    }
    sync_warp();
  }
};

/// Stores out, out_remainder (what rounding removed from out; not where it is null) and lse. P of
/// warpgroup 0 is no longer read; its shared memory is used.
template <int kHalf>
PB_DEVICE void store_forward(const SparseMla& p, const SparseMlaResults& r, const Cta& cta,
                             const Fragment& f, const ForwardSmem& smem, const float (&lse)[2],
                             const float (&inverse)[2], const float (&o)[32 * kHalf]) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    if (f.warpgroup == 0 && f.quad == 0 && row < cta.num_rows)
      r.lse[cta.first_row + row] = lse[half];
  }
  const int warp = f.row / 16;
  const LineStore lines(smem.p_tile(0) + (f.warpgroup * 4 + warp) * 8 * kRowBytes);
  const int first_column = f.warpgroup * kHalf * kColumns + lines.lane % 8 * 8;
  const int num_columns = p.head_dim_v - first_column;
  const int64_t first = (cta.first_row + warp * 16 + lines.lane / 8) * p.head_dim_v + first_column;
  PB_UNROLL
  for (int block = 0; block < kHalf; ++block) {
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t offset = first + half * 8 * p.head_dim_v + block * kColumns;
      const int rows = static_cast<int>(cta.num_rows) - warp * 16 - half * 8;
      const bool is_column = block * kColumns < num_columns;
      uint32_t out[8], rest[8];
      PB_UNROLL
      for (int j = 0; j < 8; ++j) {
        const int i = 32 * block + 4 * j + 2 * half;
        const float low = o[i] * inverse[half], high = o[i + 1] * inverse[half];
        out[j] = pack_bf16(low, high);
        rest[j] = pack_bf16(low - bf16_low(out[j]), high - bf16_high(out[j]));
      }
      lines.store(out, r.out + offset, p.head_dim_v, rows, is_column);
      if (r.out_remainder != nullptr)
        lines.store(rest, r.out_remainder + offset, p.head_dim_v, rows, is_column);
    }
  }
  // The shared memory is written next.
  named_barrier_sync(kStored, kConsumers);
}

/// Issues S of the warpgroup's tile over the columns of set kSet, when they are loaded. Set 0 can
/// be issued in two parts: up to block kEnd, and from block kBegin on.
template <int kHalf, int kMine, int kSet, int kBegin = 0, int kEnd = kMaxBlocks>
PB_DEVICE void issue_qk(float (&s)[32], const ForwardSmem& smem, int parity) {
  if constexpr (kBegin == 0) {
    mbarrier_wait(smem.shared().full[kMine][kSet], parity);
    // The products read what other threads copied.
    fence_async_proxy();
  }
  wgmma_fence(s);
  const auto issue = [&](int begin, int end) {
    const int blocks = (end < smem.blocks ? end : smem.blocks) - begin;
    mma_abt(s, smem.q_tile() + begin * kBlockBytes, smem.k_tile(kMine) + begin * kBlockBytes,
            blocks, begin > 0);
  };
  if constexpr (kSet == 0) {
    issue(kBegin, kHalf < kEnd ? kHalf : kEnd);
    if constexpr (kEnd == kMaxBlocks) issue(2 * kHalf, kMaxBlocks);
  } else {
    issue(kHalf, 2 * kHalf);
  }
  wgmma_commit();
}

/// Softmax state and accumulator of a warpgroup for the current item.
template <int kHalf>
struct Accumulator {
  RowStats stats;
  float o[32 * kHalf] = {};
};

/// Takes over row_max after the other warpgroup's tile. `alpha` rescales `o`.
template <int kHalf>
PB_DEVICE void take_max(const ForwardShared& shared, const Fragment& f, Accumulator<kHalf>& acc,
                        float (&alpha)[2]) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    acc.stats.update(half, shared.row_max[f.row + 8 * half], alpha);
}

/// Issues o += P V of the other warpgroup's last tile.
template <int kHalf, int kMine>
PB_DEVICE void issue_pv_other(const ForwardSmem& smem, Accumulator<kHalf>& acc) {
  wgmma_fence(acc.o);
  mma_ab<Major::kK, 64 * kHalf>(acc.o, smem.p_tile(1 - kMine),
                                smem.k_tile(1 - kMine) + kMine * kHalf * kBlockBytes, true);
  wgmma_commit();
}

/// Waits for that product, behind which kPending groups are issued, and releases the stage.
template <int kHalf, int kMine, int kPending = 0>
PB_DEVICE void finish_pv_other(const ForwardSmem& smem, Accumulator<kHalf>& acc) {
  wgmma_wait<kPending>(acc.o);
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

/// S times the scales of the query's rows.
PB_DEVICE void scale_rows(float (&s)[32], const float* query_scale, const Fragment& f) {
  const float scale[2] = {query_scale[f.row], query_scale[f.row + 8]};
  PB_UNROLL
  for (int i = 0; i < 32; ++i) s[i] *= scale[i / 2 % 2];
}

/// Processes one tile of this warpgroup, whose S is issued, and the other's tile before or after
/// it, if there is one; then issues S of the next tile. `parity`: of the loads of that one.
template <int kHalf, int kMine, bool kIsScaled>
PB_DEVICE void process_tile(const ForwardSmem& smem, Fragment& f, float scale, int parity,
                            int num_left, Accumulator<kHalf>& acc, float (&s)[32]) {
  ForwardShared& shared = smem.shared();
  float largest[2], other_alpha[2], alpha[2];
  uint32_t own[16];
  wgmma_wait(s);
  if constexpr (kIsScaled) scale_rows(s, smem.query_scale(), f);
  if (num_left <= 2) mbarrier_arrive_warp(shared.query_free);
  f.rematerialize();
  find_max(s, scale, shared, kMine, f, largest);
  if constexpr (kMine == 1) {
    named_barrier_sync(kPStored, kConsumers);
    take_max<kHalf>(shared, f, acc, other_alpha);
    rescale(acc.o, other_alpha);
    issue_pv_other<kHalf, kMine>(smem, acc);
  }
  move_max(largest, f, acc.stats, shared.row_max, alpha);
  softmax_tile(s, scale, f, smem.p_tile(kMine), acc.stats, own);
  fence_async_proxy();
  named_barrier_arrive(kPStored + kMine, kConsumers);
  if constexpr (kMine == 1) finish_pv_other<kHalf, kMine>(smem, acc);
  rescale(acc.o, alpha);
  issue_pv_own<kHalf, kMine>(smem, own, acc);
  wgmma_wait(acc.o, own);
  mbarrier_arrive_warp(shared.free[kMine][kMine]);
  add_rounded_sum(own, acc.stats);
  if constexpr (kMine == 0) {
    if (num_left == 1) return;
    named_barrier_sync(kPStored + 1, kConsumers);
    take_max<kHalf>(shared, f, acc, other_alpha);
    rescale(acc.o, other_alpha);
    issue_pv_other<kHalf, kMine>(smem, acc);
    if (num_left > 2) {
      issue_qk<kHalf, kMine, 0, 0, 1>(s, smem, parity);
      finish_pv_other<kHalf, kMine, 1>(smem, acc);
      issue_qk<kHalf, kMine, 0, 1>(s, smem, parity);
      issue_qk<kHalf, kMine, 1>(s, smem, parity);
      return;
    }
    finish_pv_other<kHalf, kMine>(smem, acc);
  }
  if (num_left > 2) {
    issue_qk<kHalf, kMine, 0>(s, smem, parity);
    issue_qk<kHalf, kMine, 1>(s, smem, parity);
  }
}

/// Warpgroup 1 adds the last tile of warpgroup 0 when it has no tile of its own after it.
template <int kHalf>
PB_DEVICE void process_last_tile(const ForwardSmem& smem, const Fragment& f,
                                 Accumulator<kHalf>& acc) {
  float alpha[2];
  named_barrier_sync(kPStored, kConsumers);
  take_max<kHalf>(smem.shared(), f, acc, alpha);
  rescale(acc.o, alpha);
  issue_pv_other<kHalf, 1>(smem, acc);
  finish_pv_other<kHalf, 1>(smem, acc);
}

template <int kHalf, int kMine, bool kIsScaled>
PB_DEVICE void consume(const SparseMla& p, const SparseMlaResults& r, const ForwardSmem& smem,
                       const Items& items) {
  ForwardShared& shared = smem.shared();
  Fragment f;
  const float scale = p.softmax_scale * kLog2e;
  int parity = 0, query_parity = 0;
  float s[32];
  Accumulator<kHalf> acc;
  // Warpgroup 0 begins an item before it stores the one before. Warpgroup 1 stores first: its tile
  // is loaded later.
  for (int64_t item = items.first;; item += items.step) {
    const bool is_item = item < num_items(p);
    int num_tiles = 0;
    const auto begin = [&] {
      if (!is_item) return;
      mbarrier_wait(shared.query_full, query_parity);
      query_parity ^= 1;
      num_tiles = shared.num_tiles;
      if (kMine >= num_tiles) return;
      issue_qk<kHalf, kMine, 0>(s, smem, parity);
      issue_qk<kHalf, kMine, 1>(s, smem, parity);
    };
    const bool has_results = item != items.first;
    float lse[2], inverse[2];
    if (has_results) finalize_rows(f, acc.stats, shared, lse, inverse);
    if constexpr (kMine == 0) begin();
    if (has_results)
      store_forward<kHalf>(p, r, Cta(p, item - items.step), f, smem, lse, inverse, acc.o);
    if (!is_item) return;
    if constexpr (kMine == 1) begin();
    acc = Accumulator<kHalf>();
    for (int tile = kMine; tile < num_tiles; tile += 2) {
      parity ^= 1;
      process_tile<kHalf, kMine, kIsScaled>(smem, f, scale, parity, num_tiles - tile, acc, s);
    }
    if (num_tiles <= kMine) mbarrier_arrive_warp(shared.query_free);
    if constexpr (kMine == 1)
      if (num_tiles % 2 == 1) process_last_tile<kHalf>(smem, f, acc);
  }
}

/// `storage`: forward_bytes, and with a scaled query kRows floats more, aligned to 1024 bytes.
/// kHalf: half of the blocks of out, rounded up. If their count is odd, the last block of warpgroup
/// 1 reads columns behind V and is not stored.
template <int kHalf, typename Query = DenseQuery>
PB_DEVICE void forward_cta(const SparseMla& p, const SparseMlaResults& r, const Items& items,
                           unsigned char* storage, const Query& query = {}) {
  const ForwardSmem smem{num_blocks(p.head_dim_qk), storage};
  init_mbarriers(smem.shared());
  const int warpgroup = warp_broadcast(thread_index() / 128);
  if (warpgroup == 2) {
    warpgroup_reg_dealloc<kProducerRegisters>();
    produce<kHalf>(p, smem, items, query);
  } else if (warpgroup == 0) {
    warpgroup_reg_alloc<kConsumerRegisters>();
    consume<kHalf, 0, Query::kIsScaled>(p, r, smem, items);
  } else {
    warpgroup_reg_alloc<kConsumerRegisters>();
    consume<kHalf, 1, Query::kIsScaled>(p, r, smem, items);
  }
}

}  // namespace patchbench::ops::sparse_mla_dims
