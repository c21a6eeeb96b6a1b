#pragma once
#include <cstdint>

/// Tiles of 64 rows in shared memory, and products of them by mma.sync for eight warps. Include the
/// primitives first: mimo_primitives.cuh, or a host's own.
namespace patchbench::ops::mamba3_mimo_gqa_bwd {

constexpr int kThreads = 256, kWarpsM = 4;
constexpr int kRows = 64;  // of a tile: tokens times ranks

__device__ inline float2 widen(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
/// Where an element of a [rows, kWidth] tile lies. Eight rows at one column fall into all banks.
template <int kWidth>
__device__ uint32_t at(uint32_t row, uint32_t column) {
  static_assert(kWidth == 64 || kWidth == 128, "rows of 128 or 256 bytes");
  return row * kWidth + ((column / 8) ^ (row % 8)) * 8 + column % 8;
}
template <int kWidth>
__device__ float2 pair_at(const bf16* tile, uint32_t row, uint32_t column) {
  return widen(*reinterpret_cast<const uint32_t*>(tile + at<kWidth>(row, column)));
}

/// Starts the copy of a [rows, kWidth] tile that is dense in memory.
template <int kWidth>
__device__ void copy_tile(bf16* to, const bf16* from, int rows) {
  constexpr int kWords = kWidth / 8;
  for (int word = static_cast<int>(threadIdx.x); word < rows * kWords; word += kThreads) {
    const int row = word / kWords, column = word % kWords * 8;
    cp_async(to + at<kWidth>(row, column), from + row * kWidth + column);
  }
}

/// A warp's part of a [64, kWidth] result: 16 rows and, of either half of the columns, a quarter of
/// kWidth, so that a thread holds both columns of the pairs (n, kWidth / 2 + n). Tiles of 8
/// columns; the second half of the tiles lies in the second half of the columns.
template <int kWidth>
struct Part {
  static constexpr int kTiles = kWidth / 16, kHalf = kTiles / 2;
  float sums[kTiles][4] = {};

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp_m() { return static_cast<int>(threadIdx.x) / 32 % kWarpsM; }
  __device__ static int warp_n() { return static_cast<int>(threadIdx.x) / 32 / kWarpsM; }
  /// Of elements 2 * half and 2 * half + 1 of a tile.
  __device__ static int row(int half) { return warp_m() * 16 + lane() / 4 + half * 8; }
  __device__ static int tile_column(int tile) {
    return tile / kHalf * (kWidth / 2) + warp_n() * (kWidth / 4) + tile % kHalf * 8;
  }
  __device__ static int column(int tile) { return tile_column(tile) + lane() % 4 * 2; }

  /// sums[row, :] *= factor(row).
  template <typename Factor>
  __device__ void scale(const Factor& factor) {
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float by = factor(row(half));
      PB_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        sums[t][2 * half] *= by;
        sums[t][2 * half + 1] *= by;
      }
    }
  }
};

enum class Operand { kAsStored, kTransposed };

/// part += a b over k in [k_begin, k_end), multiples of 16. a is stored [row, k], or [k, row] if
/// transposed, its rows from first_row on; b is stored [k, column], or [column, k] if transposed.
/// Tiles of 16 columns from end_column on are left alone.
template <Operand kA, Operand kB, int kK, int kWidthA, int kWidthB, int kWidth>
__device__ void multiply(Part<kWidth>& part, const bf16* a, const bf16* b, int k_begin = 0,
                         int k_end = kK, int first_row = 0, int end_column = kWidth) {
  constexpr bool kIsRowA = kA == Operand::kAsStored, kIsRowB = kB == Operand::kAsStored;
  const uint32_t lane = threadIdx.x % 32;
  // Lanes 8 i ... 8 i + 7 point to the rows of the i-th 8 x 8 matrix.
  const uint32_t low = lane % 16, high = lane / 16 * 8;
  const uint32_t cross = lane / 16 * 8 + lane % 8, middle = lane / 8 % 2 * 8;
  const auto row = static_cast<uint32_t>(first_row + Part<kWidth>::warp_m() * 16);
  // In bytes. A step along rows is an addition, for 16 rows are swizzled as the first; one along
  // columns an exclusive or, for it changes bits of the column that are clear here.
  const uint32_t from_a =
      2 * (kIsRowA ? at<kWidthA>(row + low, high) : at<kWidthA>(cross, row + middle));
  const uint32_t from_b = 2 * (kIsRowB ? at<kWidthB>(low, high) : at<kWidthB>(cross, middle));
  const uint32_t base_a = shared_address(a), base_b = shared_address(b);
  PB_UNROLL
  for (int step = 0; step < kK; step += 16) {
    if (step < k_begin || step >= k_end) continue;
    const auto k = static_cast<uint32_t>(step);
    uint32_t left[4];
    ldmatrix<!kIsRowA>(left,
                       kIsRowA ? base_a + (from_a ^ 2 * k) : base_a + from_a + 2 * k * kWidthA);
    PB_UNROLL
    for (int t = 0; t < Part<kWidth>::kTiles; t += 2) {
      const auto c = static_cast<uint32_t>(Part<kWidth>::tile_column(t));
      if (Part<kWidth>::tile_column(t) >= end_column) continue;
      uint32_t right[4];
      ldmatrix<kIsRowB>(right, kIsRowB ? base_b + (from_b ^ 2 * c) + 2 * k * kWidthB
                                       : base_b + (from_b ^ 2 * k) + 2 * c * kWidthB);
      mma(part.sums[t], left, right[0], right[1]);
      mma(part.sums[t + 1], left, right[2], right[3]);
    }
  }
}

/// Rounds the part and stores its rows below num_rows, `stride` elements apart. Four lanes hold the
/// column pairs of a row's tiles; they exchange them, so that each stores 16 (or 8) neighbouring
/// bytes.
template <int kWidth>
__device__ void store(const Part<kWidth>& part, bf16* to, int64_t stride, int num_rows) {
  constexpr int kHalf = Part<kWidth>::kHalf;
  static_assert(kHalf == 2 || kHalf == 4, "two or four tiles of 8 columns side by side");
  const int x = Part<kWidth>::lane() % 4;
  PB_UNROLL
  for (int side = 0; side < 2; ++side) {
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t w[kHalf];
      PB_UNROLL
      for (int t = 0; t < kHalf; ++t)
        w[t] = narrow(part.sums[side * kHalf + t][half * 2],
                      part.sums[side * kHalf + t][half * 2 + 1]);
      PB_UNROLL
      for (int bit = 1; bit < kHalf; bit *= 2) {
        PB_UNROLL
        for (int t = 0; t < kHalf; ++t) {
          if (t & bit) continue;
          const bool is_upper = x & bit;
          const uint32_t got = __shfl_xor_sync(kAll, is_upper ? w[t] : w[t | bit], bit);
          w[t] = is_upper ? got : w[t];
          w[t | bit] = is_upper ? w[t | bit] : got;
        }
      }
      const int row = Part<kWidth>::row(half);
      if (row >= num_rows) continue;
      bf16* first = to + row * stride + Part<kWidth>::tile_column(side * kHalf);
      if constexpr (kHalf == 4) {
        *reinterpret_cast<uint4*>(first + x * 8) = make_uint4(w[0], w[1], w[2], w[3]);
      } else {
        *reinterpret_cast<uint2*>(first + x % 2 * 8 + x / 2 * 4) = make_uint2(w[0], w[1]);
      }
    }
  }
}

/// Inclusive sums of 64 values, two neighbours a lane.
__device__ inline float2 prefix_sum(float2 own) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = own.x + own.y;
  PB_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += other;
  }
  return make_float2(sum - own.y, sum);
}
/// The same from the last to the first.
__device__ inline float2 suffix_sum(float2 own) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = own.x + own.y;
  PB_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_down_sync(kAll, sum, step);
    if (lane + step < 32) sum += other;
  }
  return make_float2(sum, sum - own.x);
}

__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(kAll, value, 1);
  return value + __shfl_xor_sync(kAll, value, 2);
}
/// Over lanes that are `from`, 2 `from`, ... below `end` apart: powers of two.
__device__ inline float lane_sum(float value, int from, int end) {
  for (int step = from; step < end; step *= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
