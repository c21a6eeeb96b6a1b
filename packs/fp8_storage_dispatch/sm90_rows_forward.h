#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_rows_loads.h"

// The forward over keys of 576 e4m3 with one scale for each key, or one for all. Include the
// primitives first. 384 threads, one CTA per SM, persistent: a CTA takes every gridDim.x-th item.
// An item is 64 heads of one query; the keys come in tiles of 64.
//   Warpgroup 2, the producer, loads the query, and keys as they are stored, into four stages.
//   Warpgroups 0 and 1, the consumers: warpgroup 0 has tiles 0, 2, ..., warpgroup 1 has the others.
//   A consumer computes S [64, 64] of its own tile on FP8 tensor cores, 32 registers a thread, and
//   P in float16. Of out^T [512, 64] it has 256 rows, 128 registers a thread, to which all tiles
//   are added in order: V^T P^T, V^T from registers, P^T from shared memory.
// V^T is made from the stored bytes as they are read: ldmatrix transposes pairs of columns, a byte
// permutation separates them, and e4m3 is exact in float16. V is never written back. Rows 16 w + i
// and 16 w + i + 8 of 64 rows of V^T are columns 2 i and 2 i + 1 of the 16 columns of warp w.
// Hopper sums e4m3 products in fewer than 24 bits: after every kSumSteps of 32 columns they are
// added to a float32 register.
// P is exp2 of the logit plus log2 of the key's scale, minus the base of the row, so that V needs
// no scale. The base is a whole number, raised when P leaves the range of float16; sums are
// rescaled with it. Rounding takes at most 2^-12 of a P, or 2^-32 at the base: less than the
// rounding of out, so out is divided by the sum of P before rounding.
// Shared memory: four K tiles, the query, four P tiles, and 5.5 KiB: 222 KiB.
// Rounded to float16: P. Rounded to bfloat16: out. Sums, bases and lse are float32.
namespace patchbench::ops::fp8_storage_dispatch {

/// The two rows of a thread: their bases, and sums over this thread's columns of its warpgroup's
/// tiles.
struct RowStats {
  float base[2] = {-INFINITY, -INFINITY};  ///< -inf before the first key
  float sum[2] = {0, 0};                   ///< of P

  /// The value that is subtracted from a logit.
  PB_DEVICE float shift(int half) const {
    // -inf - -inf is NaN.
    return (base[half] == -INFINITY ? 0.0f : base[half]) - kBaseLog2P;
  }
  /// Sets a base that is at least as large; returns the factor for earlier sums.
  PB_DEVICE float update(int half, float higher) {
    const float alpha = base[half] == -INFINITY ? 1.0f : exp2_of(base[half] - higher);
    base[half] = higher;
    sum[half] *= alpha;
    return alpha;
  }
};

/// Converts S to units of log2 and adds the key scales. If all keys share one scale, the row's
/// `scale` is applied later.
template <bool kIsToken>
PB_DEVICE void scale_logits(float (&s)[32], const float (&scale)[2], const KeyScales& keys,
                            int negative, bool has_gaps, const Fragment& f) {
  if constexpr (kIsToken) {
    PB_UNROLL
    for (int i = 0; i < 32; i += 4) {
      const KeyScales::Pair pair = keys.pairs[f.column(i) / 2];
      PB_UNROLL
      for (int e = 0; e < 4; ++e)
        s[i + e] = fmaf(s[i + e] * pair.scale[e % 2], scale[e / 2], pair.shift[e % 2]);
    }
  } else {
    if (negative != 0) {
      PB_UNROLL
      for (int i = 0; i < 32; ++i) s[i] = (negative >> i / 2 % 2 & 1) != 0 ? -s[i] : s[i];
    }
    if (has_gaps) {
      PB_UNROLL
      for (int i = 0; i < 32; ++i) s[i] += keys.pairs[f.column(i) / 2].shift[i % 2];
    }
  }
}

/// Loads the bases after all tiles so far; the other warpgroup processed the last one.
PB_DEVICE void load_row_bases(const RowsShared& shared, const Fragment& f, RowStats& stats) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) stats.update(half, shared.base[f.row + 8 * half]);
}

/// Raises the bases of the rows to the largest logits, rounded up to whole numbers: then a new base
/// only changes P by a power of two. Returns the flags to store.
template <bool kIsToken>
PB_DEVICE uint32_t raise_row_bases(const float (&s)[32], const float (&scale)[2],
                                   RowsShared& shared, uint32_t p_stage, const Fragment& f,
                                   RowStats& stats) {
  bool has_grown = false;
  // All lanes of a row have read the old base.
  sync_warp();
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    float tile_max = s[2 * half];
    PB_UNROLL
    for (int i = 2 * half; i < 32; i += 4) tile_max = fmaxf(tile_max, fmaxf(s[i], s[i + 1]));
    tile_max = ceilf(quad_max(kIsToken ? tile_max : tile_max * scale[half]));
    float alpha = 1;
    if (tile_max > stats.base[half]) alpha = stats.update(half, tile_max);
    has_grown |= alpha != 1.0f;
    if (f.quad != 0) continue;
    shared.base[f.row + 8 * half] = stats.base[half];
    shared.alpha[p_stage][f.row + 8 * half] = alpha;
  }
  return any_sync(has_grown) ? kRaised | kRescale : kRaised;
}

/// S to P relative to the bases, stored in shared memory. Returns the sums of P divided by the key
/// scales, and of P.
template <bool kIsToken>
PB_DEVICE void store_p(const float (&s)[32], const float (&scale)[2], const RowsSmem& smem,
                       uint32_t stage, uint32_t p_stage, const Fragment& f, const RowStats& stats,
                       float (&sum)[2], float (&unscaled_sum)[2]) {
  const KeyScales& keys = smem.shared().keys[stage];
  const int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
  const uint32_t to =
      shared_address(smem.p_tile(p_stage)) + swizzled_offset(warp * 16 + lane % 16, lane / 16 * 16);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) sum[half] = unscaled_sum[half] = 0;
  PB_UNROLL
  for (int i = 0; i < 32; i += 8) {
    uint32_t rounded[4];
    PB_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int at = i + 2 * j, half = j % 2;
      const float factor = kIsToken ? 1.0f : scale[half];
      const float first = exp2_ftz(fmaf(s[at], factor, -stats.shift(half)));
      const float second = exp2_ftz(fmaf(s[at + 1], factor, -stats.shift(half)));
      rounded[j] = pack_f16(first, second);
      unscaled_sum[half] += first + second;
      if (!kIsToken) continue;
      const float* inverse = &keys.inverse[f.column(at)];
      sum[half] = fmaf(first, inverse[0], fmaf(second, inverse[1], sum[half]));
    }
    // Blocks are aligned to 1024 bytes: an offset of two 16-byte units flips one address bit, with
    // or without the swizzle.
    stmatrix(to ^ i / 8 * 32, rounded);
  }
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    if (!kIsToken) sum[half] = unscaled_sum[half];
}

/// S to P, stored in shared memory; raises the bases first where needed.
template <bool kIsToken>
PB_DEVICE void softmax_tile(const float (&s)[32], const float (&scale)[2], const RowsSmem& smem,
                            uint32_t stage, uint32_t p_stage, const Fragment& f, RowStats& stats) {
  RowsShared& shared = smem.shared();
  float sum[2], unscaled_sum[2];
  store_p<kIsToken>(s, scale, smem, stage, p_stage, f, stats, sum, unscaled_sum);
  const auto is_low = [&](int half) {
    return unscaled_sum[half] >= kMaxRowSum || stats.base[half] == -INFINITY;
  };
  uint32_t flags = 0;
  if (any_sync(is_low(0) || is_low(1))) {
    flags = raise_row_bases<kIsToken>(s, scale, shared, p_stage, f, stats);
    store_p<kIsToken>(s, scale, smem, stage, p_stage, f, stats, sum, unscaled_sum);
  }
  if (thread_index() % 32 == 0)
    shared.has_grown[p_stage][thread_index() / 32 % 4] = static_cast<uint8_t>(flags);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) stats.sum[half] += sum[half];
}

/// Loads the bytes of 64 rows of V^T, block m of this warpgroup, for the keys of a stage.
PB_DEVICE void load_v_bytes(uint32_t (&bytes)[2][4], const RowsSmem& smem, const Fragment& f,
                            uint32_t stage, int m) {
  const int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
  const uint32_t block = smem.block(4 * stage + 2 * f.warpgroup + m / 2);
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    ldmatrix_trans(bytes[half], block + swizzled_offset(32 * half + lane, m % 2 * 64 + warp * 16));
}

/// The flags that the four warps stored with P of this tile.
PB_DEVICE uint32_t growth_of(const RowsShared& shared, uint32_t count) {
  return *reinterpret_cast<const uint32_t*>(shared.has_grown[count % kPStages]);
}

PB_DEVICE void rescale(float (&o)[4][32], const float (&alpha)[kRows], uint32_t has_grown,
                       const Fragment& f) {
  if ((has_grown & kAnyRescale) == 0) return;
  PB_UNROLL
  for (int warp = 0; warp < 4; ++warp) {
    if ((has_grown >> warp * 8 & kRescale) == 0) continue;
    PB_UNROLL
    for (int i = warp * 8; i < warp * 8 + 8; ++i) {
      const float factor = alpha[f.column(i)];
      PB_UNROLL
      for (int m = 0; m < 4; ++m) o[m][i] *= factor;
    }
  }
}

/// Issues the products of the CTA's tile `count`. Unless kIsFirst, products of the previous tile
/// are in flight; the last products of this tile stay in flight.
template <bool kIsFirst>
PB_DEVICE void issue_pv(const RowsSmem& smem, const Fragment& f, uint32_t count, float (&o)[4][32],
                        uint32_t (&values)[kBuffers][16]) {
  RowsShared& shared = smem.shared();
  const uint32_t p_stage = count % kPStages, stage = count % kStages;
  uint32_t bytes[2][4];
  load_v_bytes(bytes, smem, f, stage, 0);
  const uint64_t p_desc = smem_desc(shared_address(smem.p_tile(p_stage)));
  PB_UNROLL
  for (int m = 0; m < 4; ++m) {
    uint32_t(&mine)[16] = values[m % kBuffers];
    if (!kIsFirst || m >= kBuffers) wgmma_wait<kBuffers - 1>(mine, o[(m + 4 - kBuffers) % 4]);
    PB_UNROLL
    for (int i = 0; i < 8; ++i) e4m3_to_f16(bytes[i / 4][i % 4], mine[2 * i], mine[2 * i + 1]);
    warpgroup_fence_operand(mine);
    wgmma_fence(o[m]);
    PB_UNROLL
    for (int step = 0; step < 4; ++step)
      wgmma_rs_f16(o[m], mine + 4 * step, advance_smem_desc(p_desc, step * kStepColumns), true);
    wgmma_commit();
    if (m < 3) load_v_bytes(bytes, smem, f, stage, m + 1);
  }
  mbarrier_arrive_warp(shared.free[stage]);
}

/// Adds tile `count` and, if has_next, the next one.
PB_DEVICE void accumulate_pv(const RowsSmem& smem, const Fragment& f, uint32_t count, bool has_next,
                             float (&o)[4][32]) {
  RowsShared& shared = smem.shared();
  const auto wait_for_p = [&](uint32_t tile) {
    mbarrier_wait(shared.p_full[tile % kPStages], static_cast<int>(tile / kPStages % 2));
  };
  wait_for_p(count);
  if (has_next) wait_for_p(count + 1);
  PB_ROLLED
  for (bool is_done = false; !is_done; ++count) {
    rescale(o, shared.alpha[count % kPStages], growth_of(shared, count), f);
    uint32_t values[kBuffers][16];
    issue_pv<true>(smem, f, count, o, values);
    const bool is_pair = has_next && (growth_of(shared, count + 1) & kAnyRescale) == 0;
    is_done = is_pair || !has_next;
    has_next = false;
    if (is_pair) issue_pv<false>(smem, f, ++count, o, values);
    wgmma_wait(o[0], o[1], o[2], o[3]);
    PB_UNROLL
    for (int i = 0; i < kBuffers; ++i) warpgroup_fence_operand(values[i]);
  }
}

/// S of a tile, in units of the stored bytes.
PB_DEVICE void compute_logits(float (&s)[32], const RowsSmem& smem, uint32_t stage) {
  const uint64_t query = smem_desc(smem.at(kStages, 0)), keys = smem_desc(smem.at(stage, 0));
  const uint64_t query_rope = smem_desc(smem.at(kStages, 16));
  const uint64_t keys_rope = smem_desc(smem.at(stage, 16));
  PB_UNROLL
  for (int first = 0; first < kAllSteps; first += kSumSteps) {
    float sum[32];
    wgmma_fence(sum);
    PB_UNROLL
    for (int step = first; step < first + kSumSteps && step < kAllSteps; ++step) {
      const uint32_t at = step % 16 / 4 * kBlockBytes + step % 4 * kStepColumns;
      wgmma_ss_e4m3<64>(sum, advance_smem_desc(step < 16 ? query : query_rope, at),
                        advance_smem_desc(step < 16 ? keys : keys_rope, at), step > first);
    }
    wgmma_commit();
    wgmma_wait(sum);
    PB_UNROLL
    for (int i = 0; i < 32; ++i) s[i] = first == 0 ? sum[i] : s[i] + sum[i];
  }
}

/// Stores out and lse.
PB_DEVICE void store_results(uint16_t* out, float* lse, const Cta& cta, const Fragment& f,
                             const RowStats& stats, RowsShared& shared, int parity,
                             float value_scale, const float (&o)[4][32]) {
  auto& all_sums = shared.sum[parity];
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(stats.sum[half]);
    if (f.quad == 0) all_sums[f.warpgroup][f.row + 8 * half] = sum;
  }
  // The sums of both warpgroups are read next.
  named_barrier_sync(kSumsBarrier, kRowsConsumers);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    if (f.warpgroup != 0 || f.quad != 0 || row >= cta.num_rows) continue;
    const float sum = all_sums[0][row] + all_sums[1][row];
    lse[cta.first_row + row] = sum == 0.0f ? 0.0f : log2_of(sum) + stats.shift(half);
  }
  const int column = f.warpgroup * 256 + thread_index() / 32 % 4 * 16 + f.row % 8 * 2;
  PB_UNROLL
  for (int i = 0; i < 32; i += 4) {
    PB_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int head = f.column(i + e);
      if (head >= cta.num_rows) continue;
      const float sum = all_sums[0][head] + all_sums[1][head];
      const float inverse = sum == 0.0f ? 0.0f : value_scale / sum;
      PB_UNROLL
      for (int m = 0; m < 4; ++m)
        *reinterpret_cast<uint32_t*>(out + (cta.first_row + head) * kHeadDimV + column + 64 * m) =
            pack_bf16(o[m][i + e] * inverse, o[m][i + e + 2] * inverse);
    }
  }
}

/// Computes P of tile `count`.
template <bool kIsToken>
PB_DEVICE void compute_p_tile(const RowsSmem& smem, const Fragment& f, const float (&scale)[2],
                              int negative, uint32_t count, bool is_first, bool is_last,
                              RowStats& stats) {
  RowsShared& shared = smem.shared();
  const uint32_t stage = count % kStages, p_stage = count % kPStages;
  float s[32];
  mbarrier_wait(shared.full[stage], static_cast<int>(count / kStages % 2));
  // The products read what other threads copied.
  fence_async_proxy();
  compute_logits(s, smem, stage);
  if (is_last) mbarrier_arrive_warp(shared.query_free);
  scale_logits<kIsToken>(s, scale, shared.keys[stage], negative,
                         *reinterpret_cast<const uint32_t*>(shared.has_gaps[stage]) != 0, f);
  if (!is_first) {
    const uint32_t before = (count - 1) % kPStages;
    mbarrier_wait(shared.p_full[before], static_cast<int>((count - 1) / kPStages % 2));
    if (shared.has_grown[before][thread_index() / 32 % 4] != 0) load_row_bases(shared, f, stats);
  }
  softmax_tile<kIsToken>(s, scale, smem, stage, p_stage, f, stats);
  fence_async_proxy();
  mbarrier_arrive_warp(shared.p_full[p_stage]);
}

template <bool kIsToken>
PB_DEVICE void consume(const SparseMla& p, uint16_t* out, float* lse, const RowsSmem& smem,
                       const Items& items) {
  RowsShared& shared = smem.shared();
  const Fragment f;
  const int tiles = num_tiles(p);
  uint32_t count = 0;
  int parity = 0;
  for (int64_t item = items.first; item < num_items(p); item += items.step, count += tiles) {
    const Cta cta = cta_of(p, item);
    const float value_scale = kIsToken ? 1.0f : p.kv_scale[0];
    float scale[2];
    int negative = 0;
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t row = f.row + 8 * half;
      const float query_scale =
          row < cta.num_rows ? p.q_scale[(cta.first_row + row) * p.q_scale_stride] : 1.0f;
      scale[half] = query_scale * value_scale * p.softmax_scale * kLog2e;
      // row_max is taken before scaling, and -inf * 0 is NaN.
      if (kIsToken) continue;
      negative |= scale[half] < 0.0f ? 1 << half : 0;
      scale[half] = fmaxf(fabsf(scale[half]), 1e-37f);
    }
    RowStats stats;
    float o[4][32] = {};  // [rows of V^T, heads] by 64 rows
    mbarrier_wait(shared.query_full, parity);
    if (f.warpgroup >= tiles) mbarrier_arrive_warp(shared.query_free);
    // Each iteration computes P of one own tile, and adds the tile before it and the tile itself.
    // The last iteration may only have the tile before.
    for (int tile = f.warpgroup; tile < tiles + 1 && tiles > 0; tile += 2) {
      if (tile < tiles)
        compute_p_tile<kIsToken>(smem, f, scale, negative, count + tile, tile == 0,
                                 tile + 2 >= tiles, stats);
      accumulate_pv(smem, f, count + (tile > 0 ? tile - 1 : 0), tile > 0 && tile < tiles, o);
    }
    if (tiles > 0) load_row_bases(shared, f, stats);
    store_results(out, lse, cta, f, stats, shared, parity, value_scale, o);
    parity ^= 1;
  }
}

/// `storage`: kRowsBytes, aligned to 1024 bytes.
template <bool kIsToken>
PB_DEVICE void rows_forward_cta(const SparseMla& p, uint16_t* out, float* lse, const Items& items,
                                unsigned char* storage) {
  const RowsSmem smem{storage};
  init_mbarriers(smem.shared());
  const int warpgroup = warp_broadcast(thread_index() / 128);
  if (warpgroup == 2) {
    warpgroup_reg_dealloc<kRowsProducerRegisters>();
    produce<kIsToken>(p, smem, items);
  } else {
    warpgroup_reg_alloc<kRowsConsumerRegisters>();
    consume<kIsToken>(p, out, lse, smem, items);
  }
}

}  // namespace patchbench::ops::fp8_storage_dispatch
