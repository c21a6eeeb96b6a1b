// One path serves every architecture from sm_80 on: both passes are bound by memory and need no
// instruction that only one generation has; the GEMMs around them are cuBLAS's.
//
// row_pass_kernel           grid: one block per row (x). Shared memory: 4 * 32 * 3 bytes. Each warp
//                           keeps a running maximum, each thread its sums.
// grad_pass_kernel          grid: one row (x) times one segment of its classes (y). No shared
//                           memory.
// row_and_grad_pass_kernel  grid: one block per row (x), two blocks on a multiprocessor, so that
//                           one reads while the other writes; a row is read again from L2 as far as
//                           it is still there. Shared memory as above.
// scale_kernel              grid: a fixed number of blocks over all 16-byte words.
//
// kIsBare: neither softcap nor label smoothing. In bfloat16 the exponential is the hardware's,
// whose error of some 1e-6 lies far below the 4e-3 of a logit.
//
// Rows are read in 16-byte words. A row starts at any element, so each block first peels the
// classes up to the next 16-byte boundary and leaves a tail behind the last whole word: a 16-byte
// access at another address is a fault. Offsets are 64-bit: rows * classes passes 2^31 at real
// shapes.
#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "../kernel/ptx.cuh"
#include "kernel.cuh"

namespace patchbench::ops::liger_flce_none_bwd {
namespace {

constexpr int kWarp = 32;
constexpr int kRowThreads = 256, kRowBlocks = 3;
constexpr int kGradThreads = 256;
constexpr int kRowGradThreads = 384, kRowGradBlocks = 2;
constexpr int kScaleThreads = 512, kScaleBlocks = 1024;
constexpr int kRowWords = 4;   // words in flight per thread
constexpr int kGradWords = 4;  // the same
static_assert(kRowThreads % kWarp == 0 && kRowThreads / kWarp <= kWarp,
              "the block reduction's second step is done by one warp");

__device__ inline float load(float value) { return value; }
__device__ inline float load(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline void store(float& to, float value) { to = value; }
__device__ inline void store(__nv_bfloat16& to, float value) { to = __float2bfloat16_rn(value); }

/// 16 bytes of a row. Bytes of bfloat16 stay in four registers.
template <typename scalar_t>
struct Word;
template <>
struct alignas(16) Word<float> {
  static constexpr int kLength = 4;
  float values[4];

  __device__ float get(int e) const { return values[e]; }
  __device__ void put(int e, float value) { values[e] = value; }
};
template <>
struct alignas(16) Word<__nv_bfloat16> {
  static constexpr int kLength = 8;
  uint32_t pairs[4];

  __device__ float get(int e) const {
    return __uint_as_float(e % 2 ? pairs[e / 2] & 0xffff0000u : pairs[e / 2] << 16);
  }
  __device__ void put(int e, float value) {
    const uint32_t bits = __bfloat16_as_ushort(__float2bfloat16_rn(value)), pair = pairs[e / 2];
    pairs[e / 2] = e % 2 ? (pair & 0x0000ffffu) | bits << 16 : (pair & 0xffff0000u) | bits;
  }
};

constexpr float kLog2e = 1.4426950408889634f;

struct HardwareExp {
  __device__ float operator()(float x) const { return exp2_ftz(x * kLog2e); }
};
template <typename scalar_t>
using ExpOf = std::conditional_t<std::is_same_v<scalar_t, float>, AccurateExp, HardwareExp>;

/// A word that adds nothing to a softmax.
template <typename scalar_t>
__device__ Word<scalar_t> empty_word() {
  Word<scalar_t> word = {};
#pragma unroll
  for (int e = 0; e < Word<scalar_t>::kLength; ++e)
    word.put(e, -std::numeric_limits<float>::infinity());
  return word;
}

__device__ inline float largest_of(const Word<float>& word) {
  return fmaxf(fmaxf(word.values[0], word.values[1]), fmaxf(word.values[2], word.values[3]));
}
__device__ inline float largest_of(const Word<__nv_bfloat16>& word) {
  uint32_t largest = word.pairs[0];
#pragma unroll
  for (int k = 1; k < 4; ++k) asm("max.bf16x2 %0, %0, %1;" : "+r"(largest) : "r"(word.pairs[k]));
  return fmaxf(__uint_as_float(largest & 0xffff0000u), __uint_as_float(largest << 16));
}

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

/// Running softmax of a warp: its lanes agree on the maximum, so that the terms of a batch below
/// it, which most are, need no look at each. Terms of 1 are counted apart (see
/// RunningSoftmax::add).
template <typename scalar_t>
struct WarpSoftmax {
  using Exp = ExpOf<scalar_t>;
  using Running = RunningSoftmax<float, Exp>;
  float max = -std::numeric_limits<float>::infinity();  ///< of the warp
  float sum = 0, ones = 0;                              ///< of the lane

  /// The largest value of all lanes.
  static __device__ float largest_in_warp(float largest) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    return largest;
  }
  __device__ void raise_to(float largest) {
    if (!(largest > max)) return;
    sum = (sum + ones) * Running::shifted_exp(max, largest);
    ones = 0;
    max = largest;
  }
  /// Adds values below the maximum, or values that may reach it.
  __device__ void add_below(float y) { sum += Exp()(y - max); }
  __device__ void add_up_to(float y) {
    const float term = Running::shifted_exp(y, max);
    sum += term >= 1 ? 0 : term;
    ones += term >= 1 ? 1 : 0;
  }
  /// Adds a batch of each lane; -inf adds nothing. All lanes call it together.
  template <int kLength>
  __device__ void add(const float (&y)[kLength]) {
    float largest = y[0];
#pragma unroll
    for (int k = 1; k < kLength; ++k) largest = fmaxf(largest, y[k]);
    largest = largest_in_warp(largest);
    const bool is_below = largest < max;
    raise_to(largest);
#pragma unroll
    for (int k = 0; k < kLength; ++k) is_below ? add_below(y[k]) : add_up_to(y[k]);
  }
  /// The same of words.
  template <int kCount>
  __device__ void add(const Word<scalar_t> (&words)[kCount]) {
    float largest = largest_of(words[0]);
#pragma unroll
    for (int k = 1; k < kCount; ++k) largest = fmaxf(largest, largest_of(words[k]));
    raise_to(largest_in_warp(largest));
#pragma unroll
    for (int k = 0; k < kCount; ++k) add_known(words[k]);
  }
  /// Adds a word none of whose values is above the maximum.
  __device__ void add_known(const Word<scalar_t>& word) {
    if (largest_of(word) < max) {
#pragma unroll
      for (int e = 0; e < Word<scalar_t>::kLength; ++e) add_below(word.get(e));
    } else {
#pragma unroll
      for (int e = 0; e < Word<scalar_t>::kLength; ++e) add_up_to(word.get(e));
    }
  }
};

template <typename scalar_t>
struct RowState {
  RunningSoftmax<float, ExpOf<scalar_t>> softmax;
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

/// The state of a warp, the same in all lanes.
template <typename scalar_t>
__device__ RowState<scalar_t> state_of_warp(WarpSoftmax<scalar_t> softmax, float weighted_sum) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    softmax.sum += __shfl_xor_sync(0xffffffffu, softmax.sum, offset);
    softmax.ones += __shfl_xor_sync(0xffffffffu, softmax.ones, offset);
    weighted_sum += __shfl_xor_sync(0xffffffffu, weighted_sum, offset);
  }
  RowState<scalar_t> state;
  state.softmax.max = softmax.max;
  state.softmax.rest = softmax.sum + (softmax.ones - 1);
  state.weighted_sum = weighted_sum;
  return state;
}

/// The state of the block from the states of its warps, valid in thread 0.
template <typename scalar_t>
__device__ RowState<scalar_t> merge_block(RowState<scalar_t> state) {
  __shared__ float maxima[kWarp], rests[kWarp], weighted[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int num_warps = blockDim.x / kWarp;
  if (lane == 0) {
    maxima[warp] = state.softmax.max;
    rests[warp] = state.softmax.rest;
    weighted[warp] = state.weighted_sum;
  }
  // Without it the first warp may read the slots of warps that have not written them yet.
  __syncthreads();
  if (warp == 0) {
    RowState<scalar_t> total;
    if (lane < num_warps) total.merge(maxima[lane], rests[lane], weighted[lane]);
    total.merge_lanes();
    return total;
  }
  return state;
}

/// y of one logit, and its part of the weighted sum. `tile_class` counts from the tile's first.
template <bool kIsBare, typename scalar_t>
__device__ float logit_of(const RowPass<float>& pass, scalar_t value, int64_t tile_class,
                          float& weighted_sum) {
  if (kIsBare) return load(value);
  const float y = capped(load(value), static_cast<float>(pass.terms.softcap));
  if (pass.terms.label_smoothing != 0)
    weighted_sum +=
        (pass.class_weight ? pass.class_weight[pass.first_class + tile_class] : 1.0f) * y;
  return y;
}

/// Loss, maximum and log-sum of a row from the state of all its classes.
template <typename scalar_t>
__device__ void write_row(const RowPass<float>& pass, int64_t row, const RowState<scalar_t>& state,
                          float target_logit) {
  const int64_t target = pass.target[row];
  float target_weight = 1;
  if (pass.class_weight && target >= 0 && target < pass.terms.vocab)
    target_weight = pass.class_weight[target];
  const float weight_total =
      pass.weight_total ? *pass.weight_total : static_cast<float>(pass.terms.vocab);
  const float log_sum = state.softmax.log_sum();
  pass.loss[row] = row_loss(pass.terms, state.softmax.max, log_sum, target_logit, target_weight,
                            weight_total, state.weighted_sum);
  pass.row_max[row] = state.softmax.max;
  pass.log_sum[row] = log_sum;
}

template <typename scalar_t>
__device__ float grad_of(const GradPass<float>& pass, const RowGradient<float>& row, scalar_t logit,
                         int64_t tile_class) {
  if (row.is_ignored) return 0.0f;
  const int64_t vocab_class = pass.first_class + tile_class;
  const float weight = pass.class_weight ? pass.class_weight[vocab_class] : 1.0f;
  return row.at(load(logit), weight, vocab_class == row.target_class);
}

/// The gradient over a word that the target is not in, where there is neither softcap nor label
/// smoothing.
__device__ inline void overwrite_off_target(const RowGradient<float>& row, Word<float>& word) {
#pragma unroll
  for (int e = 0; e < Word<float>::kLength; ++e)
    word.values[e] = row.bare_off_target<AccurateExp>(word.values[e]);
}
__device__ inline void overwrite_off_target(const RowGradient<float>& row,
                                            Word<__nv_bfloat16>& word) {
  const float factor = row.target_scale + row.rest, shift = row.log_sum * kLog2e;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float low = (word.get(2 * k) - row.row_max) * kLog2e - shift;
    const float high = (word.get(2 * k + 1) - row.row_max) * kLog2e - shift;
    const __nv_bfloat162 pair =
        __floats2bfloat162_rn(factor * exp2_ftz(low), factor * exp2_ftz(high));
    word.pairs[k] = reinterpret_cast<const uint32_t&>(pair);
  }
}

template <bool kIsBare, typename scalar_t>
__device__ void overwrite_word(const GradPass<float>& pass, const RowGradient<float>& row,
                               Word<scalar_t>& word, int64_t tile_class) {
  constexpr int kLength = Word<scalar_t>::kLength;
  const int64_t target = row.target_class - pass.first_class - tile_class;
  const bool has_target = target >= 0 && target < kLength;
  if (kIsBare && !has_target && !row.is_ignored) {
    overwrite_off_target(row, word);
  } else {
#pragma unroll
    for (int e = 0; e < kLength; ++e) word.put(e, grad_of(pass, row, word.get(e), tile_class + e));
  }
}

/// Overwrites the classes of a row that lie outside its whole words.
template <typename scalar_t>
__device__ void overwrite_ends(const GradPass<float>& pass, const RowGradient<float>& gradient,
                               scalar_t* row, const Body& body) {
  if (threadIdx.x < body.head)
    store(row[threadIdx.x], grad_of(pass, gradient, row[threadIdx.x], threadIdx.x));
  const int64_t tail = body.head + body.words * Word<scalar_t>::kLength + threadIdx.x;
  if (tail < pass.classes) store(row[tail], grad_of(pass, gradient, row[tail], tail));
}

bool is_bare(const LossTerms& terms) { return terms.softcap == 0 && terms.label_smoothing == 0; }

template <bool kIsBare, typename scalar_t>
__device__ RowState<scalar_t> reduce_row(const RowPass<float>& pass, const scalar_t* row) {
  constexpr int kLength = Word<scalar_t>::kLength;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const Body body = body_of(row, pass.classes);
  const auto* words = reinterpret_cast<const Word<scalar_t>*>(row + body.head);
  const int64_t threads = blockDim.x;
  WarpSoftmax<scalar_t> softmax;
  float weighted_sum = 0;
  for (int64_t base = 0; base < body.words; base += kRowWords * threads) {
    Word<scalar_t> batch[kRowWords];
#pragma unroll
    for (int k = 0; k < kRowWords; ++k) {
      const int64_t word = base + k * threads + threadIdx.x;
      batch[k] = empty_word<scalar_t>();
      if (word < body.words) batch[k] = words[word];
    }
    if constexpr (kIsBare) {
      softmax.add(batch);
    } else {
      float y[kRowWords * kLength];
#pragma unroll
      for (int i = 0; i < kRowWords * kLength; ++i) {
        const int64_t word = base + i / kLength * threads + threadIdx.x;
        y[i] = kNothing;
        if (word < body.words) {
          y[i] = logit_of<kIsBare>(pass, batch[i / kLength].get(i % kLength),
                                   body.head + word * kLength + i % kLength, weighted_sum);
        }
      }
      softmax.add(y);
    }
  }
  const int64_t tail = body.head + body.words * kLength + threadIdx.x;
  float ends[2] = {kNothing, kNothing};
  if (threadIdx.x < body.head)
    ends[0] = logit_of<kIsBare>(pass, row[threadIdx.x], threadIdx.x, weighted_sum);
  if (tail < pass.classes) ends[1] = logit_of<kIsBare>(pass, row[tail], tail, weighted_sum);
  softmax.add(ends);
  return state_of_warp(softmax, weighted_sum);
}

/// Adds a tile to the state of one row, or makes loss, maximum and log-sum of it; thread 0 writes.
template <bool kIsBare, typename scalar_t>
__device__ void add_tile(const RowPass<float>& pass, int64_t row) {
  const int64_t target = pass.target[row];
  if (target == pass.terms.ignore_index) {
    if (threadIdx.x == 0) pass.loss[row] = pass.row_max[row] = pass.log_sum[row] = 0;
    return;
  }
  const auto* logits = static_cast<const scalar_t*>(pass.logits) + row * pass.classes;
  RowState<scalar_t> state = merge_block(reduce_row<kIsBare>(pass, logits));
  if (threadIdx.x != 0) return;
  float target_logit = std::numeric_limits<float>::quiet_NaN();
  if (pass.first_class > 0) {
    const float earlier = pass.weighted_sum ? pass.weighted_sum[row] : 0;
    state.merge(pass.row_max[row], pass.log_sum[row], earlier);
    target_logit = pass.loss[row];
  }
  const int64_t tile_class = target - pass.first_class;
  if (tile_class >= 0 && tile_class < pass.classes)
    target_logit = capped(load(logits[tile_class]), static_cast<float>(pass.terms.softcap));
  if (pass.first_class + pass.classes < pass.terms.vocab) {
    pass.row_max[row] = state.softmax.max;
    pass.loss[row] = target_logit;
    pass.log_sum[row] = state.softmax.rest;
    if (pass.weighted_sum) pass.weighted_sum[row] = state.weighted_sum;
    return;
  }
  write_row(pass, row, state, target_logit);
}

template <bool kIsBare, typename scalar_t>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) row_pass_kernel(RowPass<float> pass) {
  add_tile<kIsBare, scalar_t>(pass, blockIdx.x);
}

template <typename scalar_t>
__device__ void load_words(Word<scalar_t> (&batch)[kGradWords], const Word<scalar_t>* words,
                           int64_t base, int64_t end) {
#pragma unroll
  for (int k = 0; k < kGradWords; ++k) {
    const int64_t word = base + k * int64_t{blockDim.x};
    if (word < end) batch[k] = words[word];
  }
}

/// Overwrites the words [first, end) of a row, kGradWords per thread at a time. What a row's
/// gradient is made from is read while the first words are on their way.
template <bool kIsBare, typename scalar_t>
__device__ RowGradient<float> overwrite_words(const GradPass<float>& pass, int64_t row,
                                              Word<scalar_t>* words, const Body& body,
                                              int64_t first, int64_t end) {
  const int64_t threads = blockDim.x;
  int64_t base = first + threadIdx.x;
  Word<scalar_t> batch[kGradWords];
  load_words(batch, words, base, end);
  const RowGradient<float> gradient(pass, row);
  while (base < end) {
#pragma unroll
    for (int k = 0; k < kGradWords; ++k) {
      const int64_t word = base + k * threads;
      if (word >= end) break;
      overwrite_word<kIsBare>(pass, gradient, batch[k], body.head + word * Word<scalar_t>::kLength);
      words[word] = batch[k];
    }
    base += kGradWords * threads;
    load_words(batch, words, base, end);
  }
  return gradient;
}

template <bool kIsBare, typename scalar_t>
__global__ void __launch_bounds__(kGradThreads, 4) grad_pass_kernel(GradPass<float> pass) {
  const int64_t row_idx = blockIdx.x;
  auto* row = static_cast<scalar_t*>(pass.logits) + row_idx * pass.classes;
  const Body body = body_of(row, pass.classes);
  const int64_t segment = (body.words + gridDim.y - 1) / gridDim.y, first = blockIdx.y * segment;
  const auto gradient =
      overwrite_words<kIsBare>(pass, row_idx, reinterpret_cast<Word<scalar_t>*>(row + body.head),
                               body, first, min(first + segment, body.words));
  if (blockIdx.y == 0) overwrite_ends(pass, gradient, row, body);
}

template <bool kIsBare, typename scalar_t>
__global__ void __launch_bounds__(kRowGradThreads, kRowGradBlocks)
    row_and_grad_pass_kernel(RowPass<float> row_pass, GradPass<float> grad_pass) {
  const int64_t row_idx = blockIdx.x;
  add_tile<kIsBare, scalar_t>(row_pass, row_idx);
  // Without it the gradient is made from a maximum and log-sum that thread 0 has not written yet.
  __syncthreads();
  auto* row = static_cast<scalar_t*>(grad_pass.logits) + row_idx * grad_pass.classes;
  const Body body = body_of(row, grad_pass.classes);
  const auto gradient = overwrite_words<kIsBare>(
      grad_pass, row_idx, reinterpret_cast<Word<scalar_t>*>(row + body.head), body, 0, body.words);
  overwrite_ends(grad_pass, gradient, row, body);
}

template <typename scalar_t>
__global__ void __launch_bounds__(kScaleThreads)
    scale_kernel(scalar_t* values, int64_t count, const float* factor) {
  constexpr int kLength = Word<scalar_t>::kLength;
  const float scale = *factor;
  if (scale == 1.0f) return;
  auto* words = reinterpret_cast<Word<scalar_t>*>(values);
  const int64_t first = int64_t{blockIdx.x} * kScaleThreads + threadIdx.x;
  for (int64_t i = first; i < count / kLength; i += int64_t{gridDim.x} * kScaleThreads) {
    Word<scalar_t> word = words[i];
#pragma unroll
    for (int e = 0; e < kLength; ++e) word.put(e, word.get(e) * scale);
    words[i] = word;
  }
  const int64_t tail = count / kLength * kLength + first;
  if (tail < count) store(values[tail], load(values[tail]) * scale);
}

template <typename scalar_t>
cudaError_t launch_row(const RowPass<float>& pass, cudaStream_t stream) {
  const auto kernel =
      is_bare(pass.terms) ? row_pass_kernel<true, scalar_t> : row_pass_kernel<false, scalar_t>;
  // A thread of a short row has two batches too.
  const int64_t words = pass.classes * static_cast<int64_t>(sizeof(scalar_t)) / 16;
  int threads = kRowThreads;
  while (threads > 128 && threads * kRowWords > words / 2) threads /= 2;
  kernel<<<static_cast<unsigned>(pass.rows), threads, 0, stream>>>(pass);
  return cudaGetLastError();
}

template <typename scalar_t>
cudaError_t launch_grad(const GradPass<float>& pass, cudaStream_t stream) {
  constexpr int64_t kSegment = int64_t{kGradThreads} * kGradWords * Word<scalar_t>::kLength;
  const int64_t segments = std::max<int64_t>(1, pass.classes / kSegment);
  const dim3 grid(static_cast<unsigned>(pass.rows), static_cast<unsigned>(segments));
  const auto kernel =
      is_bare(pass.terms) ? grad_pass_kernel<true, scalar_t> : grad_pass_kernel<false, scalar_t>;
  kernel<<<grid, kGradThreads, 0, stream>>>(pass);
  return cudaGetLastError();
}

template <typename scalar_t>
cudaError_t launch_row_and_grad(const RowPass<float>& row, const GradPass<float>& grad,
                                cudaStream_t stream) {
  const auto kernel = is_bare(row.terms) ? row_and_grad_pass_kernel<true, scalar_t>
                                         : row_and_grad_pass_kernel<false, scalar_t>;
  kernel<<<static_cast<unsigned>(row.rows), kRowGradThreads, 0, stream>>>(row, grad);
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

cudaError_t launch_row_and_grad_pass(const RowPass<float>& row, const GradPass<float>& grad,
                                     LogitsType type, cudaStream_t stream) {
  if (row.rows == 0) return cudaSuccess;
  return type == LogitsType::kFloat32 ? launch_row_and_grad<float>(row, grad, stream)
                                      : launch_row_and_grad<__nv_bfloat16>(row, grad, stream);
}

cudaError_t launch_scale(void* values, int64_t count, const float* factor, LogitsType type,
                         cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (type == LogitsType::kFloat32) {
    scale_kernel<<<kScaleBlocks, kScaleThreads, 0, stream>>>(static_cast<float*>(values), count,
                                                             factor);
  } else {
    scale_kernel<<<kScaleBlocks, kScaleThreads, 0, stream>>>(static_cast<__nv_bfloat16*>(values),
                                                             count, factor);
  }
  return cudaGetLastError();
}

}  // namespace patchbench::ops::liger_flce_none_bwd
