#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "../kernel/mma_sync.cuh"
#include "../kernel/ptx.cuh"

/// Tiles in shared memory and products by mma.sync.
namespace patchbench::ops::mamba3_siso_bwd_cse {

using namespace mma_sync;  // NOLINT: all of it
constexpr unsigned kAll = ~0u;

template <typename scalar_t>
__device__ float2 widen(uint32_t pair) {
  if constexpr (std::is_same_v<scalar_t, bf16>) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
}

template <typename scalar_t>
__device__ uint32_t narrow(float low, float high) {
  if constexpr (std::is_same_v<scalar_t, bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

/// Where an element of a [rows, kWidth] tile lies. Eight rows at one column fall into all banks.
template <int kWidth>
__device__ uint32_t at(uint32_t row, uint32_t column) {
  static_assert(kWidth == 32 || kWidth == 64 || kWidth == 128, "rows of 64, 128 or 256 bytes");
  const uint32_t phase = kWidth == 32 ? row / 2 % 4 : row % 8;
  return row * kWidth + ((column / 8) ^ phase) * 8 + column % 8;
}

/// kRows x kWidth elements of rows `stride` apart; rows from `num_rows` on become zeros.
template <int kRows, int kWidth, int kNumThreads, typename scalar_t>
__device__ void load_tile(scalar_t* to, const scalar_t* from, int64_t stride, int num_rows) {
  constexpr int kWords = kWidth / 8;
  constexpr int kTotal = kRows * kWords;
#pragma unroll
  for (int i = 0; i < (kTotal + kNumThreads - 1) / kNumThreads; ++i) {
    const int word = i * kNumThreads + static_cast<int>(threadIdx.x);
    if (kTotal % kNumThreads != 0 && word >= kTotal) continue;
    const int row = word / kWords, column = word % kWords * 8;
    const bool is_valid = row < num_rows;
    cp_async<16>(to + at<kWidth>(row, column), from + (is_valid ? row : 0) * stride + column,
                 is_valid);
  }
}

/// How the warps of a CTA share a [kRows, kColumns] result: tiles of 16 or 32 rows.
template <int kRows, int kColumns, int kWarps>
struct Tiling {
  static constexpr int kWarpsM = kRows == 64 && kColumns == 128 ? 2 : kRows / 16;
  static constexpr int kWarpsN = kWarps / kWarpsM;
  static constexpr int kTilesM = kRows / kWarpsM / 16;
  static constexpr int kTilesN = kColumns / kWarpsN / 8;
  static_assert(kWarpsM * kWarpsN == kWarps && (kTilesN == 2 || kTilesN == 4),
                "a warp's columns are two or four tiles of 8");
  float sums[kTilesM][kTilesN][4] = {};
  __device__ static int warp_m() { return static_cast<int>(threadIdx.x) / 32 / kWarpsN; }
  __device__ static int warp_n() { return static_cast<int>(threadIdx.x) / 32 % kWarpsN; }
  __device__ static int first_row() { return warp_m() * kTilesM * 16; }
  __device__ static int end_row() { return first_row() + kTilesM * 16; }
  __device__ static int first_column() { return warp_n() * kTilesN * 8; }
  /// Of the fragment's elements 2 * half and 2 * half + 1.
  __device__ static int row(int m, int half) {
    return first_row() + m * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + half * 8;
  }
  __device__ static int column(int t) {
    return first_column() + t * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
  }
};

enum class Operand { kAsStored, kTransposed };

/// result += a b over k in [k_begin, k_end). a is stored [row, k], or [k, row] if transposed; b is
/// stored [k, column], or [column, k] if transposed. `scale(step, left)` may change the fragments
/// of a.
template <typename scalar_t, Operand kA, Operand kB, int kK, int kWidthA, int kWidthB,
          typename tiling_t, typename Scale>
__device__ void multiply(tiling_t& result, const scalar_t* a, const scalar_t* b, int k_begin,
                         int k_end, const Scale& scale) {
  const uint32_t lane = threadIdx.x % 32;
  // Lanes 8 i ... 8 i + 7 point to the rows of the i-th 8 x 8 matrix.
  const uint32_t low = lane % 16, high = lane / 16 * 8;
  const uint32_t cross = lane / 16 * 8 + lane % 8, middle = lane / 8 % 2 * 8;
  constexpr bool kIsRowA = kA == Operand::kAsStored, kIsRowB = kB == Operand::kAsStored;
  const auto row = static_cast<uint32_t>(tiling_t::first_row());
  const auto column = static_cast<uint32_t>(tiling_t::first_column());
  // In bytes. A step along rows is an addition, for 16 rows are swizzled as the first; one along
  // columns an exclusive or, for it changes bits of the column that are clear here.
  const uint32_t from_a =
      2 * (kIsRowA ? at<kWidthA>(row + low, high) : at<kWidthA>(cross, row + middle));
  const uint32_t from_b =
      2 * (kIsRowB ? at<kWidthB>(low, column + high) : at<kWidthB>(column + cross, middle));
  const uint32_t base_a = shared_address(a), base_b = shared_address(b);
#pragma unroll
  for (int step = 0; step < kK; step += 16) {
    if (step < k_begin || step >= k_end) continue;
    const auto k = static_cast<uint32_t>(step);
    uint32_t left[tiling_t::kTilesM][4];
#pragma unroll
    for (uint32_t m = 0; m < tiling_t::kTilesM; ++m) {
      ldmatrix<!kIsRowA>(left[m], kIsRowA ? base_a + (from_a ^ 2 * k) + 32 * m * kWidthA
                                          : base_a + (from_a ^ 32 * m) + 2 * k * kWidthA);
      scale(step, left[m]);
    }
#pragma unroll
    for (uint32_t t = 0; t < tiling_t::kTilesN; t += 2) {
      uint32_t right[4];
      ldmatrix<kIsRowB>(right, kIsRowB ? base_b + (from_b ^ 16 * t) + 2 * k * kWidthB
                                       : base_b + (from_b ^ 2 * k) + 16 * t * kWidthB);
#pragma unroll
      for (int m = 0; m < tiling_t::kTilesM; ++m) {
        mma<scalar_t>(result.sums[m][t], left[m], right[0], right[1]);
        mma<scalar_t>(result.sums[m][t + 1], left[m], right[2], right[3]);
      }
    }
  }
}

struct Unscaled {
  __device__ void operator()(int, uint32_t (&)[4]) const {}
};

template <typename scalar_t, Operand kA, Operand kB, int kK, int kWidthA, int kWidthB,
          typename tiling_t>
__device__ void multiply(tiling_t& result, const scalar_t* a, const scalar_t* b, int k_begin = 0,
                         int k_end = kK) {
  multiply<scalar_t, kA, kB, kK, kWidthA, kWidthB>(result, a, b, k_begin, k_end, Unscaled());
}

/// Rounds the result and stores rows below `num_rows`. Four lanes hold the column pairs of a row's
/// tiles; they exchange them, so that each stores 16 (or 8) neighbouring bytes.
template <typename scalar_t, typename tiling_t>
__device__ void store(const tiling_t& result, scalar_t* to, int64_t stride, int num_rows) {
  const int x = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int m = 0; m < tiling_t::kTilesM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t w[tiling_t::kTilesN];
#pragma unroll
      for (int t = 0; t < tiling_t::kTilesN; ++t)
        w[t] = narrow<scalar_t>(result.sums[m][t][half * 2], result.sums[m][t][half * 2 + 1]);
#pragma unroll
      for (int bit = 1; bit < tiling_t::kTilesN; bit *= 2) {
#pragma unroll
        for (int t = 0; t < tiling_t::kTilesN; ++t) {
          if (t & bit) continue;
          const bool is_upper = x & bit;
          const uint32_t got = __shfl_xor_sync(kAll, is_upper ? w[t] : w[t | bit], bit);
          w[t] = is_upper ? got : w[t];
          w[t | bit] = is_upper ? w[t | bit] : got;
        }
      }
      const int row = tiling_t::row(m, half);
      if (row >= num_rows) continue;
      scalar_t* first = to + row * stride + tiling_t::first_column();
      if constexpr (tiling_t::kTilesN == 4) {
        *reinterpret_cast<uint4*>(first + x * 8) = make_uint4(w[0], w[1], w[2], w[3]);
      } else {
        *reinterpret_cast<uint2*>(first + x % 2 * 8 + x / 2 * 4) = make_uint2(w[0], w[1]);
      }
    }
  }
}

/// Inclusive sums of 64 values, two neighbours a lane.
__device__ float2 prefix_sum(float2 own) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = own.x + own.y;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += other;
  }
  return make_float2(sum - own.y, sum);
}

__device__ float quad_sum(float value) {
  value += __shfl_xor_sync(kAll, value, 1);
  return value + __shfl_xor_sync(kAll, value, 2);
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
