#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_forward.h"

/// What the forward over keys with one scale each has in shared memory, and how it comes there.
namespace patchbench::ops::fp8_storage_dispatch {

constexpr int kRowsThreads = 384, kRowsConsumers = 256;
/// Of a thread: 65536 in all.
constexpr int kRowsProducerRegisters = 56, kRowsConsumerRegisters = 224;
/// Of keys, and of P. The other warpgroup has added tile i - 3 before it forms P of tile i - 1, of
/// which i needs to know: no place is waited for if there are three.
constexpr int kStages = 4, kPlaces = 4;
constexpr int kSumSteps = 4, kAllSteps = kHeadDim / 32;
/// log2 of the weight at a row's base. That is raised when some weights of a tile, none of which is
/// below 0, sum to kMostWeight: half precision ends at 2^16.
constexpr float kBaseWeight = 7, kMostWeight = 0x1p15f;
/// Products under way at once, by the registers that their V^T is in.
constexpr int kBuffers = 4;
constexpr int kSumsBarrier = 1;
/// Of rows of a warp: their bases are others than before, and sums have to follow.
constexpr uint32_t kRaised = 1, kRescale = 2, kAnyRescale = 0x01010101 * kRescale;

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
  float sum[2][2][kRows];       ///< of odd and even items, by warpgroup
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
    for (Barrier& barrier : shared.weights_full) start_barrier(barrier, kRowsConsumers / 2 / 32);
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
        cp_async(places.at(stage, 4 * block) + in_block(row(0), chunk) + i * 16 * kRowBytes,
                 rows[i] + block * 128 + chunk, is_row[i]);
    }
    // The rope: half as many bytes.
    const bool is_second = thread % 8 >= 4;
    const uint32_t byte = stage % 2 * 64 + thread % 4 * 16;
    PB_UNROLL
    for (int i = 0; i < kEach; i += 2)
      cp_async(
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
    // A scale of 0 is of a key that has weight, and no value; one below is none, and makes weights
    // that are no numbers.
    const float least = scale >= 0.0f ? fmaxf(scale, 0x1p-60f) : scale;
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

}  // namespace patchbench::ops::fp8_storage_dispatch
