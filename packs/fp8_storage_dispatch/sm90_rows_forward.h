#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_rows_loads.h"

// The forward over keys of 576 e4m3 with one scale each, or one for all. Include the primitives
// first. 384 threads, one CTA per SM, which takes every gridDim.x-th item: 64 heads of one query,
// whose keys pass by in tiles of 64.
//   Warpgroup 2 copies: the query, and keys as they are stored, into four places.
//   Warpgroups 0 and 1: the first has tiles 0, 2, ..., the second the others. Of its own tile each
//   forms the logits [64, 64] on FP8 tensor cores, 32 registers a thread, and P, in half precision.
//   Of out^T [512, 64] it has 256 rows, 128 registers a thread, to which all tiles are added in
//   order: V^T P^T, V^T from registers, P^T from shared memory.
// V^T is made of the stored bytes as they are read: ldmatrix transposes pairs of columns, a
// permutation of bytes takes them apart, and e4m3 is exact in half precision. V is never written
// back. Rows 16 w + i and i + 8 of 64 of V^T are columns 2 i and 2 i + 1 of the 16 of warp w.
// Hopper sums e4m3 products in fewer than 24 bits: every kSumSteps of 32 columns they are added to
// a float32 register.
// P is exp2 of the logit and of log2 of the key's scale, so that V is of the bytes alone, over a
// base of the row: a whole number, raised when weights leave half precision, and sums with it. What
// rounding takes of a weight is at most 2^-12 of it, or 2^-32 of the base's: less than out's, so
// that means are taken with the weights before it.
// Shared memory: four tiles of keys, the query, four of P, and 5.5 KiB: 222 KiB.
// Rounded to half precision: P. To bfloat16: out. Sums, bases and lse are float32.
namespace patchbench::ops::fp8_storage_dispatch {

/// A thread's rows: their bases, and sums over the thread's own columns of the tiles of its
/// warpgroup.
struct RowSums {
  float base[2] = {-INFINITY, -INFINITY};  ///< -inf before the first key
  float sum[2] = {0, 0};                   ///< of P

  /// What is subtracted from a logit.
  PB_DEVICE float shift(int half) const {
    // -inf - -inf is no number.
    return (base[half] == -INFINITY ? 0.0f : base[half]) - kBaseWeight;
  }
  /// Takes a base that is no lower; returns what earlier sums are worth.
  PB_DEVICE float raise(int half, float higher) {
    const float alpha = base[half] == -INFINITY ? 1.0f : exp2_of(base[half] - higher);
    base[half] = higher;
    sum[half] *= alpha;
    return alpha;
  }
};

/// To units of log2, the key's scale among them; where all have one, but for the row's `scale`.
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

/// Those of all tiles so far, of which the last is the other warpgroup's.
PB_DEVICE void take_bases(const RowsShared& shared, const Fragment& f, RowSums& sums) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) sums.raise(half, shared.base[f.row + 8 * half]);
}

/// Raises the bases of rows to the highest logits; they become whole numbers: P before its rounding
/// is then the same but for powers of two whatever the base. Returns what to note.
template <bool kIsToken>
PB_DEVICE uint32_t raise_bases(const float (&s)[32], const float (&scale)[2], RowsShared& shared,
                               uint32_t place, const Fragment& f, RowSums& sums) {
  bool has_grown = false;
  // All lanes of a row have read its base.
  sync_warp();
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    float top = s[2 * half];
    PB_UNROLL
    for (int i = 2 * half; i < 32; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
    top = ceilf(quad_max(kIsToken ? top : top * scale[half]));
    float alpha = 1;
    if (top > sums.base[half]) alpha = sums.raise(half, top);
    has_grown |= alpha != 1.0f;
    if (f.quad != 0) continue;
    shared.base[f.row + 8 * half] = sums.base[half];
    shared.alpha[place][f.row + 8 * half] = alpha;
  }
  return any_in_warp(has_grown) ? kRaised | kRescale : kRaised;
}

/// Logits to P over the bases, which goes to shared memory. Returns the sums of P and of weights.
template <bool kIsToken>
PB_DEVICE void write_weights(const float (&s)[32], const float (&scale)[2],
                             const RowsPlaces& places, uint32_t stage, uint32_t place,
                             const Fragment& f, const RowSums& sums, float (&sum)[2],
                             float (&weight)[2]) {
  const KeyScales& keys = places.shared().keys[stage];
  const int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
  const uint32_t to =
      shared_address(places.weights(place)) + in_block(warp * 16 + lane % 16, lane / 16 * 16);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) sum[half] = weight[half] = 0;
  PB_UNROLL
  for (int i = 0; i < 32; i += 8) {
    uint32_t rounded[4];
    PB_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int at = i + 2 * j, half = j % 2;
      const float factor = kIsToken ? 1.0f : scale[half];
      const float first = exp2_flushed(fmaf(s[at], factor, -sums.shift(half)));
      const float second = exp2_flushed(fmaf(s[at + 1], factor, -sums.shift(half)));
      rounded[j] = pack_half(first, second);
      weight[half] += first + second;
      if (!kIsToken) continue;
      const float* inverse = &keys.inverse[f.column(at)];
      sum[half] = fmaf(first, inverse[0], fmaf(second, inverse[1], sum[half]));
    }
    // Blocks start at multiples of 1024: two chunks on is another bit, swizzled or not.
    store_rows(to ^ i / 8 * 32, rounded);
  }
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    if (!kIsToken) sum[half] = weight[half];
}

/// Logits to P, which goes to shared memory.
template <bool kIsToken>
PB_DEVICE void soften(const float (&s)[32], const float (&scale)[2], const RowsPlaces& places,
                      uint32_t stage, uint32_t place, const Fragment& f, RowSums& sums) {
  RowsShared& shared = places.shared();
  float sum[2], weight[2];
  write_weights<kIsToken>(s, scale, places, stage, place, f, sums, sum, weight);
  const auto is_low = [&](int half) {
    return weight[half] >= kMostWeight || sums.base[half] == -INFINITY;
  };
  uint32_t note = 0;
  if (any_in_warp(is_low(0) || is_low(1))) {
    note = raise_bases<kIsToken>(s, scale, shared, place, f, sums);
    write_weights<kIsToken>(s, scale, places, stage, place, f, sums, sum, weight);
  }
  if (thread_index() % 32 == 0)
    shared.has_grown[place][thread_index() / 32 % 4] = static_cast<uint8_t>(note);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) sums.sum[half] += sum[half];
}

/// The bytes of 64 rows of V^T, those of block m of the warpgroup's, over a stage's keys.
PB_DEVICE void load_bytes(uint32_t (&bytes)[2][4], const RowsPlaces& places, const Fragment& f,
                          uint32_t stage, int m) {
  const int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
  const uint32_t block = places.block(4 * stage + 2 * f.warpgroup + m / 2);
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    ldmatrix_trans(bytes[half], block + in_block(32 * half + lane, m % 2 * 64 + warp * 16));
}

/// What the four warps that weighed the tile noted of their rows.
PB_DEVICE uint32_t growth_of(const RowsShared& shared, uint32_t count) {
  return *reinterpret_cast<const uint32_t*>(shared.has_grown[count % kPlaces]);
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

/// Adds tile `count` of all the CTA's. Products of the tile before are under way unless it
/// `is_first`; the last of its own stay so.
template <bool kIsFirst>
PB_DEVICE void add_tile(const RowsPlaces& places, const Fragment& f, uint32_t count,
                        float (&o)[4][32], uint32_t (&values)[kBuffers][16]) {
  RowsShared& shared = places.shared();
  const uint32_t place = count % kPlaces, stage = count % kStages;
  uint32_t bytes[2][4];
  load_bytes(bytes, places, f, stage, 0);
  const uint64_t weights = smem_desc(shared_address(places.weights(place)));
  PB_UNROLL
  for (int m = 0; m < 4; ++m) {
    uint32_t(&mine)[16] = values[m % kBuffers];
    if (!kIsFirst || m >= kBuffers) wgmma_wait<kBuffers - 1>(mine, o[(m + 4 - kBuffers) % 4]);
    PB_UNROLL
    for (int i = 0; i < 8; ++i) widen(bytes[i / 4][i % 4], mine[2 * i], mine[2 * i + 1]);
    pin(mine);
    wgmma_fence(o[m]);
    PB_UNROLL
    for (int step = 0; step < 4; ++step)
      wgmma_half(o[m], mine + 4 * step, ahead(weights, step * kStepColumns), true);
    wgmma_commit();
    if (m < 3) load_bytes(bytes, places, f, stage, m + 1);
  }
  arrive_as_warp(shared.free[stage]);
}

/// Adds tile `count` and, where it `has_next`, that after it.
PB_DEVICE void add_tiles(const RowsPlaces& places, const Fragment& f, uint32_t count, bool has_next,
                         float (&o)[4][32]) {
  RowsShared& shared = places.shared();
  const auto wait_for_weights = [&](uint32_t tile) {
    wait_for(shared.weights_full[tile % kPlaces], static_cast<int>(tile / kPlaces % 2));
  };
  wait_for_weights(count);
  if (has_next) wait_for_weights(count + 1);
  PB_ROLLED
  for (bool is_done = false; !is_done; ++count) {
    rescale(o, shared.alpha[count % kPlaces], growth_of(shared, count), f);
    uint32_t values[kBuffers][16];
    add_tile<true>(places, f, count, o, values);
    const bool is_pair = has_next && (growth_of(shared, count + 1) & kAnyRescale) == 0;
    is_done = is_pair || !has_next;
    has_next = false;
    if (is_pair) add_tile<false>(places, f, ++count, o, values);
    wgmma_wait(o[0], o[1], o[2], o[3]);
    PB_UNROLL
    for (int i = 0; i < kBuffers; ++i) pin(values[i]);
  }
}

/// Logits of a tile, in units of the stored bytes.
PB_DEVICE void dot_bytes(float (&s)[32], const RowsPlaces& places, uint32_t stage) {
  const uint64_t query = smem_desc(places.at(kStages, 0)), keys = smem_desc(places.at(stage, 0));
  const uint64_t query_rope = smem_desc(places.at(kStages, 16));
  const uint64_t keys_rope = smem_desc(places.at(stage, 16));
  PB_UNROLL
  for (int first = 0; first < kAllSteps; first += kSumSteps) {
    float sum[32];
    wgmma_fence(sum);
    PB_UNROLL
    for (int step = first; step < first + kSumSteps && step < kAllSteps; ++step) {
      const uint32_t at = step % 16 / 4 * kBlockBytes + step % 4 * kStepColumns;
      wgmma_e4m3<64>(sum, ahead(step < 16 ? query : query_rope, at),
                     ahead(step < 16 ? keys : keys_rope, at), step > first);
    }
    wgmma_commit();
    wgmma_wait(sum);
    PB_UNROLL
    for (int i = 0; i < 32; ++i) s[i] = first == 0 ? sum[i] : s[i] + sum[i];
  }
}

/// out and lse, from the sums over all keys.
PB_DEVICE void store_results(uint16_t* out, float* lse, const Cta& cta, const Fragment& f,
                             const RowSums& sums, RowsShared& shared, int parity, float value_scale,
                             const float (&o)[4][32]) {
  auto& all_sums = shared.sum[parity];
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(sums.sum[half]);
    if (f.quad == 0) all_sums[f.warpgroup][f.row + 8 * half] = sum;
  }
  // Both warpgroups' sums are read next.
  named_barrier_sync(kSumsBarrier, kRowsConsumers);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    if (f.warpgroup != 0 || f.quad != 0 || row >= cta.num_rows) continue;
    const float sum = all_sums[0][row] + all_sums[1][row];
    lse[cta.first_row + row] = sum == 0.0f ? 0.0f : log2_of(sum) + sums.shift(half);
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
            pack(o[m][i + e] * inverse, o[m][i + e + 2] * inverse);
    }
  }
}

/// Forms P of tile `count`.
template <bool kIsToken>
PB_DEVICE void weigh_tile(const RowsPlaces& places, const Fragment& f, const float (&scale)[2],
                          int negative, uint32_t count, bool is_first, bool is_last,
                          RowSums& sums) {
  RowsShared& shared = places.shared();
  const uint32_t stage = count % kStages, place = count % kPlaces;
  float s[32];
  wait_for(shared.full[stage], static_cast<int>(count / kStages % 2));
  // What others copied is what the products read.
  fence_async_proxy();
  dot_bytes(s, places, stage);
  if (is_last) arrive_as_warp(shared.query_free);
  scale_logits<kIsToken>(s, scale, shared.keys[stage], negative,
                         *reinterpret_cast<const uint32_t*>(shared.has_gaps[stage]) != 0, f);
  if (!is_first) {
    const uint32_t before = (count - 1) % kPlaces;
    wait_for(shared.weights_full[before], static_cast<int>((count - 1) / kPlaces % 2));
    if (shared.has_grown[before][thread_index() / 32 % 4] != 0) take_bases(shared, f, sums);
  }
  soften<kIsToken>(s, scale, places, stage, place, f, sums);
  fence_async_proxy();
  arrive_as_warp(shared.weights_full[place]);
}

template <bool kIsToken>
PB_DEVICE void consume(const SparseMla& p, uint16_t* out, float* lse, const RowsPlaces& places,
                       const Items& items) {
  RowsShared& shared = places.shared();
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
      // Maxima are taken before scaling, and -inf times 0 is no number.
      if (kIsToken) continue;
      negative |= scale[half] < 0.0f ? 1 << half : 0;
      scale[half] = fmaxf(fabsf(scale[half]), 1e-37f);
    }
    RowSums sums;
    float o[4][32] = {};  // [rows of V^T, heads] by 64 rows
    wait_for(shared.query_full, parity);
    if (f.warpgroup >= tiles) arrive_as_warp(shared.query_free);
    // Each turn takes one of its own, and adds that before and that; the last may have but the one
    // before.
    for (int tile = f.warpgroup; tile < tiles + 1 && tiles > 0; tile += 2) {
      if (tile < tiles)
        weigh_tile<kIsToken>(places, f, scale, negative, count + tile, tile == 0, tile + 2 >= tiles,
                             sums);
      add_tiles(places, f, count + (tile > 0 ? tile - 1 : 0), tile > 0 && tile < tiles, o);
    }
    if (tiles > 0) take_bases(shared, f, sums);
    store_results(out, lse, cta, f, sums, shared, parity, value_scale, o);
    parity ^= 1;
  }
}

/// `storage`: kRowsBytes at a multiple of 1024.
template <bool kIsToken>
PB_DEVICE void rows_forward_cta(const SparseMla& p, uint16_t* out, float* lse, const Items& items,
                                unsigned char* storage) {
  const RowsPlaces places{storage};
  start_barriers(places.shared());
  const int warpgroup = warp_broadcast(thread_index() / 128);
  if (warpgroup == 2) {
    lower_registers<kRowsProducerRegisters>();
    produce<kIsToken>(p, places, items);
  } else {
    raise_registers<kRowsConsumerRegisters>();
    consume<kIsToken>(p, out, lse, places, items);
  }
}

}  // namespace patchbench::ops::fp8_storage_dispatch
