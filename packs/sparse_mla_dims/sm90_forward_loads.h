#pragma once
#include <cstdint>

#include "sm90_loads.h"

/// Shared memory of a CTA of the forward, and the loads of its operands.
namespace patchbench::ops::sparse_mla_dims {

constexpr int kForwardThreads = 384, kConsumers = 256, kProducers = kForwardThreads - kConsumers;
/// Registers of a thread.
constexpr int kProducerRegisters = 72, kConsumerRegisters = 216;
static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 3 * kLaunchRegisters,
              "a warpgroup waits for ever for registers that the CTA was not launched with");
/// Sets of columns of a K tile, one for each warpgroup.
constexpr int kSets = 2;
/// Named barriers. kPStored + w: warpgroup w has stored P and row_max of its tile. kRowSumReady:
/// both have stored their sums. kStored: both have stored their results.
enum ForwardBarrier { kPStored = 1, kRowSumReady = 3, kStored = 4 };

struct ForwardShared {
  int32_t index[2][kRows];  ///< of the keys, by stage
  float row_max[kRows];     ///< after the last tile
  float row_sum[2][kRows], rounded_sum[2][kRows];
  Mbarrier full[2][kSets], free[2][kSets];  ///< one for each set of a stage
  Mbarrier query_full, query_free;
  alignas(4) uint8_t has_gaps[2][4];  ///< whether a tile has invalid indices, by warp
  int32_t num_tiles;                  ///< of the item
};

/// Blocks of shared memory: two K tiles, the query, and P of one or both warpgroups.
PB_CONSTEXPR int forward_blocks(int blocks) { return 3 * blocks + (blocks < kMaxBlocks ? 2 : 1); }
PB_CONSTEXPR int64_t forward_bytes(int head_dim_qk) {
  return forward_blocks(num_blocks(head_dim_qk)) * int64_t{kBlockBytes} +
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
  PB_DEVICE uint32_t p_tile(int warpgroup) const {
    if (warpgroup == 0) return k_tile(3);
    return blocks < kMaxBlocks ? k_tile(3) + kBlockBytes : q_tile() - kBlockBytes;
  }
  PB_DEVICE ForwardShared& shared() const {
    return *reinterpret_cast<ForwardShared*>(storage + forward_blocks(blocks) * kBlockBytes);
  }
  /// Of the rows of a query that has scales: kRows values behind ForwardShared.
  PB_DEVICE float* query_scale() const { return reinterpret_cast<float*>(&shared() + 1); }
};

/// The items of one CTA: first, first + step, ...
struct Items {
  int64_t first, step;
};

PB_DEVICE void init_mbarriers(ForwardShared& shared) {
  if (thread_index() == 0) {
    PB_UNROLL
    for (int stage = 0; stage < 2; ++stage) {
      // Each producer thread arrives with its copies, and once more after it has stored indices.
      PB_UNROLL
      for (int set = 0; set < kSets; ++set) {
        mbarrier_init(shared.full[stage][set], set == stage ? 2 * kProducers : kProducers);
        mbarrier_init(shared.free[stage][set], kConsumers / 2 / 32);
      }
    }
    // One arrival more: num_tiles is stored.
    mbarrier_init(shared.query_full, kProducers + 1);
    mbarrier_init(shared.query_free, kConsumers / 32);
  }
  // No thread may use a barrier before it is initialised.
  sync_threads();
}

using KvLoader = RowLoader<kConsumers, kProducers>;

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

/// Loads the sets of a tile, each when it is free. The indices are stored after the set that the
/// reader of the previous indices has released.
template <int kHalf, int kStage>
PB_DEVICE void load_tile(const SparseMla& p, const ForwardSmem& smem, const KvLoader::Rows& rows,
                         const int32_t (&index)[KvLoader::kEach], int parity) {
  ForwardShared& shared = smem.shared();
  const KvLoader loader;
  const uint32_t k = smem.k_tile(kStage);
  mbarrier_wait(shared.free[kStage][0], parity);
  loader.load_blocks<0, kHalf>(rows, p.head_dim_qk, smem.blocks, k);
  loader.load_blocks<2 * kHalf, kMaxBlocks>(rows, p.head_dim_qk, smem.blocks, k);
  cp_async_mbarrier_arrive(shared.full[kStage][0]);
  if constexpr (kStage == 1) mbarrier_wait(shared.free[kStage][1], parity);
  store_tile_indices(index, shared, kStage);
  mbarrier_arrive(shared.full[kStage][kStage]);
  if constexpr (kStage == 0) mbarrier_wait(shared.free[kStage][1], parity);
  loader.load_blocks<kHalf, 2 * kHalf>(rows, p.head_dim_qk, smem.blocks, k);
  cp_async_mbarrier_arrive(shared.full[kStage][1]);
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

/// How the forward gets its query: here rows of bfloat16, without scales.
struct DenseQuery {
  static constexpr bool kIsScaled = false;
  /// Starts the loads of the 64 rows of an item. Each producer thread arrives once at query_full.
  PB_DEVICE void load(const SparseMla& p, const Cta& cta, const ForwardSmem& smem,
                      const KvLoader& loader) const {
    loader.load_blocks<0, kMaxBlocks>(loader.query_rows(p, cta), p.head_dim_qk, smem.blocks,
                                      smem.q_tile());
    cp_async_mbarrier_arrive(smem.shared().query_full);
  }
};

template <int kHalf, typename Query>
PB_DEVICE void produce(const SparseMla& p, const ForwardSmem& smem, const Items& items,
                       const Query& query) {
  const KvLoader loader;
  int free_parities = 3, query_parity = 1;  // free_parities: one bit for each stage
  for (int64_t item = items.first; item < num_items(p); item += items.step) {
    const Cta cta(p, item);
    int32_t next[KvLoader::kEach];
    loader.read_slots(p, cta, 0, next);
    const int num_tiles = count_tiles(p, cta);
    mbarrier_wait(smem.shared().query_free, query_parity);
    if (loader.thread == 0) {
      smem.shared().num_tiles = num_tiles;
      mbarrier_arrive(smem.shared().query_full);
    }
    query.load(p, cta, smem, loader);
    for (int tile = 0; tile < num_tiles; ++tile) {
      int32_t index[KvLoader::kEach];
      loader.valid_indices(p, next, index);
      const KvLoader::Rows rows = loader.key_rows(p, cta, index);
      if (tile + 1 < num_tiles) loader.read_slots(p, cta, tile + 1, next);
      const int parity = free_parities >> tile % 2 & 1;
      if (tile % 2 == 0) {
        load_tile<kHalf, 0>(p, smem, rows, index, parity);
      } else {
        load_tile<kHalf, 1>(p, smem, rows, index, parity);
      }
      free_parities ^= 1 << tile % 2;
    }
    query_parity ^= 1;
  }
}

}  // namespace patchbench::ops::sparse_mla_dims
