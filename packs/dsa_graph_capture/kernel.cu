#include "kernel.cuh"

#include <cuda_bf16.h>

#include <limits>

#include "../kernel/vec.h"

// mask_fill_kernel: grid (rows, ceil(seqlen_k / kSegment)), one CTA per row and segment of keys.
//   shared memory: kSegment / 8 = 8 KiB of bitmap, one bit a key; 256 threads
//   every CTA of a row reads all topk indices of the row and keeps the ones in its segment, so the
//   indices are read seqlen_k / kSegment times: once up to 65536 keys
//   limits: rows < 2^31, seqlen_k <= 65535 segments (4.2e9), checked in op.cpp
// mask_open_kernel: one thread per slot, grid-stride.
namespace patchbench::ops::dsa_graph_capture {
namespace {

constexpr int kThreads = 256;
constexpr int kSegment = 65536;
constexpr int kBits = 32;
static_assert(kSegment % (kBits * kThreads) == 0,
              "the bitmap is cleared in whole words by all threads");

template <typename scalar_t>
__device__ scalar_t closed();
template <>
__device__ float closed<float>() {
  return -std::numeric_limits<float>::infinity();
}
template <>
__device__ __nv_bfloat16 closed<__nv_bfloat16>() {
  return __ushort_as_bfloat16(0xff80u);
}

template <typename word_t>
__device__ void store_streaming(word_t* to, const word_t& word) {
  // The mask is not read again before it has left L2.
  __stcs(reinterpret_cast<float4*>(to), *reinterpret_cast<const float4*>(&word));
}

template <typename index_t>
__device__ void mark(uint32_t* bitmap, const MaskPass<index_t>& pass, index_t index, int64_t first,
                     int count) {
  if (index >= pass.seqlen_k) {
    if (pass.out_of_range) *pass.out_of_range = 1;
    return;
  }
  const int64_t key = static_cast<int64_t>(index) - first;
  if (index < 0 || key < 0 || key >= count) return;
  // Several slots of a row may fall into one word.
  atomicOr(&bitmap[key / kBits], 1u << (key % kBits));
}

template <typename index_t, typename scalar_t, bool kIsAligned>
__global__ void __launch_bounds__(kThreads) mask_fill_kernel(MaskPass<index_t> pass) {
  __shared__ uint32_t bitmap[kSegment / kBits];
  const int64_t row = blockIdx.x;
  const int64_t first = int64_t{blockIdx.y} * kSegment;
  const int count = static_cast<int>(min(int64_t{kSegment}, pass.seqlen_k - first));
  const int num_words = (count + kBits - 1) / kBits;
  for (int i = threadIdx.x; i < num_words; i += kThreads) bitmap[i] = 0;
  // Without it a bit set by a fast warp would be cleared by a slow one.
  __syncthreads();
  const index_t* indices = pass.indices + row * pass.topk;
  if constexpr (kIsAligned) {
    using IndexWord = Vec<index_t>;
    const auto* words = reinterpret_cast<const IndexWord*>(indices);
    for (int64_t i = threadIdx.x; i < pass.topk / IndexWord::kLength; i += kThreads) {
      const IndexWord word = words[i];
#pragma unroll
      for (int k = 0; k < IndexWord::kLength; ++k) mark(bitmap, pass, word.at[k], first, count);
    }
  } else {
    for (int64_t i = threadIdx.x; i < pass.topk; i += kThreads)
      mark(bitmap, pass, indices[i], first, count);
  }
  // Without it a row could be written before its last index was marked.
  __syncthreads();
  auto* mask = static_cast<scalar_t*>(pass.mask) + row * pass.seqlen_k + first;
  const scalar_t open = static_cast<scalar_t>(0.0f);
  if constexpr (kIsAligned) {
    using MaskWord = Vec<scalar_t>;
    auto* words = reinterpret_cast<MaskWord*>(mask);
    for (int i = threadIdx.x; i < count / MaskWord::kLength; i += kThreads) {
      const int key = i * MaskWord::kLength;
      const uint32_t bits = bitmap[key / kBits] >> (key % kBits);
      MaskWord word;
#pragma unroll
      for (int k = 0; k < MaskWord::kLength; ++k)
        word.at[k] = (bits >> k) & 1u ? open : closed<scalar_t>();
      store_streaming(&words[i], word);
    }
  } else {
    for (int key = threadIdx.x; key < count; key += kThreads)
      mask[key] = (bitmap[key / kBits] >> (key % kBits)) & 1u ? open : closed<scalar_t>();
  }
}

template <typename index_t, typename scalar_t>
__global__ void __launch_bounds__(kThreads) mask_open_kernel(MaskPass<index_t> pass) {
  auto* mask = static_cast<scalar_t*>(pass.mask);
  const int64_t slots = pass.rows * pass.topk;
  for (int64_t slot = int64_t{blockIdx.x} * kThreads + threadIdx.x; slot < slots;
       slot += int64_t{gridDim.x} * kThreads) {
    const index_t index = pass.indices[slot];
    if (index < 0) continue;
    if (index >= pass.seqlen_k) {
      if (pass.out_of_range) *pass.out_of_range = 1;
    } else {
      mask[slot / pass.topk * pass.seqlen_k + index] = static_cast<scalar_t>(0.0f);
    }
  }
}

bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <typename index_t, typename scalar_t>
cudaError_t fill(const MaskPass<index_t>& pass, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(pass.rows),
                  static_cast<unsigned>((pass.seqlen_k + kSegment - 1) / kSegment));
  const bool has_whole_words = pass.topk % Vec<index_t>::kLength == 0 &&
                               pass.seqlen_k % Vec<scalar_t>::kLength == 0 &&
                               is_aligned(pass.indices) && is_aligned(pass.mask);
  if (has_whole_words) {
    mask_fill_kernel<index_t, scalar_t, true><<<grid, kThreads, 0, stream>>>(pass);
  } else {
    mask_fill_kernel<index_t, scalar_t, false><<<grid, kThreads, 0, stream>>>(pass);
  }
  return cudaGetLastError();
}

template <typename index_t, typename scalar_t>
cudaError_t open(const MaskPass<index_t>& pass, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 1 << 16;
  const int64_t blocks = (pass.rows * pass.topk + kThreads - 1) / kThreads;
  mask_open_kernel<index_t, scalar_t>
      <<<static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0, stream>>>(
          pass);
  return cudaGetLastError();
}

}  // namespace

template <typename index_t>
cudaError_t launch_mask_fill(const MaskPass<index_t>& pass, MaskType type, cudaStream_t stream) {
  if (pass.rows == 0 || pass.seqlen_k == 0) return cudaSuccess;
  return type == MaskType::kFloat32 ? fill<index_t, float>(pass, stream)
                                    : fill<index_t, __nv_bfloat16>(pass, stream);
}

template <typename index_t>
cudaError_t launch_mask_open(const MaskPass<index_t>& pass, MaskType type, cudaStream_t stream) {
  if (pass.rows == 0 || pass.topk == 0) return cudaSuccess;
  return type == MaskType::kFloat32 ? open<index_t, float>(pass, stream)
                                    : open<index_t, __nv_bfloat16>(pass, stream);
}

template cudaError_t launch_mask_fill(const MaskPass<int32_t>&, MaskType, cudaStream_t);
template cudaError_t launch_mask_fill(const MaskPass<int64_t>&, MaskType, cudaStream_t);
template cudaError_t launch_mask_open(const MaskPass<int32_t>&, MaskType, cudaStream_t);
template cudaError_t launch_mask_open(const MaskPass<int64_t>&, MaskType, cudaStream_t);

}  // namespace patchbench::ops::dsa_graph_capture
