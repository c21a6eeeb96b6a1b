// Cross entropy of given logits. Both kernels: grid [rows], one block of 512 threads a row. Where
// stride_v is 1 a thread takes 16 bytes at a time (8 or 4 classes: vector k, k + 512, ...), between
// the first and the last address of the row that are divisible by 16; what is left, and rows of
// other strides, go element by element. Shared memory: 16 warps x 12 bytes in forward, none in
// backward. Limits: rows <= 2^31 - 1. Rounding: fp32 throughout, the gradient is rounded once when
// it is stored. The order of the sums depends on the address of a row modulo 16 bytes alone.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernel.cuh"

namespace patchbench::ops::te_fused_ce {
namespace {

constexpr int kThreads = 512, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int kBlocks = 4;  // on one multiprocessor: 32 registers a thread
constexpr int kLoads = 2;   // vectors that a thread loads before it uses the first
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

/// 16 bytes of a row.
template <typename scalar_t>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(scalar_t);
  scalar_t at[kSize];
};

/// The part of a row that is read in vectors: classes [begin, begin + count kSize).
struct Vectors {
  int64_t begin = 0, count = 0;
};

template <typename scalar_t>
__device__ Vectors vectors_of(const scalar_t* row, const RowLayout& layout) {
  if (layout.stride_v != 1) return {};
  const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16);
  const int64_t begin = (16 - past) % 16 / static_cast<int>(sizeof(scalar_t));
  if (begin >= layout.vocab) return {};
  return {begin, (layout.vocab - begin) / Vector<scalar_t>::kSize};
}

/// Calls `work` with the classes of this thread that no vector holds.
template <typename scalar_t, typename Work>
__device__ void each_single(const Vectors& vectors, int64_t vocab, const Work& work) {
  const int64_t end = vectors.begin + vectors.count * Vector<scalar_t>::kSize;
  for (int64_t j = threadIdx.x; j < vectors.begin; j += kThreads) work(j);
  for (int64_t j = end + threadIdx.x; j < vocab; j += kThreads) work(j);
}

/// Calls `work` with each vector of this thread and its number; kLoads of them are loaded before
/// the first is used.
template <typename scalar_t, typename Work>
__device__ void each_vector(const Vector<scalar_t>* chunks, int64_t count, const Work& work) {
  int64_t c = threadIdx.x;
  for (; c + (kLoads - 1) * kThreads < count; c += kLoads * kThreads) {
    Vector<scalar_t> loaded[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) loaded[n] = chunks[c + n * kThreads];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) work(loaded[n], c + n * kThreads);
  }
  for (; c < count; c += kThreads) {
    Vector<scalar_t> loaded = chunks[c];
    work(loaded, c);
  }
}

/// exp(y). Of half-precision logits within 2^-21 + |y| 2^-24 of it, far below what they are rounded
/// to; correct to 2 ulp the forward is bound by arithmetic.
template <typename scalar_t>
__device__ float exponential(float y) {
  return std::is_same_v<scalar_t, float> ? expf(y) : __expf(y);
}

/// Takes a vector's logits in with one comparison of maxima. The maximum's own 1 is left out of the
/// rest, which a NaN makes NaN.
template <typename scalar_t, int kSize>
__device__ void take_vector(Found& found, const float (&x)[kSize]) {
  float best = x[0], total = x[0];
#pragma unroll
  for (int k = 1; k < kSize; ++k) {
    best = fmaxf(best, x[k]);
    total += x[k];
  }
  found.total += total;
  OnlineSum<float>& sum = found.sum;
  if (best > sum.max) {
    float rest = sum.max == -INFINITY ? 0 : (1 + sum.rest) * exponential<scalar_t>(sum.max - best);
    bool is_seen = false;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const bool is_best = !is_seen && x[k] == best;
      rest += is_best ? 0 : exponential<scalar_t>(x[k] - best);
      is_seen |= is_best;
    }
    sum = {best, rest};
  } else if (sum.max != -INFINITY) {
    float rest = 0;
#pragma unroll
    for (int k = 0; k < kSize; ++k) rest += exponential<scalar_t>(x[k] - sum.max);
    sum.rest += rest;
  } else if (isnan(total)) {  // nothing but NaN and -inf so far
    sum = {NAN, NAN};
  }
}

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads, kBlocks) statistics_kernel(StatisticsPass<float> pass) {
  using Chunk = Vector<scalar_t>;
  __shared__ float maxima[kWarps], rests[kWarps], totals[kWarps];
  const int64_t i = blockIdx.x;
  const scalar_t* row = static_cast<const scalar_t*>(pass.logits) + pass.layout.row(i);
  const Vectors vectors = vectors_of(row, pass.layout);
  const auto* chunks = reinterpret_cast<const Chunk*>(row + vectors.begin);
  Found found;
  each_vector(chunks, vectors.count, [&](const Chunk& chunk, int64_t) {
    float x[Chunk::kSize];
#pragma unroll
    for (int k = 0; k < Chunk::kSize; ++k) x[k] = static_cast<float>(chunk.at[k]);
    take_vector<scalar_t>(found, x);
  });
  each_single<scalar_t>(vectors, pass.layout.vocab, [&](int64_t j) {
    const float x[1] = {static_cast<float>(row[j * pass.layout.stride_v])};
    take_vector<scalar_t>(found, x);
  });
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
__global__ void __launch_bounds__(kThreads, kBlocks) gradient_kernel(GradientPass<float> pass) {
  const int64_t i = blockIdx.x;
  const scalar_t* row = static_cast<const scalar_t*>(pass.logits) + pass.layout.row(i);
  scalar_t* grad = static_cast<scalar_t*>(pass.grad) + i * pass.layout.vocab;
  const bool is_ignored = pass.labels[i] == pass.ignore_index;
  const int64_t label = pass.labels[i] - pass.vocab_begin;
  const float max = pass.row_max[i], rest = pass.rest[i], scale = pass.scale[i];
  const auto smoothing = static_cast<float>(pass.label_smoothing);
  const float share = smoothing / static_cast<float>(pass.vocab_total);
  const auto element = [&](int64_t j) {
    const float x = static_cast<float>(row[j * pass.layout.stride_v]);
    const float value = gradient_of(x, max, rest, share, smoothing, j == label, scale);
    return static_cast<scalar_t>(is_ignored ? 0.0f : value);
  };
  using Chunk = Vector<scalar_t>;
  Vectors vectors = vectors_of(row, pass.layout);
  // Stores are of 16 bytes only where both rows have the same address modulo 16.
  if (reinterpret_cast<uintptr_t>(row) % 16 != reinterpret_cast<uintptr_t>(grad) % 16) vectors = {};
  const auto* chunks = reinterpret_cast<const Chunk*>(row + vectors.begin);
  auto* grad_chunks = reinterpret_cast<Chunk*>(grad + vectors.begin);
  const float weight = 1 / (1 + rest);
  each_vector(chunks, vectors.count, [&](Chunk& chunk, int64_t c) {
    const int64_t first = vectors.begin + c * Chunk::kSize;
    const bool has_label = label >= first && label < first + Chunk::kSize;
    const scalar_t at_label = has_label ? element(label) : scalar_t(0.0f);
#pragma unroll
    for (int k = 0; k < Chunk::kSize; ++k) {
      const float slope = exponential<scalar_t>(static_cast<float>(chunk.at[k]) - max) * weight;
      chunk.at[k] = static_cast<scalar_t>(is_ignored ? 0.0f : (slope - share) * scale);
    }
    grad_chunks[c] = chunk;
    if (has_label) grad[label] = at_label;
  });
  each_single<scalar_t>(vectors, pass.layout.vocab, [&](int64_t j) { grad[j] = element(j); });
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
