#pragma once
#include <cstdint>

#include "kernel.cuh"

/// Tiles in shared memory. Include the primitives first: packs/sm90_warpgroup.cuh, or a host's own.
namespace patchbench::ops::sparse_mla_dims {

// The names that the primitives and this file share.
using namespace sm90;  // NOLINT: all of it

constexpr int kThreads = 256;  // two warpgroups
constexpr int kRows = 64;      // of a tile: heads of a CTA, or keys
constexpr float kLog2e = 1.4426950408889634f;

// A tile of [64, columns] bfloat16 is cut into blocks of 64 columns, each [64, 64] with rows of 128
// bytes in wgmma's 128-byte swizzle. The same bytes serve as an operand that is dense along its
// columns and, transposed, as one that is dense along the other axis.
constexpr int kColumns = 64;
constexpr uint32_t kRowBytes = 2 * kColumns, kBlockBytes = kRows * kRowBytes;
/// Of a product's 16 columns or rows.
constexpr uint32_t kStepColumns = 2 * 16, kStepRows = 16 * kRowBytes;

PB_CONSTEXPR int num_blocks(int columns) { return (columns + kColumns - 1) / kColumns; }

/// Byte offset in a block. Blocks start at multiples of 1024 bytes, for the swizzle is taken of the
/// address.
PB_CONSTEXPR uint32_t in_block(uint32_t row, uint32_t column) {
  return (row * kRowBytes + 2 * column) ^ (row % 8 << 4);
}

/// wgmma's descriptor of an operand that starts at `address`: 128-byte swizzle, eight rows 1024
/// bytes after the last eight, and 64 columns one block after the last 64.
PB_CONSTEXPR uint64_t descriptor(uint32_t address) {
  return (address & 0x3ffff) >> 4 | uint64_t{kBlockBytes >> 4} << 16 |
         uint64_t{8 * kRowBytes >> 4} << 32 | uint64_t{1} << 62;
}

/// Where a thread's accumulators lie in their [64, ...] result.
struct Fragment {
  int warpgroup, row, quad;  // row of elements 0 and 1; the others are 8 below
  PB_DEVICE Fragment()
      : warpgroup(uniform(thread_index() / 128)),
        row(thread_index() / 32 % 4 * 16 + thread_index() % 32 / 4),
        quad(thread_index() % 4) {}
  PB_DEVICE int column(int i) const { return i / 4 * 8 + quad * 2 + i % 2; }
};

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
    const uint32_t at = to + in_block(row, chunk);
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

/// d (+)= a b^T over `blocks` blocks of columns, for the 32 rows of b that are this warpgroup's.
PB_DEVICE void dot_rows(float (&d)[16], uint32_t a, uint32_t b, int blocks) {
  const uint64_t from_a = descriptor(a), from_b = descriptor(b);
  for (int block = 0; block < blocks; ++block) {
    PB_UNROLL
    for (int step = 0; step < kColumns / 16; ++step) {
      const uint64_t offset = (block * kBlockBytes + step * kStepColumns) >> 4;
      wgmma<32, Major::kK, Major::kK>(d, from_a + offset, from_b + offset, block + step > 0);
    }
  }
}

/// d += a b over the 64 rows of b: a [64, 64] dense along its columns, or its transpose.
template <Major kA, int kN>
PB_DEVICE void multiply_rows(float (&d)[kN / 2], uint32_t a, uint32_t b, bool accumulates) {
  PB_UNROLL
  for (int step = 0; step < kRows / 16; ++step) {
    const uint32_t offset = step * (kA == Major::kK ? kStepColumns : kStepRows);
    wgmma<kN, kA, Major::kMn>(d, descriptor(a + offset), descriptor(b + step * kStepRows),
                              accumulates || step > 0);
  }
}

PB_DEVICE float quad_sum(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}
PB_DEVICE float quad_max(float value) {
  const float other = shuffle_xor(value, 1);
  value = value > other ? value : other;
  const float far = shuffle_xor(value, 2);
  return value > far ? value : far;
}

}  // namespace patchbench::ops::sparse_mla_dims
