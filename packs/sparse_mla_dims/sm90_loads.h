#pragma once
#include <cstdint>

#include "../kernel/sm90/layout.h"
#include "kernel.cuh"

/// The work item of a CTA, and the loads of its operands to shared memory.
namespace patchbench::ops::sparse_mla_dims {

// The names of the primitives and of the tiles.
using namespace sm90;  // NOLINT: all of it

/// Work item `item` of num_items: `heads` heads of one query.
struct Cta {
  int64_t batch, query;  // query: in [0, batch * seqlen_q)
  int64_t first_head, num_rows;
  int64_t first_row;  // of [batch * seqlen_q * num_heads]
  PB_DEVICE Cta(const SparseMla& p, int64_t item, int heads = kRows) {
    const int64_t groups = (p.num_heads + heads - 1) / heads;
    query = item / groups;
    batch = query / p.seqlen_q;
    first_head = item % groups * heads;
    num_rows = p.num_heads - first_head < heads ? p.num_heads - first_head : heads;
    first_row = query * p.num_heads + first_head;
  }
};
PB_CONSTEXPR int64_t num_items(const SparseMla& p, int heads = kRows) {
  return p.batch * p.seqlen_q * ((p.num_heads + heads - 1) / heads);
}

constexpr int kMaxBlocks = 9;  // of 576 columns

/// kCount consecutive threads from kFirst on that load rows together, eight threads a row.
template <int kFirst, int kCount>
struct RowLoader {
  static constexpr int kEach = kRows / (kCount / 8);  ///< rows of a thread
  static_assert(kCount % 64 == 0, "a thread's rows are alike in the swizzle");
  /// The address of this thread's part of each row; any valid address where the row does not exist.
  struct Rows {
    const uint16_t* first[kEach];
    bool is_row[kEach];
  };
  // Kept for no longer than the loader is: else the addresses of all loads stay in registers.
  int thread = reread_thread_index() - kFirst;
  PB_DEVICE int row(int i) const { return thread / 8 + i * (kCount / 8); }
  /// The first column of this thread within a block.
  PB_DEVICE int first_column() const { return thread % 8 * 8; }

  /// Starts the copies of blocks kBegin to kEnd - 1, and no block from `end` on, of 64 rows.
  /// Missing rows and columns from `columns` on (a multiple of 8) become zeros. Offsets from the
  /// row address are compile-time constants: otherwise each copy waits for the address of the one
  /// before.
  template <int kBegin, int kEnd>
  PB_DEVICE void load_blocks(const Rows& rows, int columns, int end, uint32_t to) const {
    const uint32_t at = to + swizzled_offset(row(0), 2 * first_column());
    PB_UNROLL
    for (int block = kBegin; block < kEnd; ++block) {
      if (block >= end) break;
      const bool is_column = block * kColumns + first_column() < columns;
      PB_UNROLL
      for (int i = 0; i < kEach; ++i)
        cp_async<16>(at + block * kBlockBytes + i * (kCount / 8) * kRowBytes,
                     rows.first[i] + block * kColumns, rows.is_row[i] && is_column);
    }
  }

  /// Rows of the heads of the CTA. `first`: the first element of the first head.
  PB_DEVICE Rows head_rows(const uint16_t* first, int64_t stride, int64_t num_rows) const {
    Rows rows;
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      rows.is_row[i] = row(i) < num_rows;
      rows.first[i] = first + (rows.is_row[i] ? row(i) * stride : 0) + first_column();
    }
    return rows;
  }
  PB_DEVICE Rows query_rows(const SparseMla& p, const Cta& cta) const {
    return head_rows(p.q + cta.batch * p.q_stride_batch +
                         (cta.query - cta.batch * p.seqlen_q) * p.q_stride_query +
                         cta.first_head * p.q_stride_head,
                     p.q_stride_head, cta.num_rows);
  }

  /// Reads this thread's indices of tile `tile`; -1 beyond topk. The values are first used in
  /// valid_indices, so that the loads overlap other work.
  PB_DEVICE void read_slots(const SparseMla& p, const Cta& cta, int64_t tile,
                            int32_t (&slots)[kEach]) const {
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int64_t slot = tile * kRows + row(i);
      slots[i] = slot < p.topk ? p.indices[cta.query * p.topk + slot] : -1;
    }
  }
  /// The index of each key, -1 where it is invalid.
  PB_DEVICE void valid_indices(const SparseMla& p, const int32_t (&slots)[kEach],
                               int32_t (&index)[kEach]) const {
    PB_UNROLL
    for (int i = 0; i < kEach; ++i)
      index[i] = slots[i] < 0 || slots[i] >= p.seqlen_k ? -1 : slots[i];
  }
  PB_DEVICE void store_indices(const int32_t (&index)[kEach], int32_t (&stored)[kRows]) const {
    PB_UNROLL
    for (int i = 0; i < kEach; ++i)
      if (thread % 8 == 0) stored[row(i)] = index[i];
  }
  PB_DEVICE Rows key_rows(const SparseMla& p, const Cta& cta, const int32_t (&index)[kEach]) const {
    Rows rows;
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      rows.is_row[i] = index[i] >= 0;
      rows.first[i] = p.kv + cta.batch * p.kv_stride_batch +
                      (rows.is_row[i] ? index[i] * p.kv_stride_key : 0) + first_column();
    }
    return rows;
  }
};

}  // namespace patchbench::ops::sparse_mla_dims
