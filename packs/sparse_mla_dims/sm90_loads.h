#pragma once
#include <cstdint>

#include "../kernel/sm90/layout.h"
#include "kernel.cuh"

/// What a CTA works for, and how it comes into shared memory.
namespace patchbench::ops::sparse_mla_dims {

// The names of the primitives and of the tiles.
using namespace sm90;  // NOLINT: all of it

/// 64 heads of one query, for which a CTA works: `item` of num_items.
struct Cta {
  int64_t batch, query;  // query: in [0, batch * seqlen_q)
  int64_t first_head, num_rows;
  int64_t first_row;  // of [batch * seqlen_q * num_heads]
  PB_DEVICE Cta(const SparseMla& p, int64_t item) {
    const int64_t groups = (p.num_heads + kRows - 1) / kRows;
    query = item / groups;
    batch = query / p.seqlen_q;
    first_head = item % groups * kRows;
    num_rows = p.num_heads - first_head < kRows ? p.num_heads - first_head : kRows;
    first_row = query * p.num_heads + first_head;
  }
};
PB_CONSTEXPR int64_t num_items(const SparseMla& p) {
  return p.batch * p.seqlen_q * ((p.num_heads + kRows - 1) / kRows);
}

constexpr int kMaxBlocks = 9;  // of 576 columns

/// Threads that copy together, eight to a row: warps of a CTA from `first` on.
template <int kFirst, int kCount>
struct Team {
  static constexpr int kEach = kRows / (kCount / 8);  ///< rows of a thread
  static_assert(kCount % 64 == 0, "a thread's rows are alike in the swizzle");
  /// Where a thread's part of rows starts; where there is none, some address.
  struct Rows {
    const uint16_t* first[kEach];
    bool is_row[kEach];
  };
  int thread = thread_index() - kFirst;
  PB_DEVICE int row(int i) const { return thread / 8 + i * (kCount / 8); }
  /// Of a block's.
  PB_DEVICE int first_column() const { return thread % 8 * 8; }

  /// Starts the copy of blocks kBegin ... of 64 rows, none from kEnd or `end` on. Zeros are what is
  /// no row, and columns from `columns` on, a multiple of 8. Addresses are constants from a row's
  /// on: else each copy waits until the one before has read its own.
  template <int kBegin, int kEnd>
  PB_DEVICE void copy(const Rows& rows, int columns, int end, uint32_t to) const {
    const uint32_t at = to + in_block(row(0), 2 * first_column());
    PB_UNROLL
    for (int block = kBegin; block < kEnd; ++block) {
      if (block >= end) break;
      const bool is_column = block * kColumns + first_column() < columns;
      PB_UNROLL
      for (int i = 0; i < kEach; ++i)
        cp_async(at + block * kBlockBytes + i * (kCount / 8) * kRowBytes,
                 rows.first[i] + block * kColumns, rows.is_row[i] && is_column);
    }
  }

  /// Of the CTA's heads: `first` is the first element of the first.
  PB_DEVICE Rows find_heads(const uint16_t* first, int64_t stride, int64_t num_rows) const {
    Rows rows;
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      rows.is_row[i] = row(i) < num_rows;
      rows.first[i] = first + (rows.is_row[i] ? row(i) * stride : 0) + first_column();
    }
    return rows;
  }
  PB_DEVICE Rows find_query(const SparseMla& p, const Cta& cta) const {
    return find_heads(p.q + cta.batch * p.q_stride_batch +
                          (cta.query - cta.batch * p.seqlen_q) * p.q_stride_query +
                          cta.first_head * p.q_stride_head,
                      p.q_stride_head, cta.num_rows);
  }

  /// What stands in slots 64 * tile ... 64 * tile + 63, of those this thread's; -1 beyond the last.
  /// Nothing is done with it yet: it need not be there before keys_of.
  PB_DEVICE void read_slots(const SparseMla& p, const Cta& cta, int64_t tile,
                            int32_t (&slots)[kEach]) const {
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int64_t slot = tile * kRows + row(i);
      slots[i] = slot < p.topk ? p.indices[cta.query * p.topk + slot] : -1;
    }
  }
  /// The keys that slots name, -1 where there is none.
  PB_DEVICE void keys_of(const SparseMla& p, const int32_t (&slots)[kEach],
                         int32_t (&index)[kEach]) const {
    PB_UNROLL
    for (int i = 0; i < kEach; ++i)
      index[i] = slots[i] < 0 || slots[i] >= p.seqlen_k ? -1 : slots[i];
  }
  PB_DEVICE void note_indices(const int32_t (&index)[kEach], int32_t (&noted)[kRows]) const {
    PB_UNROLL
    for (int i = 0; i < kEach; ++i)
      if (thread % 8 == 0) noted[row(i)] = index[i];
  }
  PB_DEVICE Rows find_keys(const SparseMla& p, const Cta& cta,
                           const int32_t (&index)[kEach]) const {
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
