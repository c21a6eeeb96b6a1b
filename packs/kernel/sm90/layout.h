#pragma once
#include <cmath>
#include <cstdint>

/// Tiles of 64 rows in shared memory: swizzle, wgmma descriptors, products of whole tiles, and the
/// layout of accumulators. Include the primitives first: kernel/sm90/wgmma.cuh, or the emulator.
namespace patchbench::ops::sm90 {

constexpr int kThreads = 256;  // two warpgroups
/// Registers of each of 384 threads at launch: all 65536 of an SM, a multiple of 8.
constexpr int kLaunchRegisters = 65536 / 384 / 8 * 8;
constexpr int kRows = 64;  // rows of a tile: heads of a CTA, or keys
constexpr float kLog2e = 1.4426950408889634f;

// A tile is split into blocks. A block has 64 rows of 128 bytes (64 bfloat16 or 128 e4m3) in the
// 128-byte swizzle of wgmma. Blocks start at multiples of 1024 bytes, because the swizzle is a
// function of the address. A bfloat16 block serves as a K-major operand and, transposed, as an
// MN-major one.
constexpr uint32_t kRowBytes = 128, kBlockBytes = kRows * kRowBytes;
constexpr int kColumns = kRowBytes / 2;  // columns of a bfloat16 block
PB_CONSTEXPR int num_blocks(int columns) { return (columns + kColumns - 1) / kColumns; }
/// Bytes from one K step of 16 bfloat16 to the next: along a row, and across 16 rows.
constexpr uint32_t kStepColumns = 32, kStepRows = 16 * kRowBytes;

/// Offset of byte `byte` (0 to 127) of row `row` within a block.
PB_CONSTEXPR uint32_t swizzled_offset(uint32_t row, uint32_t byte) {
  return (row * kRowBytes + byte) ^ (row % 8 << 4);
}

/// The wgmma descriptor of an operand at `address`: 128-byte swizzle, 1024 bytes from eight rows to
/// the next eight, one block from 128 bytes of a row to the next 128.
PB_CONSTEXPR uint64_t smem_desc(uint32_t address) {
  return (address & 0x3ffff) >> 4 | uint64_t{kBlockBytes >> 4} << 16 |
         uint64_t{8 * kRowBytes >> 4} << 32 | uint64_t{1} << 62;
}

/// The rows and columns that a thread holds of a [64, ...] accumulator.
struct Fragment {
  int warpgroup, row, quad;  // row of elements 0 and 1; elements 2 and 3 are in row + 8
  PB_DEVICE Fragment() : warpgroup(warp_broadcast(thread_index() / 128)) { place(thread_index()); }
  /// Makes the compiler compute values from row and quad again instead of keeping them in
  /// registers.
  PB_DEVICE void rematerialize() { place(reread_thread_index()); }
  PB_DEVICE void place(int thread) {
    row = (thread >> 5 & 3) * 16 + (thread >> 2 & 7);
    quad = thread & 3;
  }
  PB_DEVICE int column(int i) const { return i / 4 * 8 + quad * 2 + i % 2; }
  /// The key of element i, where each warpgroup has 32 keys.
  PB_DEVICE int key(int i) const { return warpgroup * 32 + column(i); }
};

/// The descriptor `bytes` further, from the low half of a descriptor. A 32-bit add next to a
/// constant high half: 64-bit adds form a chain between two products, which then wait.
PB_CONSTEXPR uint64_t smem_desc_from(uint32_t low, uint32_t bytes) {
  return smem_desc(0) >> 32 << 32 | (low + (bytes >> 4));
}

/// d (+)= a b^T over one block of bfloat16, for 2 kCount rows of b. a and b: low halves of their
/// descriptors.
template <int kCount>
PB_DEVICE void mma_abt_block(float (&d)[kCount], uint32_t a, uint32_t b, bool accumulates) {
  PB_UNROLL
  for (uint32_t step = 0; step < kRowBytes; step += kStepColumns)
    wgmma_ss<2 * kCount, Major::kK, Major::kK>(d, smem_desc_from(a, step), smem_desc_from(b, step),
                                               accumulates || step > 0);
}

/// The same over `blocks` blocks from the addresses a and b on.
template <int kCount>
PB_DEVICE void mma_abt(float (&d)[kCount], uint32_t a, uint32_t b, int blocks, bool accumulates) {
  auto from_a = static_cast<uint32_t>(smem_desc(a)), from_b = static_cast<uint32_t>(smem_desc(b));
  PB_ROLLED
  for (int block = 0; block < blocks; ++block) {
    mma_abt_block(d, from_a, from_b, accumulates || block > 0);
    from_a += kBlockBytes >> 4;
    from_b += kBlockBytes >> 4;
  }
}

/// The same over kBlocks blocks, unrolled: next to many other accumulators it spills less than the
/// loop.
template <int kBlocks, int kCount>
PB_DEVICE void mma_abt_unrolled(float (&d)[kCount], uint32_t a, uint32_t b,
                                bool accumulates = false) {
  const auto from_a = static_cast<uint32_t>(smem_desc(a)),
             from_b = static_cast<uint32_t>(smem_desc(b));
  PB_UNROLL
  for (int block = 0; block < kBlocks; ++block)
    mma_abt_block(d, from_a + block * (kBlockBytes >> 4), from_b + block * (kBlockBytes >> 4),
                  accumulates || block > 0);
}

/// d (+)= a b over the 64 rows of b. a: [64, 64] bfloat16, K-major, or its transpose (MN-major). a
/// and b: low halves of their descriptors.
template <Major kA, int kN>
PB_DEVICE void mma_ab_block(float (&d)[kN / 2], uint32_t a, uint32_t b, bool accumulates) {
  PB_UNROLL
  for (uint32_t step = 0; step < kRows / 16; ++step)
    wgmma_ss<kN, kA, Major::kMn>(
        d, smem_desc_from(a, step * (kA == Major::kK ? kStepColumns : kStepRows)),
        smem_desc_from(b, step * kStepRows), accumulates || step > 0);
}

/// The same from the addresses a and b on, over the first 16 kSteps rows of b.
template <Major kA, int kN, int kSteps = kRows / 16>
PB_DEVICE void mma_ab(float (&d)[kN / 2], uint32_t a, uint32_t b, bool accumulates) {
  PB_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    const uint32_t offset = step * (kA == Major::kK ? kStepColumns : kStepRows);
    wgmma_ss<kN, kA, Major::kMn>(d, smem_desc(a + offset), smem_desc(b + step * kStepRows),
                                 accumulates || step > 0);
  }
}

}  // namespace patchbench::ops::sm90
