#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_forward.h"

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
// base of the row: a whole number, raised when a logit is more than kSlack above, and sums with it.
// What half precision rounds off a weight is at most 2^-11 of it, or 2^-32 of the base's.
// Shared memory: four tiles of keys, the query, four of P, and 7 KiB: 223 KiB.
// Rounded to half precision: P. To bfloat16: out. Sums, bases and lse are float32.
namespace patchbench::ops::fp8_storage_dispatch {

constexpr int kRowsThreads = 384, kRowsConsumers = 256;
/// Of a thread: 65536 in all.
constexpr int kRowsProducerRegisters = 56, kRowsConsumerRegisters = 224;
/// Of keys, and of P. The other warpgroup has added tile i - 3 before it forms P of tile i - 1, of
/// which i needs to know: no place is waited for if there are three.
constexpr int kStages = 4, kPlaces = 4;
constexpr int kSumSteps = 4, kAllSteps = kHeadDim / 32;
/// log2 of the weight at a row's base, and of what a weight may be more before that is raised: half
/// precision ends at 2^16.
constexpr float kBaseWeight = 7, kSlack = 8;
/// Products under way at once, by the registers that their V^T is in.
constexpr int kBuffers = 4;
constexpr int kSumsBarrier = 1;
/// Of rows of a warp: their bases are others than before, and sums have to follow.
constexpr uint32_t kRaised = 1, kRescale = 2;

/// Of a tile's keys. Where a slot names none: 0, -inf, 0.
struct KeyScales {
  struct alignas(16) Pair {
    float scale[2], shift[2];  ///< shift: log2 of the scale
  };
  Pair pairs[kRows / 2];
  float inverse[kRows];
};

struct RowsShared {
  KeyScales keys[kStages];
  float base[kRows];            ///< of weights, after the last tile
  float alpha[kPlaces][kRows];  ///< what earlier sums are worth where some base has grown
  float sum[2][2][kRows], weight[2][2][kRows];  ///< of odd and even items, by warpgroup
  Barrier full[kStages], free[kStages];
  Barrier weights_full[kPlaces];
  Barrier query_full, query_free;
  alignas(4) uint8_t has_gaps[kStages][4];   ///< whether some slots have no key, by warp
  alignas(4) uint8_t has_grown[kPlaces][4];  ///< kRaised, kRescale, by warp
};

/// Where things lie in shared memory.
struct RowsPlaces {
  unsigned char* storage;
  static constexpr int kRopes = 4 * (kStages + 1), kWeights = kRopes + (kStages + 2) / 2;
  static constexpr int kAll = kWeights + kPlaces;

  PB_DEVICE uint32_t block(int i) const { return shared_address(storage) + i * kBlockBytes; }
  /// Step `step` of 32 columns of a stage; of the query, which follows the last.
  PB_DEVICE uint32_t at(int stage, int step) const {
    if (step < 16) return block(4 * stage + step / 4) + step % 4 * kStepColumns;
    return block(kRopes + stage / 2) + stage % 2 * 64 + step % 4 * kStepColumns;
  }
  PB_DEVICE unsigned char* weights(int place) const {
    return storage + (kWeights + place) * kBlockBytes;
  }
  PB_DEVICE RowsShared& shared() const {
    return *reinterpret_cast<RowsShared*>(storage + kAll * kBlockBytes);
  }
};
constexpr int64_t kRowsBytes = RowsPlaces::kAll * int64_t{kBlockBytes} + sizeof(RowsShared);
static_assert(kRowsBytes <= 227 * 1024, "a CTA of sm_90 has 227 KiB");

/// The descriptor of what lies `bytes` after.
PB_DEVICE uint64_t ahead(uint64_t descriptor, uint32_t bytes) {
  return descriptor >> 32 << 32 | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

/// The items of one CTA.
struct Items {
  int64_t first, step;
};
PB_CONSTEXPR int64_t num_groups(const SparseMla& p) { return (p.num_heads + kRows - 1) / kRows; }
PB_CONSTEXPR int64_t num_items(const SparseMla& p) { return p.batch * p.seqlen_q * num_groups(p); }
PB_DEVICE Cta cta_of(const SparseMla& p, int64_t item) {
  const int64_t query = item / num_groups(p);
  return Cta(p, query % p.seqlen_q, item % num_groups(p), query / p.seqlen_q);
}
PB_CONSTEXPR int num_tiles(const SparseMla& p) {
  return static_cast<int>((p.topk + kRows - 1) / kRows);
}

PB_DEVICE void start_barriers(RowsShared& shared) {
  if (thread_index() == 0) {
    PB_UNROLL
    for (int i = 0; i < kStages; ++i) {
      // Each copying thread with its copies, and again with the scales.
      start_barrier(shared.full[i], 2 * (kRowsThreads - kRowsConsumers));
      start_barrier(shared.free[i], kRowsConsumers / 32);
    }
    PB_UNROLL
    for (int i = 0; i < kPlaces; ++i) {
      start_barrier(shared.weights_full[i], kRowsConsumers / 2 / 32);
    }
    start_barrier(shared.query_full, kRowsThreads - kRowsConsumers);
    start_barrier(shared.query_free, kRowsConsumers / 32);
  }
  // Nobody uses a barrier before it is there.
  sync_threads();
}

/// One arrival a warp, all of whose threads are done with what it frees or fills.
PB_DEVICE void arrive_as_warp(Barrier& barrier) {
  sync_warp();
  if (thread_index() % 32 == 0) arrive(barrier);
}

// ---- copies ----

/// 128 threads, eight to a row.
struct RowCopier {
  static constexpr int kEach = 4;  ///< rows of a thread
  int thread = thread_index() - kRowsConsumers;
  PB_DEVICE int row(int i) const { return thread / 8 + i * 16; }

  /// Starts the copies of 64 rows; zeros where there is none.
  PB_DEVICE void copy(const uint8_t* const (&rows)[kEach], const bool (&is_row)[kEach],
                      const RowsPlaces& places, int stage) const {
    const int chunk = thread % 8 * 16;
    PB_UNROLL
    for (int block = 0; block < 4; ++block) {
      PB_UNROLL
      for (int i = 0; i < kEach; ++i)
        copy_async(places.at(stage, 4 * block) + in_block(row(0), chunk) + i * 16 * kRowBytes,
                   rows[i] + block * 128 + chunk, is_row[i]);
    }
    // The rope: half as many bytes.
    const bool is_second = thread % 8 >= 4;
    const uint32_t byte = stage % 2 * 64 + thread % 4 * 16;
    PB_UNROLL
    for (int i = 0; i < kEach; i += 2)
      copy_async(
          places.block(RowsPlaces::kRopes + stage / 2) + in_block(row(is_second ? i + 1 : i), byte),
          (is_second ? rows[i + 1] : rows[i]) + kHeadDimV + thread % 4 * 16,
          is_second ? is_row[i + 1] : is_row[i]);
  }

  PB_DEVICE void copy_query(const SparseMla& p, const Cta& cta, const RowsPlaces& places) const {
    const uint8_t* rows[kEach];
    bool is_row[kEach];
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      is_row[i] = row(i) < cta.num_rows;
      rows[i] =
          static_cast<const uint8_t*>(p.q) + (cta.first_row + (is_row[i] ? row(i) : 0)) * kHeadDim;
    }
    copy(rows, is_row, places, kStages);
  }
  PB_DEVICE void copy_keys(const SparseMla& p, const Cta& cta, int32_t noted,
                           const RowsPlaces& places, int stage) const {
    const uint8_t* rows[kEach];
    bool is_row[kEach];
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int32_t index = shuffle_from(noted, thread % 32 / 8 + 4 * i);
      is_row[i] = index >= 0;
      rows[i] = p.kv + (cta.batch * p.seqlen_k + (is_row[i] ? index : 0)) * kHeadDim;
    }
    copy(rows, is_row, places, stage);
  }
};

/// What half of a warp's copying threads note of one key each, of those that the warp copies, read
/// some tiles ahead.
template <bool kIsToken>
struct KeyNote {
  int32_t index = -1, next_index = -1;  ///< -1 where there is none
  float scale = 0;

  PB_DEVICE static int row() {
    const int thread = thread_index() - kRowsConsumers, lane = thread % 32;
    return thread / 32 * 4 + lane % 4 + lane / 4 * 16;
  }
  PB_DEVICE static bool has_row() { return thread_index() % 32 < 16; }

  PB_DEVICE int32_t read_index(const SparseMla& p, const Cta& cta, int tile) const {
    const int slot = tile * kRows + row();
    const int32_t read = has_row() && slot < p.topk ? p.indices[cta.query * p.topk + slot] : -1;
    return read < p.seqlen_k ? read : -1;
  }
  PB_DEVICE void read(const SparseMla& p, const Cta& cta, int tile) {
    index = tile == 0 ? read_index(p, cta, 0) : next_index;
    next_index = read_index(p, cta, tile + 1);
    if (kIsToken) scale = index >= 0 ? p.kv_scale[cta.batch * p.seqlen_k + index] : 0.0f;
  }
  PB_DEVICE void write(RowsShared& shared, int stage) const {
    const bool has_gap = any_in_warp(has_row() && index < 0);
    if (thread_index() % 32 == 0) shared.has_gaps[stage][thread_index() / 32 % 4] = has_gap ? 1 : 0;
    if (!has_row()) return;
    KeyScales& keys = shared.keys[stage];
    auto& [scales, shifts] = keys.pairs[row() / 2];
    // A scale of 0 is of a key that has weight, and no value.
    const float least = fmaxf(scale, 0x1p-60f);
    shifts[row() % 2] = index < 0 ? -INFINITY : kIsToken ? log2_of(least) : 0.0f;
    if (!kIsToken) return;
    scales[row() % 2] = scale;
    keys.inverse[row()] = index < 0 ? 0.0f : 1.0f / least;
  }
};

template <bool kIsToken>
PB_DEVICE void produce(const SparseMla& p, const RowsPlaces& places, const Items& items) {
  const RowCopier copier;
  RowsShared& shared = places.shared();
  uint32_t count = 0;
  int query_parity = 1;
  for (int64_t item = items.first; item < num_items(p); item += items.step) {
    const Cta cta = cta_of(p, item);
    KeyNote<kIsToken> note;
    note.read(p, cta, 0);
    wait_for(shared.query_free, query_parity);
    query_parity ^= 1;
    copier.copy_query(p, cta, places);
    arrive_with_copies(shared.query_full);
    for (int tile = 0; tile < num_tiles(p); ++tile, ++count) {
      const uint32_t stage = count % kStages;
      wait_for(shared.free[stage], static_cast<int>(count / kStages % 2 ^ 1));
      copier.copy_keys(p, cta, note.index, places, stage);
      arrive_with_copies(shared.full[stage]);
      note.write(shared, stage);
      arrive(shared.full[stage]);
      note.read(p, cta, tile + 1);
    }
  }
}

// ---- products ----

/// A thread's rows: their bases, and sums over the thread's own columns of the tiles of its
/// warpgroup.
struct RowSums {
  float base[2] = {-INFINITY, -INFINITY};  ///< -inf before the first key
  float sum[2] = {0, 0};                   ///< of P
  float weight[2] = {0, 0};                ///< of P as it is multiplied, rounded

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
    weight[half] *= alpha;
    return alpha;
  }
};

/// To units of log2, the key's scale among them; where all have one, but for the row's `scale`.
template <bool kIsToken>
PB_DEVICE void scale_logits(float (&s)[32], const float (&scale)[2], const KeyScales& keys,
                            bool is_negative, bool has_gaps, const Fragment& f) {
  if constexpr (kIsToken) {
    PB_UNROLL
    for (int i = 0; i < 32; i += 4) {
      const KeyScales::Pair pair = keys.pairs[f.column(i) / 2];
      PB_UNROLL
      for (int e = 0; e < 4; ++e)
        s[i + e] = fmaf(s[i + e] * pair.scale[e % 2], scale[e / 2], pair.shift[e % 2]);
    }
  } else {
    if (is_negative) {
      PB_UNROLL
      for (int i = 0; i < 32; ++i) s[i] = -s[i];
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

/// Raises the bases of rows in which a logit is more than kSlack above; they become whole numbers:
/// P before its rounding is then the same but for powers of two whatever the base.
PB_DEVICE void raise_bases(const float (&highest)[2], RowsShared& shared, uint32_t place,
                           const Fragment& f, RowSums& sums) {
  const bool is_low = highest[0] > sums.base[0] + kSlack || highest[1] > sums.base[1] + kSlack;
  const bool has_low = any_in_warp(is_low);
  bool has_grown = false;
  if (has_low) {
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float top = quad_max(highest[half]);
      float alpha = 1;
      if (top > sums.base[half] + kSlack) alpha = sums.raise(half, ceilf(top));
      has_grown |= alpha != 1.0f;
      if (f.quad != 0) continue;
      shared.base[f.row + 8 * half] = sums.base[half];
      shared.alpha[place][f.row + 8 * half] = alpha;
    }
    has_grown = any_in_warp(has_grown);
  }
  if (thread_index() % 32 == 0)
    shared.has_grown[place][thread_index() / 32 % 4] =
        (has_low ? kRaised : 0) | (has_grown ? kRescale : 0);
}

/// Logits to P, which goes to shared memory.
template <bool kIsToken>
PB_DEVICE void soften(float (&s)[32], const float (&scale)[2], const RowsPlaces& places,
                      uint32_t stage, uint32_t place, const Fragment& f, RowSums& sums) {
  RowsShared& shared = places.shared();
  float highest[2];
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    highest[half] = s[2 * half];
    PB_UNROLL
    for (int i = 2 * half; i < 32; i += 4)
      highest[half] = fmaxf(highest[half], fmaxf(s[i], s[i + 1]));
    if (!kIsToken) highest[half] *= scale[half];
  }
  raise_bases(highest, shared, place, f, sums);
  const float shift[2] = {sums.shift(0), sums.shift(1)};
  const int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
  const uint32_t to =
      shared_address(places.weights(place)) + in_block(warp * 16 + lane % 16, lane / 16 * 16);
  PB_UNROLL
  for (int i = 0; i < 32; i += 8) {
    uint32_t rounded[4];
    PB_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int at = i + 2 * j, half = j % 2;
      const float factor = kIsToken ? 1.0f : scale[half];
      const float first = exp2_flushed(fmaf(s[at], factor, -shift[half]));
      const float second = exp2_flushed(fmaf(s[at + 1], factor, -shift[half]));
      rounded[j] = pack_half(first, second);
      float low, high;
      unpack_half(rounded[j], low, high);
      if (kIsToken) {
        const float* inverse = &shared.keys[stage].inverse[f.column(at)];
        sums.sum[half] = fmaf(first, inverse[0], fmaf(second, inverse[1], sums.sum[half]));
        sums.weight[half] = fmaf(low, inverse[0], fmaf(high, inverse[1], sums.weight[half]));
      } else {
        sums.sum[half] += first + second;
        sums.weight[half] += low + high;
      }
    }
    // Blocks start at multiples of 1024: two chunks on is another bit, swizzled or not.
    store_rows(to ^ i / 8 * 32, rounded);
  }
}

/// The bytes of 64 rows of V^T, those of block m of the warpgroup's, over a stage's keys.
PB_DEVICE void load_bytes(uint32_t (&bytes)[2][4], const RowsPlaces& places, const Fragment& f,
                          uint32_t stage, int m) {
  const int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
  const uint32_t block = places.block(4 * stage + 2 * f.warpgroup + m / 2);
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    load_transposed(bytes[half], block + in_block(32 * half + lane, m % 2 * 64 + warp * 16));
}

/// By the heads of each warp of those that weighed the tile.
PB_DEVICE void rescale(float (&o)[4][32], const float (&alpha)[kRows], uint32_t has_grown,
                       const Fragment& f) {
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
  const uint64_t weights = descriptor(shared_address(places.weights(place)));
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

PB_DEVICE bool wants_rescale(const RowsShared& shared, uint32_t count) {
  const auto* flags = reinterpret_cast<const uint32_t*>(shared.has_grown[count % kPlaces]);
  return (*flags & 0x01010101 * kRescale) != 0;
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
    if (wants_rescale(shared, count)) {
      const auto* flags = reinterpret_cast<const uint32_t*>(shared.has_grown[count % kPlaces]);
      rescale(o, shared.alpha[count % kPlaces], *flags, f);
    }
    uint32_t values[kBuffers][16];
    add_tile<true>(places, f, count, o, values);
    const bool is_pair = has_next && !wants_rescale(shared, count + 1);
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
  const uint64_t query = descriptor(places.at(kStages, 0)), keys = descriptor(places.at(stage, 0));
  const uint64_t query_rope = descriptor(places.at(kStages, 16));
  const uint64_t keys_rope = descriptor(places.at(stage, 16));
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

/// out and lse, from the sums over all keys. A mean is taken with the weights that the values were
/// multiplied by: else what rounding does to the weight of a key that holds most of the mass would
/// stay in out, and so in Delta.
PB_DEVICE void store_results(uint16_t* out, float* lse, const Cta& cta, const Fragment& f,
                             const RowSums& sums, RowsShared& shared, int parity, float value_scale,
                             const float (&o)[4][32]) {
  auto& all_sums = shared.sum[parity];
  auto& all_weights = shared.weight[parity];
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(sums.sum[half]), weight = quad_sum(sums.weight[half]);
    if (f.quad != 0) continue;
    all_sums[f.warpgroup][f.row + 8 * half] = sum;
    all_weights[f.warpgroup][f.row + 8 * half] = weight;
  }
  // Both warpgroups' sums are read next.
  sync_at(kSumsBarrier, kRowsConsumers);
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
      const float weight = all_weights[0][head] + all_weights[1][head];
      const float inverse = weight == 0.0f ? 0.0f : value_scale / weight;
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
                          bool is_negative, uint32_t count, bool is_first, bool is_last,
                          RowSums& sums) {
  RowsShared& shared = places.shared();
  const uint32_t stage = count % kStages, place = count % kPlaces;
  float s[32];
  wait_for(shared.full[stage], static_cast<int>(count / kStages % 2));
  // What others copied is what the products read.
  fence_async_proxy();
  dot_bytes(s, places, stage);
  if (is_last) arrive_as_warp(shared.query_free);
  scale_logits<kIsToken>(s, scale, shared.keys[stage], is_negative,
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
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t row = f.row + 8 * half;
      const float query_scale =
          row < cta.num_rows ? p.q_scale[(cta.first_row + row) * p.q_scale_stride] : 1.0f;
      scale[half] = query_scale * value_scale * p.softmax_scale * kLog2e;
      // Maxima are taken before scaling, and -inf times 0 is no number.
      if (!kIsToken) scale[half] = fmaxf(fabsf(scale[half]), 1e-37f);
    }
    RowSums sums;
    float o[4][32] = {};  // [rows of V^T, heads] by 64 rows
    wait_for(shared.query_full, parity);
    if (f.warpgroup >= tiles) arrive_as_warp(shared.query_free);
    // Each turn takes one of its own, and adds that before and that; the last may have but the one
    // before.
    for (int tile = f.warpgroup; tile < tiles + 1 && tiles > 0; tile += 2) {
      if (tile < tiles)
        weigh_tile<kIsToken>(places, f, scale, p.softmax_scale < 0, count + tile, tile == 0,
                             tile + 2 >= tiles, sums);
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
  const int warpgroup = uniform(thread_index() / 128);
  if (warpgroup == 2) {
    lower_registers<kRowsProducerRegisters>();
    produce<kIsToken>(p, places, items);
  } else {
    raise_registers<kRowsConsumerRegisters>();
    consume<kIsToken>(p, out, lse, places, items);
  }
}

}  // namespace patchbench::ops::fp8_storage_dispatch
