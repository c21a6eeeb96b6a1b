#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_backward.h"

/// Shared memory of a CTA of a cluster, and the loads of its operands.
namespace patchbench::ops::sparse_mla_dims {

constexpr int kClusterCtas = 2;
constexpr int kClusterHeads = 2 * kRows, kClusterHeadDimV = 512;
constexpr int kValueBlocks = kClusterHeadDimV / 2 / kColumns;  ///< of a CTA
constexpr int kOwnKeys = kRows / 2;                            ///< of a tile, of a CTA
constexpr int kHeadThreads = 256;                              ///< of warpgroups 0 and 1
constexpr int kHeadWarps = kHeadThreads / 32;
/// Registers of a thread of warpgroups 0 and 1. Without the rest of the columns more than 200 are
/// too many: nvcc 13.0 then keeps two copies of S, and lets each product wait for the one before.
template <int kRest>
constexpr int kHeadRegisters = kRest > 0 ? 216 : 200;
constexpr int kKeyRegisters = 72;  ///< of warpgroup 2
static_assert(2 * kHeadRegisters<1> + kKeyRegisters <= 3 * kLaunchRegisters,
              "a warpgroup waits for ever for registers that the CTA was not launched with");
/// The named barrier of warpgroups 0 and 1.
constexpr int kHeadBarrier = 1;
/// Bytes that a warp sends at a time: partial sums, four times 16 bytes a thread. P and dS: as
/// many.
constexpr int kWarpBytes = 4 * 16 * 32;

/// Bytes of a value of kv and of its sum in grad_kv.
constexpr int64_t kKvBytes = 2 + sizeof(float);

/// Whether the cluster has a kernel for these head dimensions.
PB_CONSTEXPR bool has_cluster_kernel(int64_t head_dim_qk, int64_t head_dim_v) {
  return head_dim_v == kClusterHeadDimV &&
         (head_dim_qk == kClusterHeadDimV || head_dim_qk == kClusterHeadDimV + kColumns);
}

/// Whether the cluster computes the backward where the queries that run at a time name num_keys
/// keys. A cluster halves the adds to memory, and adds the exchange of partial sums. It is faster
/// where kv and the sums of grad_kv of these keys do not fit into L2. On an H200 (63 MB), 128
/// heads, 1024 queries, the cluster and the other kernel took 3.95 and 3.71 ms with 57 MB of both
/// (16,384 keys at random, 576/512), 4.28 and 4.69 ms with 113 MB (32,768 keys); at 512/512 3.67
/// and 3.45 ms, 4.01 and 4.08 ms. With 65,536 keys, and those near the query named, 3.88 and 3.56
/// ms. With an odd number of groups of 64 heads, half of a cluster has no head.
PB_CONSTEXPR bool uses_cluster(const SparseMla& p, int64_t num_keys, int64_t l2_bytes) {
  return has_cluster_kernel(p.head_dim_qk, p.head_dim_v) &&
         (p.num_heads + kRows - 1) / kRows % 2 == 0 &&
         num_keys * p.head_dim_qk * kKvBytes > l2_bytes;
}

struct ClusterShared {
  float delta[2][kClusterHeads];                       ///< parts, by the CTA that has the columns
  float base[kClusterHeads], p_factor[kClusterHeads];  ///< as in BackwardShared
  int32_t index[2][kRows];                             ///< of the keys, by tile
  Mbarrier k_full[2];                                  ///< K is loaded: blocks 0 and 1; the others
  Mbarrier received[kHeadWarps];  ///< the other CTA's part of S, then of dP, is here
  Mbarrier s_read[kHeadWarps];    ///< the other CTA has read the part of S that was sent
  Mbarrier ds_full[2];            ///< P and dS of 64 heads are complete
  Mbarrier ds_free[2];            ///< and are no longer read, here and in the other CTA
};

constexpr int64_t kClusterBytes =
    (2 * kValueBlocks + 1 + 2 * kValueBlocks + kValueBlocks + 1 + 4) * int64_t{kBlockBytes} +
    kHeadWarps * kWarpBytes + static_cast<int64_t>(sizeof(ClusterShared));

/// Shared memory of a CTA. Blocks of q and grad_out: of the first 64 heads, then of the others. The
/// columns of q and K that are not columns of V are half a block: in that of q, the others have the
/// second half of its rows.
struct ClusterSmem {
  unsigned char* storage;
  PB_DEVICE uint32_t at(int block) const { return shared_address(storage) + block * kBlockBytes; }
  PB_DEVICE uint32_t q_tile(int group) const { return at(group * kValueBlocks); }
  PB_DEVICE uint32_t q_rest() const { return at(2 * kValueBlocks); }
  PB_DEVICE uint32_t grad_out_tile(int group) const { return at((2 + group) * kValueBlocks + 1); }
  PB_DEVICE uint32_t k_tile() const { return at(4 * kValueBlocks + 1); }
  PB_DEVICE uint32_t k_rest() const { return at(5 * kValueBlocks + 1); }
  PB_DEVICE uint32_t p_tile(int group) const { return at(5 * kValueBlocks + 2 + group); }
  PB_DEVICE uint32_t ds_tile(int group) const { return at(5 * kValueBlocks + 4 + group); }
  PB_DEVICE uint32_t received(int warp) const {
    return at(5 * kValueBlocks + 6) + warp * kWarpBytes;
  }
  PB_DEVICE ClusterShared& shared() const {
    return *reinterpret_cast<ClusterShared*>(storage + (5 * kValueBlocks + 6) * kBlockBytes +
                                             kHeadWarps * kWarpBytes);
  }
};

/// kRest: columns of a CTA that are not columns of V, 32 or 0.
template <int kRest_>
struct ClusterOperands {
  static constexpr int kRest = kRest_;
  static_assert(kRest == 0 || kRest == kColumns / 2, "half a block");
  const SparseMla& p;
  const SparseMlaGrads& g;
  Cta cta;
  ClusterSmem smem;
  int rank;
  /// The first column that is a column of V, and the first one that is not.
  PB_DEVICE int value_column() const { return rank * (kClusterHeadDimV / 2); }
  PB_DEVICE int rest_column() const { return kClusterHeadDimV + rank * kRest; }
  PB_DEVICE uint32_t other(uint32_t address) const { return cluster_address(address, 1 - rank); }
  PB_DEVICE uint32_t other(const Mbarrier& barrier) const {
    return other(shared_address(&barrier));
  }
};

using HeadLoader = RowLoader<0, kHeadThreads>;

/// The indices of a tile: each lane of each warp has two. The first is of a key of this CTA.
struct OwnSlots {
  int32_t slots[2];
  template <typename Operands>
  PB_DEVICE void read(const Operands& o, int64_t tile) {
    PB_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int64_t slot = tile * kRows + (i ^ o.rank) * kOwnKeys + thread_index() % 32;
      const int32_t index = slot < o.p.topk ? o.p.indices[o.cta.query * o.p.topk + slot] : -1;
      slots[i] = index < 0 || index >= o.p.seqlen_k ? -1 : index;
    }
  }
  PB_DEVICE bool has_key() const { return any_sync(slots[0] >= 0 || slots[1] >= 0); }
  PB_DEVICE void indices(int32_t (&index)[HeadLoader::kEach]) const {
    static_assert(HeadLoader::kEach == 2, "row i of a thread is key i of a lane");
    PB_UNROLL
    for (int i = 0; i < 2; ++i) index[i] = shfl_sync(slots[i], thread_index() / 8);
  }
};

/// Starts the copies of q and grad_out.
template <typename Operands>
PB_DEVICE void load_cluster_queries(const Operands& o) {
  const HeadLoader loader;
  const int64_t query = o.cta.query - o.cta.batch * o.p.seqlen_q;
  const uint16_t* const q = o.p.q + o.cta.batch * o.p.q_stride_batch + query * o.p.q_stride_query +
                            o.cta.first_head * o.p.q_stride_head;
  PB_UNROLL
  for (int group = 0; group < 2; ++group) {
    const int64_t num_rows = o.cta.num_rows - group * kRows;
    const uint16_t* const first = q + (num_rows > 0 ? group * kRows * o.p.q_stride_head : 0);
    loader.load_blocks<0, kValueBlocks>(
        loader.head_rows(first + o.value_column(), o.p.q_stride_head, num_rows),
        kValueBlocks * kColumns, kValueBlocks, o.smem.q_tile(group));
    const uint16_t* const grad_out =
        o.g.grad_out + (o.cta.first_row + (num_rows > 0 ? group * kRows : 0)) * kClusterHeadDimV;
    loader.load_blocks<0, kValueBlocks>(
        loader.head_rows(grad_out + o.value_column(), kClusterHeadDimV, num_rows),
        kValueBlocks * kColumns, kValueBlocks, o.smem.grad_out_tile(group));
    if constexpr (Operands::kRest > 0) {
      const int row = thread_index() / 4, chunk = thread_index() % 4;
      const bool is_row = row < num_rows;
      cp_async<16>(o.smem.q_rest() + swizzled_offset(row, 16 * (chunk + 4 * group)),
                   first + (is_row ? row * o.p.q_stride_head : 0) + o.rest_column() + 8 * chunk,
                   is_row);
    }
  }
}

/// One half of the loads of a K tile: blocks 0 and 1, or the others.
template <int kHalf, typename Operands>
PB_DEVICE void load_cluster_keys(const Operands& o, const int32_t (&index)[HeadLoader::kEach]) {
  const HeadLoader loader;
  HeadLoader::Rows rows = loader.key_rows(o.p, o.cta, index);
  HeadLoader::Rows values = rows;
  PB_UNROLL
  for (const uint16_t*& first : values.first) first += o.value_column();
  loader.load_blocks<2 * kHalf, 2 * kHalf + 2>(values, kValueBlocks * kColumns, kValueBlocks,
                                               o.smem.k_tile());
  if constexpr (kHalf == 1 && Operands::kRest > 0) {
    if (loader.first_column() < Operands::kRest) {
      PB_UNROLL
      for (int i = 0; i < HeadLoader::kEach; ++i)
        cp_async<16>(o.smem.k_rest() + swizzled_offset(loader.row(i), 2 * loader.first_column()),
                     rows.first[i] + o.rest_column(), rows.is_row[i]);
    }
  }
  cp_async_mbarrier_arrive(o.smem.shared().k_full[kHalf]);
}

/// This CTA's part of Delta, stored in both CTAs, and lse: four threads a head.
template <typename Operands>
PB_DEVICE void load_cluster_rows(const Operands& o) {
  constexpr int kEach = kClusterHeadDimV / 2 / 32;
  ClusterShared& shared = o.smem.shared();
  const bool has_rest = o.g.out_remainder != nullptr;
  PB_UNROLL
  for (int group = 0; group < 2; ++group) {
    const int row = group * kRows + thread_index() / 4, quarter = thread_index() % 4;
    const bool is_row = row < o.cta.num_rows;
    const int64_t first =
        (o.cta.first_row + row) * kClusterHeadDimV + o.value_column() + 8 * quarter;
    Vec128 grad_out[kEach], out[kEach], rest[kEach];
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (!is_row) continue;
      grad_out[i] = load_128(o.g.grad_out + first + 32 * i);
      out[i] = load_128(o.g.out + first + 32 * i);
      if (has_rest) rest[i] = load_128(o.g.out_remainder + first + 32 * i);
    }
    float delta = 0.0f;
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) add_dot(delta, grad_out[i], out[i], rest[i]);
    delta = quad_sum(delta);
    if (quarter != 0) continue;
    shared.delta[o.rank][row] = delta;
    store_cluster(o.other(shared_address(&shared.delta[o.rank][row])), delta);
    store_base(o, shared, row);
  }
}

}  // namespace patchbench::ops::sparse_mla_dims
