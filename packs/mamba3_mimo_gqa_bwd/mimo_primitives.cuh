#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "../kernel/mma_sync.cuh"

/// What the MIMO kernels ask of a GPU beyond CUDA's own words.
namespace patchbench::ops::mamba3_mimo_gqa_bwd {

#define PB_UNROLL _Pragma("unroll")
#define PB_DYNAMIC_SHARED(name) extern __shared__ uint4 name[]

using namespace mma_sync;  // NOLINT: all of it
constexpr unsigned kAll = ~0u;

__device__ inline uint32_t narrow(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// 2^x and 1 / x to two units in the last place; what is denormal counts as 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline void cp_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ inline void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
