#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "../kernel/mma_sync.cuh"
#include "../kernel/ptx.cuh"

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

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
