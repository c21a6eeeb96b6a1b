// Cross entropy of given logits. statistics_kernel and gradient_kernel: grid [rows], one block of
// kThreads threads a row: 32 for many short rows, 1024 for few long ones, else 256 (threads_of).
// total_kernel: one block of 1024. Where stride_v is 1 a thread takes 16 bytes at a time (8 or 4
// classes: vector k, k + kThreads, ...), between the first and the last address of the row that are
// divisible by 16; what is left, and rows of other strides, go element by element. Shared memory:
// up to 384 bytes, none in gradient_kernel. Limits: rows <= 2^31 - 1. Rounding: fp32 throughout,
// the gradient is rounded once when it is stored. The order of the sums depends on kThreads, which
// follows from the shape and the GPU, and on the address of a row modulo 16 bytes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <type_traits>

#include "../kernel/ptx.cuh"
#include "../kernel/vec.h"
#include "kernel.cuh"

namespace patchbench::ops::te_fused_ce {
namespace {

constexpr int kWarp = 32, kMaxThreads = 1024;
constexpr int kLoads = 4;  // vectors that a thread loads before it uses the first
/// Threads of one multiprocessor for which there are registers: 64 a thread.
constexpr int kResident = 1024;

// ---- vectors of a row ----

/// The part of a row that is read in vectors: classes [begin, begin + count kLength).
struct Vectors {
  int64_t begin = 0, count = 0;
};

template <typename scalar_t>
__device__ Vectors vectors_of(const scalar_t* row, int64_t stride, int64_t vocab) {
  if (stride != 1) return {};
  const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16);
  const int64_t begin = (16 - past) % 16 / static_cast<int>(sizeof(scalar_t));
  if (begin >= vocab) return {};
  return {begin, (vocab - begin) / Vec<scalar_t>::kLength};
}

/// Calls `work` with the classes of this thread that no vector holds.
template <typename scalar_t, int kThreads, typename Work>
__device__ void each_single(const Vectors& vectors, int64_t vocab, const Work& work) {
  const int64_t end = vectors.begin + vectors.count * Vec<scalar_t>::kLength;
  for (int64_t j = threadIdx.x; j < vectors.begin; j += kThreads) work(j);
  for (int64_t j = end + threadIdx.x; j < vocab; j += kThreads) work(j);
}

/// Calls `work` with kLoads vectors of this thread (c, c + kThreads, ...) and c. The vectors that
/// are left follow one at a time. All loads of a step come before the first use.
template <int kThreads, typename scalar_t, typename Work>
__device__ void each_vector(const Vec<scalar_t>* chunks, int64_t count, const Work& work) {
  int64_t c = threadIdx.x;
  for (; c + (kLoads - 1) * kThreads < count; c += kLoads * kThreads) {
    Vec<scalar_t> loaded[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) loaded[n] = chunks[c + n * kThreads];
    work(loaded, c);
  }
  Vec<scalar_t> loaded[kLoads - 1][1];
#pragma unroll
  for (int n = 0; n < kLoads - 1; ++n)
    if (c + n * kThreads < count) loaded[n][0] = chunks[c + n * kThreads];
#pragma unroll
  for (int n = 0; n < kLoads - 1; ++n)
    if (c + n * kThreads < count) work(loaded[n], c + n * kThreads);
}

/// The logits of a vector in float32. Two bfloat16 share a word: a mask gives one, a shift the
/// other. The conversion of a single one takes one more instruction.
template <typename scalar_t>
__device__ void widen(const Vec<scalar_t>& vector, float* x) {
  if constexpr (std::is_same_v<scalar_t, __nv_bfloat16>) {
    const uint4 words = reinterpret_cast<const uint4&>(vector);
    const unsigned pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      x[2 * k] = __uint_as_float(pairs[k] << 16);
      x[2 * k + 1] = __uint_as_float(pairs[k] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int k = 0; k < Vec<scalar_t>::kLength; ++k) x[k] = static_cast<float>(vector.at[k]);
  }
}

// ---- sums ----

/// exp(y). Of half-precision logits within 2^-21 + |y| 2^-24 of it, far below what they are rounded
/// to, and 0 below 2^-126; correct to 2 ulp the forward is bound by arithmetic.
template <typename scalar_t>
__device__ float exponential(float y) {
  if constexpr (std::is_same_v<scalar_t, float>) return expf(y);
  return exp2_ftz(y * 1.44269504f);
}

__device__ float sum_of_warp(float value) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, lane);
  return value;
}

/// Of some logits: the maximum, the sum of exp(x - max) without the maximum's own 1, the sum. A NaN
/// makes `rest` NaN.
struct Found {
  float max = -INFINITY, rest = 0, total = 0;
};

/// Of all lanes. The first lane with the maximum leaves its own 1 out.
__device__ Found found_by_warp(const Found& mine) {
  float max = mine.max;
  for (int lane = kWarp / 2; lane > 0; lane /= 2)
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, lane));
  const int owner = __ffs(__ballot_sync(0xffffffffu, mine.max == max)) - 1;
  float rest = mine.rest;
  if (threadIdx.x % kWarp != owner && mine.max != -INFINITY)
    rest = (1 + rest) * expf(mine.max - max);
  return {max, sum_of_warp(rest), sum_of_warp(mine.total)};
}

/// What one thread has seen. `sum` is the sum of exp(x - base) over all its logits except one that
/// equals max.
template <typename scalar_t>
struct Seen {
  /// max may exceed base by this much. A larger step scales the sum again, and the warp diverges.
  /// In float32 it is 0: a term would lose digits.
  static constexpr float kSlack = std::is_same_v<scalar_t, float> ? 0 : 8;
  float max = -INFINITY, base = -FLT_MAX, sum = 0, total = 0;

  template <int kSize>
  __device__ void take(const float (&x)[kSize]) {
    float lesser[kSize], sum_of_x = x[0];
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      lesser[k] = fminf(max, x[k]);
      max = fmaxf(max, x[k]);
      if (k > 0) sum_of_x += x[k];
    }
    total += sum_of_x;
    if (max > base + kSlack) {
      sum *= exponential<scalar_t>(base - max);
      base = max;
    }
    float powers = isnan(sum_of_x) ? NAN : 0;  // minimum and maximum pass over a NaN
#pragma unroll
    for (int k = 0; k < kSize; ++k) powers += exponential<scalar_t>(lesser[k] - base);
    sum += powers;
  }

  __device__ Found found() const {
    const bool is_scaled = max == base || max == -INFINITY;  // of nothing but NaN and -inf, too
    return {max, is_scaled ? sum : sum * exponential<scalar_t>(base - max), total};
  }
};

// ---- kernels ----

template <typename scalar_t, int kThreads>
__global__ void __launch_bounds__(kThreads, kResident / kThreads)
    statistics_kernel(StatisticsPass<float> pass) {
  using Chunk = Vec<scalar_t>;
  const int64_t i = blockIdx.x, vocab = pass.layout.vocab;
  const bool has_loss = pass.loss != nullptr;
  const int64_t given = pass.labels[i], label = given - pass.vocab_begin;
  if (has_loss && given == pass.ignore_index) {
    if (threadIdx.x != 0) return;
    pass.row_max[i] = pass.rest[i] = pass.label_logit[i] = pass.logit_sum[i] = pass.loss[i] = 0;
    return;
  }
  const scalar_t* row = static_cast<const scalar_t*>(pass.logits) + pass.layout.row(i);
  float label_logit = -INFINITY;
  if (threadIdx.x == 0 && label >= 0 && label < vocab)
    label_logit = static_cast<float>(row[label * pass.layout.stride_v]);
  const Vectors vectors = vectors_of(row, pass.layout.stride_v, vocab);
  Seen<scalar_t> seen;
  const auto* chunks = reinterpret_cast<const Chunk*>(row + vectors.begin);
  each_vector<kThreads>(chunks, vectors.count, [&]<int kCount>(Chunk(&loaded)[kCount], int64_t) {
    float x[kCount * Chunk::kLength];
#pragma unroll
    for (int n = 0; n < kCount; ++n) widen(loaded[n], x + n * Chunk::kLength);
    seen.take(x);
  });
  each_single<scalar_t, kThreads>(vectors, vocab, [&](int64_t j) {
    const float x[1] = {static_cast<float>(row[j * pass.layout.stride_v])};
    seen.take(x);
  });
  Found found = found_by_warp(seen.found());
  if constexpr (kThreads > kWarp) {
    __shared__ Found of_warps[kThreads / kWarp];
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = found;
    __syncthreads();  // without it the first warp reads what the others have not written yet
    if (threadIdx.x >= kWarp) return;
    found = found_by_warp(threadIdx.x < kThreads / kWarp ? of_warps[threadIdx.x] : Found());
  }
  if (threadIdx.x != 0) return;
  pass.row_max[i] = found.max;
  pass.rest[i] = found.rest;
  pass.label_logit[i] = label_logit;
  pass.logit_sum[i] = found.total;
  if (!has_loss) return;
  pass.loss[i] = loss_of_row(found.max, found.rest, label_logit, found.total,
                             static_cast<float>(vocab), pass.label_smoothing);
}

__global__ void __launch_bounds__(kMaxThreads, 1) total_kernel(TotalPass pass) {
  constexpr int kRows = 8;  // that a thread loads before it uses the first
  __shared__ float totals[kWarp];
  __shared__ unsigned counts[kWarp];
  float total = 0;
  unsigned count = 0;
  for (int64_t first = threadIdx.x; first < pass.rows; first += kRows * kMaxThreads) {
    float terms[kRows];
    int64_t labels[kRows];
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int64_t i = first + n * kMaxThreads;
      terms[n] = i < pass.rows && pass.numerator == nullptr ? pass.terms[i] : 0;
      labels[n] = i < pass.rows && pass.is_mean ? pass.labels[i] : pass.ignore_index;
    }
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      total += terms[n];
      count += labels[n] != pass.ignore_index ? 1 : 0;
    }
  }
  total = sum_of_warp(total);
  count = __reduce_add_sync(0xffffffffu, count);
  if (threadIdx.x % kWarp == 0) {
    totals[threadIdx.x / kWarp] = total;
    counts[threadIdx.x / kWarp] = count;
  }
  __syncthreads();  // without it the first warp reads what the others have not written yet
  if (threadIdx.x >= kWarp) return;
  total = sum_of_warp(totals[threadIdx.x]);
  count = __reduce_add_sync(0xffffffffu, counts[threadIdx.x]);
  if (threadIdx.x != 0) return;
  if (pass.numerator != nullptr) total = *pass.numerator;
  *pass.result = pass.is_mean ? total / static_cast<float>(count) : total;
}

template <typename scalar_t, int kThreads>
__global__ void __launch_bounds__(kThreads, kResident / kThreads)
    gradient_kernel(GradientPass<float> pass) {
  using Chunk = Vec<scalar_t>;
  const int64_t i = blockIdx.x, vocab = pass.layout.vocab, stride = pass.layout.stride_v;
  scalar_t* grad = static_cast<scalar_t*>(pass.grad) + i * vocab;
  const int64_t given = pass.labels[i], label = given - pass.vocab_begin;
  const float max = pass.row_max[i], rest = pass.rest[i], scale = pass.scale_of(i);
  // A row that is not finite has the gradient 0 * NaN = NaN.
  if (given == pass.ignore_index || (scale == 0 && isfinite(max) && isfinite(rest))) {
    const Vectors vectors = vectors_of(grad, 1, vocab);
    auto* chunks = reinterpret_cast<Chunk*>(grad + vectors.begin);
    for (int64_t c = threadIdx.x; c < vectors.count; c += kThreads) chunks[c] = Chunk{};
    each_single<scalar_t, kThreads>(vectors, vocab, [&](int64_t j) { grad[j] = scalar_t(0.0f); });
    return;
  }
  const scalar_t* row = static_cast<const scalar_t*>(pass.logits) + pass.layout.row(i);
  const float smoothing = pass.label_smoothing;
  const float share = smoothing / static_cast<float>(pass.vocab_total);
  const auto element = [&](int64_t j) {
    return static_cast<scalar_t>(gradient_of(static_cast<float>(row[j * stride]), max, rest, share,
                                             smoothing, j == label, scale));
  };
  Vectors vectors = vectors_of(row, stride, vocab);
  // Stores are of 16 bytes only where both rows have the same address modulo 16.
  if (reinterpret_cast<uintptr_t>(row) % 16 != reinterpret_cast<uintptr_t>(grad) % 16) vectors = {};
  auto* grad_chunks = reinterpret_cast<Chunk*>(grad + vectors.begin);
  const int64_t behind = label - vectors.begin;
  // The thread that writes the label's vector reads the label's logit first: `grad` may be `row`.
  const bool has_label = behind >= 0 && behind < vectors.count * Chunk::kLength &&
                         behind / Chunk::kLength % kThreads == threadIdx.x;
  const scalar_t at_label = has_label ? element(label) : scalar_t(0.0f);
  const float weight = scale / (1 + rest), offset = share == 0 ? 0 : share * scale;
  const auto* chunks = reinterpret_cast<const Chunk*>(row + vectors.begin);
  each_vector<kThreads>(chunks, vectors.count, [&]<int kCount>(Chunk(&loaded)[kCount], int64_t c) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      float x[Chunk::kLength];
      widen(loaded[n], x);
#pragma unroll
      for (int k = 0; k < Chunk::kLength; ++k)
        loaded[n].at[k] =
            static_cast<scalar_t>(exponential<scalar_t>(x[k] - max) * weight - offset);
      grad_chunks[c + n * kThreads] = loaded[n];
    }
  });
  if (has_label) grad[label] = at_label;
  each_single<scalar_t, kThreads>(vectors, vocab, [&](int64_t j) { grad[j] = element(j); });
}

// ---- launches ----

/// Threads for one row. Many short rows take one warp each: it needs no barrier. Long rows take
/// 1024 threads where the rows are at most as many as the multiprocessors: so each multiprocessor
/// keeps enough bytes in flight.
int threads_of(int64_t rows, const RowLayout& layout, LogitsType type, int num_processors) {
  const int64_t bytes = layout.vocab * (type == LogitsType::kFloat32 ? 4 : 2);
  if (bytes <= (16 << 10) && rows >= int64_t{num_processors} * (kResident / kWarp)) return kWarp;
  return bytes >= (32 << 10) && rows <= num_processors ? kMaxThreads : 256;
}

template <typename scalar_t>
auto statistics_kernel_of(int threads) {
  return threads == kWarp         ? statistics_kernel<scalar_t, kWarp>
         : threads == kMaxThreads ? statistics_kernel<scalar_t, kMaxThreads>
                                  : statistics_kernel<scalar_t, 256>;
}

template <typename scalar_t>
auto gradient_kernel_of(int threads) {
  return threads == kWarp         ? gradient_kernel<scalar_t, kWarp>
         : threads == kMaxThreads ? gradient_kernel<scalar_t, kMaxThreads>
                                  : gradient_kernel<scalar_t, 256>;
}

}  // namespace

cudaError_t launch_statistics(const StatisticsPass<float>& pass, LogitsType type,
                              int num_processors, cudaStream_t stream) {
  if (pass.rows == 0) return cudaSuccess;
  const int threads = threads_of(pass.rows, pass.layout, type, num_processors);
  const auto kernel = type == LogitsType::kFloat32   ? statistics_kernel_of<float>(threads)
                      : type == LogitsType::kFloat16 ? statistics_kernel_of<__half>(threads)
                                                     : statistics_kernel_of<__nv_bfloat16>(threads);
  kernel<<<static_cast<unsigned>(pass.rows), threads, 0, stream>>>(pass);
  return cudaGetLastError();
}

cudaError_t launch_total(const TotalPass& pass, cudaStream_t stream) {
  total_kernel<<<1, kMaxThreads, 0, stream>>>(pass);
  return cudaGetLastError();
}

cudaError_t launch_gradient(const GradientPass<float>& pass, LogitsType type, int num_processors,
                            cudaStream_t stream) {
  if (pass.rows == 0) return cudaSuccess;
  const int threads = threads_of(pass.rows, pass.layout, type, num_processors);
  const auto kernel = type == LogitsType::kFloat32   ? gradient_kernel_of<float>(threads)
                      : type == LogitsType::kFloat16 ? gradient_kernel_of<__half>(threads)
                                                     : gradient_kernel_of<__nv_bfloat16>(threads);
  kernel<<<static_cast<unsigned>(pass.rows), threads, 0, stream>>>(pass);
  return cudaGetLastError();
}

}  // namespace patchbench::ops::te_fused_ce
