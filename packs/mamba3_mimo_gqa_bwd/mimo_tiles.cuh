#pragma once
#include <cstdint>

/// Tiles of 64 rows in shared memory, and products of them by mma.sync for eight warps. Include the
/// primitives first: mimo_primitives.cuh, or a host's own.
namespace patchbench::ops::mamba3_mimo_gqa_bwd {

constexpr int kThreads = 256, kWarpsM = 4, kWarpsN = 2;
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
/// Where the column kWidth / 2 behind one in the first half lies, given where that lies.
template <int kWidth>
__device__ uint32_t other_half(uint32_t place) {
  return place ^ (kWidth / 2);
}
/// Starts the copy of a [kCount, kWidth] tile that is dense in memory.
template <int kWidth, int kCount>
__device__ void copy_tile(bf16* to, const bf16* from) {
  constexpr int kWords = kWidth / 8;
  const uint32_t thread = threadIdx.x;
  bf16* const place = to + at<kWidth>(thread / kWords, thread % kWords * 8);
  PB_UNROLL
  for (int i = 0; i < kCount * kWords / kThreads; ++i) {
    // Steps of a multiple of 8 rows are swizzled alike.
    static_assert(kThreads / kWords % 8 == 0, "rows of 128 or 256 bytes");
    cp_async(place + i * kThreads * 8, from + (i * kThreads + thread) * 8);
  }
}

/// A warp's part of a [64, kWidth] result: 16 rows and, of either half of the columns, a quarter of
/// kWidth, so that a thread holds both columns of the pairs (n, kWidth / 2 + n). Tiles of 8
/// columns; the second half of the tiles lies in the second half of the columns.
template <int kWidth>
struct Part {
  static constexpr int kTiles = kWidth / 16, kHalf = kTiles / 2;
  float sums[kTiles][4] = {};

  // Unsigned: a signed index divided by a power of two is several instructions.
  __device__ static uint32_t lane() { return threadIdx.x % 32; }
  __device__ static uint32_t warp_m() { return threadIdx.x / 32 % kWarpsM; }
  __device__ static uint32_t warp_n() { return threadIdx.x / 32 / kWarpsM; }
  /// Of elements 2 * half and 2 * half + 1 of a tile.
  __device__ static uint32_t row(uint32_t half) { return warp_m() * 16 + lane() / 4 + half * 8; }
  __device__ static uint32_t tile_column(uint32_t tile) {
    return tile / kHalf * (kWidth / 2) + warp_n() * (kWidth / 4) + tile % kHalf * 8;
  }
  __device__ static uint32_t column(uint32_t tile) { return tile_column(tile) + lane() % 4 * 2; }
  /// The first of kSpan columns in which a thread's columns of either half lie side by side; tile t
  /// begins at 2 t. With two tiles lanes 1 and 2 change places. The exchange of columns is then its
  /// own inverse (`exchanged`).
  static constexpr int kSpan = 2 * kHalf;
  __device__ static uint32_t span_column() {
    const uint32_t x = lane() % 4;
    return warp_n() * (kWidth / 4) + (kHalf == 4 ? x : x % 2 * 2 + x / 2) * kSpan;
  }

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

/// The even column whose place the even column `column` takes where a thread's columns of a Part
/// lie side by side: bits of the tile against bits of the lane.
template <int kWidth>
__device__ uint32_t exchanged(uint32_t column) {
  static_assert(kWidth == 64 || kWidth == 128, "two or four tiles of 8 columns side by side");
  if constexpr (kWidth == 128)
    return column / 32 * 32 + column % 8 * 4 + column % 32 / 8 * 2;
  else
    return column / 16 * 16 + column / 2 % 2 * 8 + column / 4 % 2 * 4 + column / 8 % 2 * 2;
}

enum class Operand { kAsStored, kTransposed };

/// part += a b over k in [k_begin, k_end), multiples of 16. a is stored [row, k], or [k, row] if
/// transposed, its rows from first_row on; b is stored [k, column], or [column, k] if transposed.
template <Operand kA, Operand kB, int kK, int kWidthA, int kWidthB, int kWidth>
__device__ void multiply(Part<kWidth>& part, const bf16* a, const bf16* b, int k_begin = 0,
                         int k_end = kK, int first_row = 0) {
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
      uint32_t right[4];
      ldmatrix<kIsRowB>(right, kIsRowB ? base_b + (from_b ^ 2 * c) + 2 * k * kWidthB
                                       : base_b + (from_b ^ 2 * k) + 2 * c * kWidthB);
      mma(part.sums[t], left, right[0], right[1]);
      mma(part.sums[t + 1], left, right[2], right[3]);
    }
  }
}

/// Rounds the part and stores its rows below num_rows, `stride` elements apart, each thread its
/// columns side by side, where `exchanged` puts them.
template <int kWidth>
__device__ void store(const Part<kWidth>& part, bf16* to, int64_t stride, uint32_t num_rows) {
  using part_t = Part<kWidth>;
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const uint32_t row = part_t::row(half);
    if (row >= num_rows) continue;
    PB_UNROLL
    for (int side = 0; side < 2; ++side) {
      uint32_t w[part_t::kHalf];
      PB_UNROLL
      for (int t = 0; t < part_t::kHalf; ++t) {
        const float(&sums)[4] = part.sums[side * part_t::kHalf + t];
        w[t] = narrow(sums[2 * half], sums[2 * half + 1]);
      }
      bf16* const first = to + row * stride + side * (kWidth / 2) + part_t::span_column();
      if constexpr (part_t::kHalf == 4)
        *reinterpret_cast<uint4*>(first) = make_uint4(w[0], w[1], w[2], w[3]);
      else
        *reinterpret_cast<uint2*>(first) = make_uint2(w[0], w[1]);
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

/// Over lanes that are kFrom, 2 kFrom, ... below kEnd apart: powers of two.
template <int kFrom, int kEnd>
__device__ float lane_sum(float value) {
  PB_UNROLL
  for (int step = kFrom; step < kEnd; step *= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}
/// The same of kWidth values, a power of two: lanes swap halves, so that each ends with kWidth over
/// the number of lanes, at least one, at the front of `values`. Returns the index of its first.
template <int kFrom, int kEnd, int kWidth, int kCount>
__device__ uint32_t scatter_sum(float (&values)[kCount]) {
  static_assert(kWidth <= kCount && kWidth >= 1, "the values in use are the first");
  if constexpr (kFrom >= kEnd) {
    return 0;
  } else if constexpr (kWidth == 1) {
    values[0] = lane_sum<kFrom, kEnd>(values[0]);
    return 0;
  } else {
    constexpr int kKept = kWidth / 2;
    const bool is_upper = threadIdx.x & kFrom;
    PB_UNROLL
    for (int i = 0; i < kKept; ++i) {
      const float sent = is_upper ? values[i] : values[i + kKept];
      const float kept = is_upper ? values[i + kKept] : values[i];
      values[i] = kept + __shfl_xor_sync(kAll, sent, kFrom);
    }
    return (is_upper ? kKept : 0) + scatter_sum<2 * kFrom, kEnd, kKept>(values);
  }
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
