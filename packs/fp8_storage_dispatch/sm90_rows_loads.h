#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_forward.h"

/// Shared memory and loads of the forward over keys with one scale each.
namespace patchbench::ops::fp8_storage_dispatch {

constexpr int kRowsThreads = 384, kRowsConsumers = 256;
/// Registers of a thread: 65536 in all.
constexpr int kRowsProducerRegisters = 56, kRowsConsumerRegisters = 224;
/// Stages of K and of P. The other warpgroup has multiplied tile i - 3 before it stores P of tile i
/// - 1, which tile i waits for: with three stages or more no one waits for a free stage of P.
constexpr int kStages = 4, kPStages = 4;
constexpr int kSumSteps = 4, kAllSteps = kHeadDim / 32;
/// P is 2^kBaseLog2P at the base of a row. The base is raised when the P of one tile and row sum to
/// kMaxRowSum: float16 ends at 2^16.
constexpr float kBaseLog2P = 7, kMaxRowSum = 0x1p15f;
/// Products in flight; each has V^T in its own registers.
constexpr int kBuffers = 4;
constexpr int kSumsBarrier = 1;
/// Flags of the rows of a warp: the base changed; sums must be rescaled.
constexpr uint32_t kRaised = 1, kRescale = 2, kAnyRescale = 0x01010101 * kRescale;

/// Scales of the keys of a tile. For an invalid index: 0, -inf, 0.
struct KeyScales {
  struct alignas(16) Pair {
    float scale[2], shift[2];  ///< shift: log2 of the scale
  };
  Pair pairs[kRows / 2];
  float inverse[kRows];
};

struct RowsShared {
  KeyScales keys[kStages];
  float base[kRows];             ///< of P, after the last tile
  float alpha[kPStages][kRows];  ///< factor of earlier sums where a base has grown
  float sum[2][2][kRows];        ///< of odd and even items, by warpgroup
  Mbarrier full[kStages], free[kStages];
  Mbarrier p_full[kPStages];
  Mbarrier query_full, query_free;
  alignas(4) uint8_t has_gaps[kStages][4];    ///< whether some indices are invalid, by warp
  alignas(4) uint8_t has_grown[kPStages][4];  ///< kRaised, kRescale, by warp
};

/// Shared memory of a CTA.
struct RowsSmem {
  unsigned char* storage;
  static constexpr int kRopes = 4 * (kStages + 1), kPTiles = kRopes + (kStages + 2) / 2;
  static constexpr int kAll = kPTiles + kPStages;

  PB_DEVICE uint32_t block(int i) const { return shared_address(storage) + i * kBlockBytes; }
  /// Address of K step `step`, 32 columns, of a stage. Stage kStages is the query.
  PB_DEVICE uint32_t at(int stage, int step) const {
    if (step < 16) return block(4 * stage + step / 4) + step % 4 * kStepColumns;
    return block(kRopes + stage / 2) + stage % 2 * 64 + step % 4 * kStepColumns;
  }
  PB_DEVICE unsigned char* p_tile(int stage) const {
    return storage + (kPTiles + stage) * kBlockBytes;
  }
  PB_DEVICE RowsShared& shared() const {
    return *reinterpret_cast<RowsShared*>(storage + kAll * kBlockBytes);
  }
};
constexpr int64_t kRowsBytes = RowsSmem::kAll * int64_t{kBlockBytes} + sizeof(RowsShared);
static_assert(kRowsBytes <= 227 * 1024, "a CTA of sm_90 has 227 KiB");

/// The descriptor `bytes` further.
PB_DEVICE uint64_t advance_smem_desc(uint64_t descriptor, uint32_t bytes) {
  return descriptor >> 32 << 32 | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

/// The items of one CTA: first, first + step, ...
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

PB_DEVICE void init_mbarriers(RowsShared& shared) {
  if (thread_index() == 0) {
    PB_UNROLL
    for (int i = 0; i < kStages; ++i) {
      // Each producer thread arrives with its copies, and again with the scales.
      mbarrier_init(shared.full[i], 2 * (kRowsThreads - kRowsConsumers));
      mbarrier_init(shared.free[i], kRowsConsumers / 32);
    }
    PB_UNROLL
    for (Mbarrier& barrier : shared.p_full) mbarrier_init(barrier, kRowsConsumers / 2 / 32);
    mbarrier_init(shared.query_full, kRowsThreads - kRowsConsumers);
    mbarrier_init(shared.query_free, kRowsConsumers / 32);
  }
  // No thread may use a barrier before it is initialised.
  sync_threads();
}

/// 128 threads, eight a row.
struct RowCopier {
  static constexpr int kEach = 4;  ///< rows of a thread
  int thread = thread_index() - kRowsConsumers;
  PB_DEVICE int row(int i) const { return thread / 8 + i * 16; }

  /// Starts the copies of 64 rows; zeros for missing rows.
  PB_DEVICE void copy(const uint8_t* const (&rows)[kEach], const bool (&is_row)[kEach],
                      const RowsSmem& smem, int stage) const {
    const int chunk = thread % 8 * 16;
    PB_UNROLL
    for (int block = 0; block < 4; ++block) {
      PB_UNROLL
      for (int i = 0; i < kEach; ++i)
        cp_async<16>(
            smem.at(stage, 4 * block) + swizzled_offset(row(0), chunk) + i * 16 * kRowBytes,
            rows[i] + block * 128 + chunk, is_row[i]);
    }
    // The rope has half as many bytes.
    const bool is_second = thread % 8 >= 4;
    const uint32_t byte = stage % 2 * 64 + thread % 4 * 16;
    PB_UNROLL
    for (int i = 0; i < kEach; i += 2)
      cp_async<16>(smem.block(RowsSmem::kRopes + stage / 2) +
                       swizzled_offset(row(is_second ? i + 1 : i), byte),
                   (is_second ? rows[i + 1] : rows[i]) + kHeadDimV + thread % 4 * 16,
                   is_second ? is_row[i + 1] : is_row[i]);
  }

  PB_DEVICE void copy_query(const SparseMla& p, const Cta& cta, const RowsSmem& smem) const {
    const uint8_t* rows[kEach];
    bool is_row[kEach];
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      is_row[i] = row(i) < cta.num_rows;
      rows[i] =
          static_cast<const uint8_t*>(p.q) + (cta.first_row + (is_row[i] ? row(i) : 0)) * kHeadDim;
    }
    copy(rows, is_row, smem, kStages);
  }
  PB_DEVICE void copy_keys(const SparseMla& p, const Cta& cta, int32_t lane_index,
                           const RowsSmem& smem, int stage) const {
    const uint8_t* rows[kEach];
    bool is_row[kEach];
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int32_t index = shfl_sync(lane_index, thread % 32 / 8 + 4 * i);
      is_row[i] = index >= 0;
      rows[i] = p.kv + (cta.batch * p.seqlen_k + (is_row[i] ? index : 0)) * kHeadDim;
    }
    copy(rows, is_row, smem, stage);
  }
};

/// Index and scale of one key, which half of the threads of a warp read some tiles ahead for the
/// keys that the warp copies.
template <bool kIsToken>
struct KeyPrefetch {
  int32_t index = -1, next_index = -1;  ///< -1 where invalid
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
    const bool has_gap = any_sync(has_row() && index < 0);
    if (thread_index() % 32 == 0) shared.has_gaps[stage][thread_index() / 32 % 4] = has_gap ? 1 : 0;
    if (!has_row()) return;
    KeyScales& keys = shared.keys[stage];
    auto& [scales, shifts] = keys.pairs[row() / 2];
    // A scale of 0 gives a valid key whose value is 0. A negative scale is not valid: its P become
    // NaN.
    const float least = scale >= 0.0f ? fmaxf(scale, 0x1p-60f) : scale;
    shifts[row() % 2] = index < 0 ? -INFINITY : kIsToken ? log2_of(least) : 0.0f;
    if (!kIsToken) return;
    scales[row() % 2] = scale;
    keys.inverse[row()] = index < 0 ? 0.0f : 1.0f / least;
  }
};

template <bool kIsToken>
PB_DEVICE void produce(const SparseMla& p, const RowsSmem& smem, const Items& items) {
  const RowCopier copier;
  RowsShared& shared = smem.shared();
  uint32_t count = 0;
  int query_parity = 1;
  for (int64_t item = items.first; item < num_items(p); item += items.step) {
    const Cta cta = cta_of(p, item);
    KeyPrefetch<kIsToken> prefetch;
    prefetch.read(p, cta, 0);
    mbarrier_wait(shared.query_free, query_parity);
    query_parity ^= 1;
    copier.copy_query(p, cta, smem);
    cp_async_mbarrier_arrive(shared.query_full);
    for (int tile = 0; tile < num_tiles(p); ++tile, ++count) {
      const uint32_t stage = count % kStages;
      mbarrier_wait(shared.free[stage], static_cast<int>(count / kStages % 2 ^ 1));
      copier.copy_keys(p, cta, prefetch.index, smem, stage);
      cp_async_mbarrier_arrive(shared.full[stage]);
      prefetch.write(shared, stage);
      mbarrier_arrive(shared.full[stage]);
      prefetch.read(p, cta, tile + 1);
    }
  }
}

}  // namespace patchbench::ops::fp8_storage_dispatch
