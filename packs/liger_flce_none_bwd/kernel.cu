// One path serves every architecture from sm_80 on: both passes are bound by memory and need no
// instruction that only one generation has; the GEMMs around them are cuBLAS's.
//
// row_pass_kernel     grid: one block per row (x). Shared memory: 4 * 32 * 3 bytes. Each thread
//                     keeps a running (max, sum) and, with label smoothing, sum_j w_j y_ij.
// grad_pass_kernel    grid: one row (x) times one segment of kSegment classes (y). No shared
// memory.
//
// Rows are read in 16-byte words. A row starts at any element, so each block first peels the
// classes up to the next 16-byte boundary and leaves a tail behind the last whole word: a 16-byte
// access at another address is a fault. Offsets are 64-bit: rows * classes passes 2^31 at real
// shapes.
#include <cuda_bf16.h>

#include "kernel.cuh"

namespace patchbench::ops::liger_flce_none_bwd {
namespace {

constexpr int kWarp = 32;
constexpr int kRowThreads = 512;
constexpr int kGradThreads = 256;
constexpr int kRowWords = 4;   // words in flight per thread
constexpr int kGradWords = 4;  // words per thread and segment
static_assert(kRowThreads % kWarp == 0 && kRowThreads / kWarp <= kWarp,
              "the block reduction's second step is done by one warp");

__device__ inline float load(float value) { return value; }
__device__ inline float load(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline void store(float& to, float value) { to = value; }
__device__ inline void store(__nv_bfloat16& to, float value) { to = __float2bfloat16_rn(value); }

template <typename scalar_t>
struct alignas(16) Word {
  static constexpr int kLength = 16 / sizeof(scalar_t);
  scalar_t value[kLength];
};

/// The whole 16-byte words of a row: elements [head, head + words * kLength).
struct Body {
  int64_t head, words;
};

template <typename scalar_t>
__device__ Body body_of(const scalar_t* row, int64_t length) {
  const auto misaligned = reinterpret_cast<uintptr_t>(row) % 16 / sizeof(scalar_t);
  constexpr int64_t kLength = Word<scalar_t>::kLength;
  const int64_t head = min((kLength - static_cast<int64_t>(misaligned)) % kLength, length);
  return {head, (length - head) / kLength};
}

struct RowState {
  RunningSoftmax<float> softmax;
  float weighted_sum = 0;

  __device__ void merge(float other_max, float other_rest, float other_weighted) {
    softmax.merge(other_max, other_rest);
    weighted_sum += other_weighted;
  }
  __device__ void merge_lanes() {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const float other_max = __shfl_xor_sync(0xffffffffu, softmax.max, offset);
      const float other_rest = __shfl_xor_sync(0xffffffffu, softmax.rest, offset);
      const float other_weighted = __shfl_xor_sync(0xffffffffu, weighted_sum, offset);
      merge(other_max, other_rest, other_weighted);
    }
  }
};

/// The state of the whole block, valid in thread 0.
__device__ RowState merge_block(RowState state) {
  __shared__ float maxima[kWarp], rests[kWarp], weighted[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int num_warps = blockDim.x / kWarp;
  state.merge_lanes();
  if (lane == 0) {
    maxima[warp] = state.softmax.max;
    rests[warp] = state.softmax.rest;
    weighted[warp] = state.weighted_sum;
  }
  // Without it the first warp may read the slots of warps that have not written them yet.
  __syncthreads();
  if (warp == 0) {
    RowState total;
    if (lane < num_warps) total.merge(maxima[lane], rests[lane], weighted[lane]);
    total.merge_lanes();
    return total;
  }
  return state;
}

template <typename scalar_t>
__device__ void add_classes(RowState& state, const RowPass<float>& pass, const scalar_t* values,
                            int count, int64_t first_class) {
  const float softcap = static_cast<float>(pass.terms.softcap);
  float y[Word<scalar_t>::kLength];
#pragma unroll
  for (int k = 0; k < Word<scalar_t>::kLength; ++k) {
    if (k >= count) continue;
    y[k] = capped(load(values[k]), softcap);
    if (pass.terms.label_smoothing != 0) {
      const float weight = pass.class_weight ? pass.class_weight[first_class + k] : 1.0f;
      state.weighted_sum += weight * y[k];
    }
  }
  state.softmax.add(y, count);
}

template <typename scalar_t>
__device__ RowState reduce_row(const RowPass<float>& pass, const scalar_t* row) {
  constexpr int kLength = Word<scalar_t>::kLength;
  const int64_t vocab = pass.terms.vocab;
  const Body body = body_of(row, vocab);
  const auto* words = reinterpret_cast<const Word<scalar_t>*>(row + body.head);
  RowState state;
  if (threadIdx.x < body.head) add_classes(state, pass, row + threadIdx.x, 1, threadIdx.x);
  for (int64_t base = threadIdx.x; base < body.words; base += int64_t{blockDim.x} * kRowWords) {
    Word<scalar_t> batch[kRowWords];
#pragma unroll
    for (int k = 0; k < kRowWords; ++k) {
      const int64_t word = base + int64_t{k} * blockDim.x;
      if (word < body.words) batch[k] = words[word];
    }
#pragma unroll
    for (int k = 0; k < kRowWords; ++k) {
      const int64_t word = base + int64_t{k} * blockDim.x;
      if (word < body.words) {
        add_classes(state, pass, batch[k].value, kLength, body.head + word * kLength);
      }
    }
  }
  const int64_t tail = body.head + body.words * kLength + threadIdx.x;
  if (tail < vocab) add_classes(state, pass, row + tail, 1, tail);
  return state;
}

template <typename scalar_t>
__global__ void __launch_bounds__(kRowThreads, 2) row_pass_kernel(RowPass<float> pass) {
  const int64_t row = blockIdx.x;
  const int64_t target = pass.target[row];
  if (target == pass.terms.ignore_index) {
    if (threadIdx.x == 0) pass.loss[row] = pass.row_max[row] = pass.log_sum[row] = 0;
    return;
  }
  const auto* logits = static_cast<const scalar_t*>(pass.logits) + row * pass.terms.vocab;
  const RowState state = merge_block(reduce_row(pass, logits));
  if (threadIdx.x != 0) return;
  const bool in_range = target >= 0 && target < pass.terms.vocab;
  const float row_max = state.softmax.max, log_sum = state.softmax.log_sum();
  float target_logit = std::numeric_limits<float>::quiet_NaN(), target_weight = 1;
  if (in_range) {
    target_logit = capped(load(logits[target]), static_cast<float>(pass.terms.softcap));
    if (pass.class_weight) target_weight = pass.class_weight[target];
  }
  const float weight_total =
      pass.weight_total ? *pass.weight_total : static_cast<float>(pass.terms.vocab);
  pass.loss[row] = row_loss(pass.terms, row_max, log_sum, target_logit, target_weight, weight_total,
                            state.weighted_sum);
  pass.row_max[row] = row_max;
  pass.log_sum[row] = log_sum;
}

template <typename scalar_t>
constexpr int64_t kSegment = int64_t{kGradThreads} * kGradWords * Word<scalar_t>::kLength;

template <typename scalar_t>
__device__ float grad_of(const GradPass<float>& pass, const RowGradient<float>& row, scalar_t logit,
                         int64_t tile_class) {
  if (row.is_ignored) return 0.0f;
  const int64_t vocab_class = pass.first_class + tile_class;
  const float weight = pass.class_weight ? pass.class_weight[vocab_class] : 1.0f;
  return row.at(load(logit), weight, vocab_class == row.target_class);
}

template <typename scalar_t>
__global__ void __launch_bounds__(kGradThreads) grad_pass_kernel(GradPass<float> pass) {
  constexpr int kLength = Word<scalar_t>::kLength;
  const int64_t row_idx = blockIdx.x;
  auto* row = static_cast<scalar_t*>(pass.logits) + row_idx * pass.classes;
  const RowGradient<float> gradient(pass, row_idx);
  const Body body = body_of(row, pass.classes);
  auto* words = reinterpret_cast<Word<scalar_t>*>(row + body.head);
  const int64_t base = int64_t{blockIdx.y} * kGradThreads * kGradWords + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kGradWords; ++k) {
    const int64_t word = base + int64_t{k} * kGradThreads;
    if (word >= body.words) break;
    Word<scalar_t> batch = words[word];
#pragma unroll
    for (int e = 0; e < kLength; ++e) {
      const int64_t tile_class = body.head + word * kLength + e;
      store(batch.value[e], grad_of(pass, gradient, batch.value[e], tile_class));
    }
    words[word] = batch;
  }
  if (blockIdx.y != 0) return;
  if (threadIdx.x < body.head) {
    store(row[threadIdx.x], grad_of(pass, gradient, row[threadIdx.x], threadIdx.x));
  }
  const int64_t tail = body.head + body.words * kLength + threadIdx.x;
  if (tail < pass.classes) store(row[tail], grad_of(pass, gradient, row[tail], tail));
}

template <typename scalar_t>
cudaError_t launch_row(const RowPass<float>& pass, cudaStream_t stream) {
  row_pass_kernel<scalar_t><<<static_cast<unsigned>(pass.rows), kRowThreads, 0, stream>>>(pass);
  return cudaGetLastError();
}

template <typename scalar_t>
cudaError_t launch_grad(const GradPass<float>& pass, cudaStream_t stream) {
  const int64_t segments = (pass.classes + kSegment<scalar_t> - 1) / kSegment<scalar_t>;
  const dim3 grid(static_cast<unsigned>(pass.rows), static_cast<unsigned>(segments));
  grad_pass_kernel<scalar_t><<<grid, kGradThreads, 0, stream>>>(pass);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_row_pass(const RowPass<float>& pass, LogitsType type, cudaStream_t stream) {
  if (pass.rows == 0) return cudaSuccess;
  return type == LogitsType::kFloat32 ? launch_row<float>(pass, stream)
                                      : launch_row<__nv_bfloat16>(pass, stream);
}

cudaError_t launch_grad_pass(const GradPass<float>& pass, LogitsType type, cudaStream_t stream) {
  if (pass.rows == 0 || pass.classes == 0) return cudaSuccess;
  return type == LogitsType::kFloat32 ? launch_grad<float>(pass, stream)
                                      : launch_grad<__nv_bfloat16>(pass, stream);
}

}  // namespace patchbench::ops::liger_flce_none_bwd
