#include "rotary.cuh"

#include <algorithm>
#include <type_traits>

#include "../kernel/launch.cuh"
// The primitives that the others are written over come first.
#include "../kernel/sm90/barrier.cuh"

#include "rotary_cta.h"

// What the kernels do stands at the head of rotary_cta.h. Limits, checked in rotary.cpp: see
// is_rotary_served. Two CTAs of turn_kernel an SM, of at most 128 registers a thread.
namespace patchbench::ops::mamba3_siso_bwd_cse {
namespace {

constexpr int64_t kMaxHeads = 64;  // of a group
constexpr int64_t kMaxGrid = 65535, kMaxRows = int64_t{1} << 27;
static_assert(rotary::kStep == 32, "the least that rotary_block_tokens gives");

template <int kN, int kR>
__global__ void __launch_bounds__(rotary::kThreads, 2) turn_kernel(RotaryBackward problem) {
  extern __shared__ __align__(16) unsigned char storage[];
  rotary::turn_cta<kN, kR>(problem, blockIdx.x, blockIdx.y, blockIdx.z, storage);
}
template <int kN, int kR>
__global__ void __launch_bounds__(rotary::kThreads) sum_kernel(RotaryBackward problem) {
  rotary::sum_cta<kN, kR>(problem, blockIdx.x);
}
template <int kN, int kR>
__global__ void __launch_bounds__(rotary::kThreads) angle_kernel(RotaryBackward problem) {
  rotary::angle_cta<kN, kR>(problem, blockIdx.x, blockIdx.y, blockIdx.z);
}

template <int kN, int kR>
cudaError_t launch(const RotaryBackward& p, cudaStream_t stream) {
  using shape_t = rotary::Shape<kN, kR>;
  constexpr auto kThreads = static_cast<unsigned>(rotary::kThreads);
  const auto blocks = static_cast<unsigned>(p.num_blocks);
  const auto batch = static_cast<unsigned>(p.batch);
  const auto ctas_of = [](int64_t threads) {
    return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  };
  const cudaError_t status =
      launch_kernel(turn_kernel<kN, kR>,
                    {.grid = dim3(static_cast<unsigned>(p.num_groups), blocks, batch),
                     .threads = kThreads,
                     .bytes = shape_t::bytes(p.num_heads / p.num_groups),
                     .stream = stream},
                    p);
  if (status != cudaSuccess) return status;
  sum_kernel<kN, kR><<<ctas_of(p.num_heads * shape_t::kColumns), kThreads, 0, stream>>>(p);
  angle_kernel<kN, kR>
      <<<dim3(ctas_of(p.num_heads * kR / 2), blocks, batch), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

/// Calls `body` with head_dim_qk and num_angles as compile-time constants.
template <typename Body>
auto with_extents(const RotaryBackward& problem, const Body& body) {
  const bool is_half = problem.num_angles == problem.head_dim_qk / 2;
  const auto with_r = [&](auto n) {
    constexpr int kHalf = decltype(n)::value / 2;
    if (is_half) return body(n, std::integral_constant<int, kHalf>());
    return body(n, std::integral_constant<int, kHalf / 2>());
  };
  if (problem.head_dim_qk == 64) return with_r(std::integral_constant<int, 64>());
  return with_r(std::integral_constant<int, 128>());
}

}  // namespace

bool is_rotary_served(const RotaryBackward& p) {
  const int64_t n = p.head_dim_qk, r = p.num_angles;
  return (n == 64 || n == 128) && (r == n / 4 || r == n / 2) && p.num_groups > 0 &&
         p.num_heads / p.num_groups <= kMaxHeads && p.batch <= kMaxGrid &&
         p.seqlen <= 32 * kMaxGrid && p.batch * p.seqlen * p.num_heads < kMaxRows;
}

int64_t rotary_shared_bytes(const RotaryBackward& problem) {
  return with_extents(problem, [&](auto n, auto r) {
    return rotary::Shape<decltype(n)::value, decltype(r)::value>::bytes(problem.num_heads /
                                                                        problem.num_groups);
  });
}

cudaError_t launch_rotary_backward(const RotaryBackward& problem, cudaStream_t stream) {
  return with_extents(problem, [&](auto n, auto r) {
    return launch<decltype(n)::value, decltype(r)::value>(problem, stream);
  });
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
