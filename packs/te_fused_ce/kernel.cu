// Cross entropy of given logits. Both kernels: grid [rows], one block of 512 threads a row, thread
// k takes the classes k, k + 512, ... of its row; 32-bit registers: a few a thread. Shared memory:
// 16 warps x 12 bytes in forward, none in backward. Limits: rows <= 2^31 - 1; any strides,
// coalesced where stride_v is 1. Rounding: fp32 throughout, the gradient is rounded once when it is
// stored.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernel.cuh"

namespace patchbench::ops::te_fused_ce {
namespace {

constexpr int kThreads = 512, kWarp = 32, kWarps = kThreads / kWarp;
static_assert(kWarps <= kWarp, "one warp reduces what the warps of a block found");

struct Found {
  OnlineSum<float> sum;
  float total = 0;  ///< sum of the logits
};

__device__ void take(Found& found, const Found& other) {
  found.sum.add(other.sum.max, other.sum.rest);
  found.total += other.total;
}

__device__ Found butterfly_exchange(Found found) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    Found other;
    other.sum.max = __shfl_xor_sync(0xffffffffu, found.sum.max, lane);
    other.sum.rest = __shfl_xor_sync(0xffffffffu, found.sum.rest, lane);
    other.total = __shfl_xor_sync(0xffffffffu, found.total, lane);
    take(found, other);
  }
  return found;
}

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads) statistics_kernel(StatisticsPass<float> pass) {
  __shared__ float maxima[kWarps], rests[kWarps], totals[kWarps];
  const int64_t i = blockIdx.x;
  const scalar_t* row = static_cast<const scalar_t*>(pass.logits) + pass.layout.row(i);
  Found found;
  for (int64_t j = threadIdx.x; j < pass.layout.vocab; j += kThreads) {
    const float x = static_cast<float>(row[j * pass.layout.stride_v]);
    found.sum.add(x, 0);
    found.total += x;
  }
  found = butterfly_exchange(found);
  if (threadIdx.x % kWarp == 0) {
    const int warp = threadIdx.x / kWarp;
    maxima[warp] = found.sum.max;
    rests[warp] = found.sum.rest;
    totals[warp] = found.total;
  }
  __syncthreads();  // without it the first warp reads what the others have not written yet
  if (threadIdx.x >= kWarp) return;
  found = Found();
  if (threadIdx.x < kWarps)
    found = {{maxima[threadIdx.x], rests[threadIdx.x]}, totals[threadIdx.x]};
  found = butterfly_exchange(found);
  if (threadIdx.x != 0) return;
  const int64_t label = pass.labels[i] - pass.vocab_begin;
  const bool is_here = label >= 0 && label < pass.layout.vocab;
  pass.row_max[i] = found.sum.max;
  pass.rest[i] = found.sum.rest;
  pass.label_logit[i] = is_here ? static_cast<float>(row[label * pass.layout.stride_v]) : -INFINITY;
  pass.logit_sum[i] = found.total;
}

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads) gradient_kernel(GradientPass<float> pass) {
  const int64_t i = blockIdx.x;
  const scalar_t* row = static_cast<const scalar_t*>(pass.logits) + pass.layout.row(i);
  scalar_t* grad = static_cast<scalar_t*>(pass.grad) + i * pass.layout.vocab;
  const bool is_ignored = pass.labels[i] == pass.ignore_index;
  const int64_t label = pass.labels[i] - pass.vocab_begin;
  const float max = pass.row_max[i], rest = pass.rest[i], scale = pass.scale[i];
  const auto smoothing = static_cast<float>(pass.label_smoothing);
  const float share = smoothing / static_cast<float>(pass.vocab_total);
  for (int64_t j = threadIdx.x; j < pass.layout.vocab; j += kThreads) {
    const float x = static_cast<float>(row[j * pass.layout.stride_v]);
    const float value = gradient_of(x, max, rest, share, smoothing, j == label, scale);
    grad[j] = static_cast<scalar_t>(is_ignored ? 0.0f : value);
  }
}

}  // namespace

cudaError_t launch_statistics(const StatisticsPass<float>& pass, LogitsType type,
                              cudaStream_t stream) {
  if (pass.rows == 0) return cudaSuccess;
  const auto kernel = type == LogitsType::kFloat32   ? statistics_kernel<float>
                      : type == LogitsType::kFloat16 ? statistics_kernel<__half>
                                                     : statistics_kernel<__nv_bfloat16>;
  kernel<<<static_cast<unsigned>(pass.rows), kThreads, 0, stream>>>(pass);
  return cudaGetLastError();
}

cudaError_t launch_gradient(const GradientPass<float>& pass, LogitsType type, cudaStream_t stream) {
  if (pass.rows == 0) return cudaSuccess;
  const auto kernel = type == LogitsType::kFloat32   ? gradient_kernel<float>
                      : type == LogitsType::kFloat16 ? gradient_kernel<__half>
                                                     : gradient_kernel<__nv_bfloat16>;
  kernel<<<static_cast<unsigned>(pass.rows), kThreads, 0, stream>>>(pass);
  return cudaGetLastError();
}

}  // namespace patchbench::ops::te_fused_ce
