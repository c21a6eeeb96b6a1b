#include "kernel.cuh"

#include <algorithm>

#include "../kernel/launch.cuh"
// The primitives that the others are written over come first.
#include "../kernel/sm90/wgmma.cuh"

#include "sm90_walk.h"

// sm_90a alone: what the kernel does stands at the head of sm90_walk.h. Limits, checked in op.cpp:
// bfloat16, chunk 64, n and p in {64, 128}, batch and num_chunks < 65536.
namespace patchbench::ops::mamba3_siso_bwd_cse {
namespace {

constexpr int64_t kShared = 228 * 1024, kReserved = 1024;  // of an SM, of each of its CTAs

/// CTAs that an SM holds: two, where their tiles fit, of 128 registers a thread.
template <int kN, int kP>
constexpr int kResident = 2 * (walk_bytes<kN, kP>() + kReserved) <= kShared ? 2 : 1;
static_assert(kResident<128, 64> == 2 && kResident<128, 128> == 1 &&
                  walk_bytes<128, 128>() + kReserved <= kShared,
              "what the CTAs of an SM share is 228 KiB");

template <int kN, int kP>
__global__ void __launch_bounds__(kThreads, kResident<kN, kP>) walk_kernel(SisoBackward problem) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char storage[];
  walk_cta<kN, kP>(problem, Walk(problem, blockIdx.x, blockIdx.y, blockIdx.z), storage);
#endif
}

bool is_width(int64_t extent) { return extent == 64 || extent == 128; }

/// Calls `body` with the head dims as compile-time constants.
template <typename Body>
auto with_widths(const SisoBackward& problem, const Body& body) {
  const auto with_p = [&](auto n) {
    if (problem.head_dim_v == 64) return body(n, std::integral_constant<int, 64>());
    return body(n, std::integral_constant<int, 128>());
  };
  if (problem.head_dim_qk == 64) return with_p(std::integral_constant<int, 64>());
  return with_p(std::integral_constant<int, 128>());
}

}  // namespace

bool is_walked(const SisoBackward& problem, ElementType type) {
  return type == ElementType::kBFloat16 && is_width(problem.head_dim_qk) &&
         is_width(problem.head_dim_v);
}

int64_t chunks_per_cta(const SisoBackward& problem, int64_t num_processors) {
  const int64_t num_slots = with_widths(problem, [&](auto n, auto p) {
    return num_processors * kResident<decltype(n)::value, decltype(p)::value>;
  });
  return chunks_per_slot(problem, num_slots);
}

cudaError_t launch_walk(const SisoBackward& problem, cudaStream_t stream) {
  if (problem.batch * problem.num_heads == 0) return cudaSuccess;
  return with_widths(problem, [&](auto n, auto p) {
    constexpr int kN = decltype(n)::value, kP = decltype(p)::value;
    const int64_t segments =
        (problem.num_chunks + problem.chunks_per_cta - 1) / problem.chunks_per_cta;
    // A scan without tokens hands its last gradient on.
    const dim3 grid(static_cast<unsigned>(problem.num_heads), static_cast<unsigned>(problem.batch),
                    static_cast<unsigned>(std::max<int64_t>(segments, 1)));
    return launch_kernel(
        walk_kernel<kN, kP>,
        {.grid = grid, .threads = kThreads, .bytes = walk_bytes<kN, kP>(), .stream = stream},
        problem);
  });
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
