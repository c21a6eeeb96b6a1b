#pragma once
#include <cstdint>

#include "../sm90_tiles.h"
#include "kernel.cuh"

/// What a CTA works for, and how it comes into shared memory.
namespace patchbench::ops::sparse_mla_dims {

// The names of the primitives and of the tiles.
using namespace sm90;  // NOLINT: all of it

/// 64 heads of one query, for which a CTA works.
struct Cta {
  int64_t batch, query;  // query: in [0, batch * seqlen_q)
  int64_t first_head, num_rows;
  int64_t first_row;  // of [batch * seqlen_q * num_heads]
  PB_DEVICE Cta(const SparseMla& p, int64_t x, int64_t y) : batch(y) {
    const int64_t groups = (p.num_heads + kRows - 1) / kRows;
    query = y * p.seqlen_q + x / groups;
    first_head = x % groups * kRows;
    num_rows = p.num_heads - first_head < kRows ? p.num_heads - first_head : kRows;
    first_row = query * p.num_heads + first_head;
  }
};

/// Starts the copy of 64 rows, of which `row_at(row)` is the first element or null: zeros. Columns
/// from `columns`, a multiple of 8, to the end of the last block become zeros, too.
template <typename RowAt>
PB_DEVICE void load_rows(uint32_t to, int columns, const void* anywhere, const RowAt& row_at) {
  const int chunk = thread_index() % 8 * 8;
  for (int row = thread_index() / 8; row < kRows; row += kThreads / 8) {
    const uint16_t* from = row_at(row);
    const uint32_t at = to + in_block(row, 2 * chunk);
    for (int block = 0; block < num_blocks(columns); ++block) {
      const int column = block * kColumns + chunk;
      const bool is_valid = from != nullptr && column < columns;
      copy_async(at + block * kBlockBytes, is_valid ? from + column : anywhere, is_valid);
    }
  }
}

PB_DEVICE void load_query(const SparseMla& p, const Cta& cta, uint32_t to) {
  const uint16_t* first = p.q + cta.batch * p.q_stride_batch +
                          (cta.query - cta.batch * p.seqlen_q) * p.q_stride_query +
                          cta.first_head * p.q_stride_head;
  load_rows(to, p.head_dim_qk, p.q,
            [&](int row) { return row < cta.num_rows ? first + row * p.q_stride_head : nullptr; });
}

/// Starts the copy of the keys in slots 64 * tile ... 64 * tile + 63 and notes which they are, -1
/// where there is none.
PB_DEVICE void load_keys(const SparseMla& p, const Cta& cta, int64_t tile, uint32_t to,
                         int32_t (&index)[kRows]) {
  load_rows(to, p.head_dim_qk, p.q, [&](int row) {
    const int64_t slot = tile * kRows + row;
    int32_t at = slot < p.topk ? p.indices[cta.query * p.topk + slot] : -1;
    if (at >= p.seqlen_k) at = -1;
    if (thread_index() % 8 == 0) index[row] = at;
    return at < 0 ? nullptr : p.kv + cta.batch * p.kv_stride_batch + at * p.kv_stride_key;
  });
}

}  // namespace patchbench::ops::sparse_mla_dims
