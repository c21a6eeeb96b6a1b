#include "kernel.cuh"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "../mma_sync.cuh"

// The primitives that the forward is written over come first.
#include "../sm90_warpgroup.cuh"

#include "sm90_forward.h"
#include "sm90_rows_forward.h"

// The forward: sm90_rows_forward.h, over 656 bytes sm90_forward.h. The backward: grid (seqlen_q,
// ceil(num_heads / 64), batch), 256 threads, one CTA per SM.
//   A CTA holds 64 heads of one query and walks its keys in tiles of 32. Rows of the stored keys
//   are gathered, and each e4m3 byte becomes the bfloat16 of the same value (exact: 3 bits of
//   mantissa, exponents -9 to 8). Scales stay float32 and are applied to sums: to the logits per
//   key and 128 columns, to P and dS when they are rounded to bfloat16. Products run on mma.sync
//   m16n8k16 with float32 sums. 211 KiB of shared memory; grad_q in registers, 64 x 72 per warp;
//   grad_kv leaves by atomic adds in float32. The logits are not multiplied as e4m3: dS^T Q wants
//   the query in bfloat16, and there is no room for the stored bytes beside it.
// Rounded to bfloat16: P times its scale, dS times its scale, grad_q. Limits, checked in op.cpp:
// head_dim 576/512, batch and num_heads / 64 below 65536, seqlen_q below 2^31.
namespace patchbench::ops::fp8_storage_dispatch {
namespace {

using mma_sync::bf16, mma_sync::ldmatrix, mma_sync::mma;

constexpr int kWarps = kThreads / 32;
constexpr int kHeads = 64;  // rows of a CTA
constexpr int kKeysBackward = 32;
constexpr int kChunk = 16;     // bytes of a load
constexpr int kNumBlocks = 5;  // four of the latent columns, one of the rope's 64
// Rows of an odd number of 16-byte words: the eight rows that ldmatrix reads fall into all banks.
constexpr int kRow = kHeadDim + 8, kRowV = kHeadDimV + 8;
constexpr int kRowDs = kKeysBackward + 8;
static_assert(kRow * 2 / 16 % 2 == 1 && kRowV * 2 / 16 % 2 == 1 && kRowDs * 2 / 16 % 2 == 1,
              "rows of an even number of 16-byte words make ldmatrix collide");

/// The scale block of a column: 0-3 of the latent part, 4 of the rope.
__device__ constexpr int block_of(int column) { return column / kScaleBlock; }

template <bool kIsBlock>
constexpr int kNumScales = kIsBlock ? kNumBlocks : 1;
/// Which of the scales a block uses: one for all columns where a key has but one.
template <bool kIsBlock>
__device__ constexpr int scale_of(int block) {
  return kIsBlock ? block : 0;
}

template <bool kIsBlock>
struct BackwardShared {
  bf16 q[kHeads][kRow];
  bf16 grad_out[kHeads][kRowV];
  bf16 k[kKeysBackward][kRow];
  bf16 ds_k[kNumScales<kIsBlock>][kHeads][kRowDs];  // dS times the key's scale, per block
  bf16 ds_q[kHeads][kRowDs];                        // dS times the query's scale
  bf16 p[kHeads][kRowDs];
  float k_scale[kNumBlocks][kKeysBackward];
  float q_scale[kHeads], lse[kHeads], delta[kHeads];
  int index[kKeysBackward];
};
constexpr int kSharedMax = 227 * 1024;
static_assert(sizeof(BackwardShared<true>) <= kSharedMax, "a CTA of sm_90 has 227 KiB");

// ---- products ----

// Where a lane points ldmatrix, for the four 8 x 8 matrices of each operand.
__device__ int lane_row_a(int lane) { return lane % 16; }
__device__ int lane_col_a(int lane) { return lane / 16 * 8; }
/// B from rows of n, two tiles of 8: n by (lane / 16), k by (lane / 8 % 2).
__device__ int lane_row_b(int lane) { return lane / 16 * 8 + lane % 8; }
__device__ int lane_col_b(int lane) { return lane / 8 % 2 * 8; }

// ---- gathering ----

/// Sixteen stored values as the bfloat16 of the same value.
__device__ void store_exact(bf16* to, uint4 bytes) {
  const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
  uint4 out[2];
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(out);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (i % 2 * 16));
    const __half2 half = __half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3));
    pairs[i] = __float22bfloat162_rn(__half22float2(half));
  }
  *reinterpret_cast<uint4*>(to) = out[0];
  *reinterpret_cast<uint4*>(to + 8) = out[1];
}

template <typename q_t>
__device__ void load_q(const SparseMla& problem, int64_t first_row, int num_rows,
                       bf16 (&q)[kHeads][kRow], float (&scale)[kHeads]) {
  constexpr int kLength = kChunk / sizeof(q_t);
  constexpr int kChunks = kHeadDim / kLength;
  for (int i = threadIdx.x; i < kHeads * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * kLength;
    uint4 bytes = make_uint4(0, 0, 0, 0);
    if (row < num_rows)
      bytes = *reinterpret_cast<const uint4*>(static_cast<const q_t*>(problem.q) +
                                              (first_row + row) * kHeadDim + column);
    if constexpr (sizeof(q_t) == 1) {
      store_exact(&q[row][column], bytes);
    } else {
      *reinterpret_cast<uint4*>(&q[row][column]) = bytes;
    }
  }
  for (int row = threadIdx.x; row < kHeads; row += kThreads) {
    scale[row] = 0.0f;
    if (row < num_rows)
      scale[row] =
          sizeof(q_t) == 2 ? 1.0f : problem.q_scale[(first_row + row) * problem.q_scale_stride];
  }
}

/// One tile of keys and their scales; a slot that names no key becomes a row of zeros.
template <bool kIsBlock, int kKeys>
__device__ void load_keys(const SparseMla& problem, const int32_t* indices, int first,
                          bf16 (&k)[kKeys][kRow], float (&scale)[kNumBlocks][kKeys],
                          int (&index)[kKeys]) {
  const int64_t batch = blockIdx.z;
  for (int key = threadIdx.x; key < kKeys; key += kThreads) {
    const int64_t slot = first + key;
    const int at = slot < problem.topk ? indices[slot] : -1;
    index[key] = at >= 0 && at < problem.seqlen_k ? at : -1;
  }
  // The rows are fetched by these indices.
  __syncthreads();
  const int64_t bytes_per_row = kIsBlock ? kBlockRowBytes : kHeadDim;
  constexpr int kPacked = (kIsBlock ? kHeadDimV : kHeadDim) / kChunk;
  constexpr int kChunks = kPacked + (kIsBlock ? (kHeadDim - kHeadDimV) / 8 : 0);
  for (int i = threadIdx.x; i < kKeys * kChunks; i += kThreads) {
    const int key = i / kChunks, chunk = i % kChunks;
    const bool is_packed = chunk < kPacked;
    // In the block layout the rope follows the 16 bytes of scales.
    const int offset = is_packed ? chunk * kChunk : kHeadDimV + 16 + (chunk - kPacked) * kChunk;
    uint4 bytes = make_uint4(0, 0, 0, 0);
    if (index[key] >= 0)
      bytes = *reinterpret_cast<const uint4*>(
          problem.kv + (batch * problem.seqlen_k + index[key]) * bytes_per_row + offset);
    if (is_packed) {
      store_exact(&k[key][chunk * kChunk], bytes);
    } else {
      *reinterpret_cast<uint4*>(&k[key][kHeadDimV + (chunk - kPacked) * 8]) = bytes;
    }
  }
  for (int i = threadIdx.x; i < kKeys * kNumScales<kIsBlock>; i += kThreads) {
    const int key = i % kKeys, block = i / kKeys;
    const int64_t row = batch * problem.seqlen_k + index[key];
    float value = 0.0f;
    if (index[key] >= 0) {
      if constexpr (kIsBlock) {
        value = block == 4 ? 1.0f
                           : reinterpret_cast<const float*>(problem.kv + row * kBlockRowBytes +
                                                            kHeadDimV)[block];
      } else {
        value = problem.kv_scale[row * problem.kv_scale_stride];
      }
    }
    scale[block][key] = value;
  }
  // All of the tile is used by all warps next.
  __syncthreads();
}

/// total[t] += scale * (a b^T) for one m16 tile of `a` and kTiles n8 tiles of keys, block by block.
template <bool kIsBlock, int kTiles, int kBlocks, int kKeys, int kRowA>
__device__ void dot_keys(float (&total)[kTiles][4], const bf16 (*a)[kRowA],
                         const bf16 (&k)[kKeys][kRow], const float (&scale)[kNumBlocks][kKeys],
                         int first_key) {
  const int lane = threadIdx.x % 32;
  float sums[kTiles][4] = {};
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const int steps = (block == 4 ? kHeadDim - kHeadDimV : kScaleBlock) / 16;
#pragma unroll 4
    for (int step = 0; step < steps; ++step) {
      const int column = block * kScaleBlock + step * 16;
      uint32_t left[4];
      ldmatrix<false>(left, shared_address(&a[lane_row_a(lane)][column + lane_col_a(lane)]));
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        uint32_t right[4];
        ldmatrix<false>(
            right,
            shared_address(&k[first_key + t * 8 + lane_row_b(lane)][column + lane_col_b(lane)]));
        mma(sums[t], left, right[0], right[1]);
        mma(sums[t + 1], left, right[2], right[3]);
      }
    }
    if (!kIsBlock && block + 1 < kBlocks) continue;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first_key + t * 8 + lane % 4 * 2 + e % 2;
        total[t][e] += sums[t][e] * scale[scale_of<kIsBlock>(block)][key];
        sums[t][e] = 0.0f;
      }
    }
  }
}

// ---- backward ----

/// grad_out of the CTA's heads, lse, and delta = rowsum(grad_out * out).
template <bool kIsBlock>
__device__ void load_grad_out(const SparseMlaGrads& grads, int64_t first_row, int num_rows,
                              BackwardShared<kIsBlock>& shared) {
  const int row = threadIdx.x / 4, quarter = threadIdx.x % 4;
  float delta = 0.0f;
  for (int i = quarter; i < kHeadDimV / 8; i += 4) {
    uint4 bytes = make_uint4(0, 0, 0, 0);
    if (row < num_rows) {
      const int64_t at = (first_row + row) * kHeadDimV + i * 8;
      bytes = *reinterpret_cast<const uint4*>(static_cast<const bf16*>(grads.grad_out) + at);
      const uint4 out = *reinterpret_cast<const uint4*>(static_cast<const bf16*>(grads.out) + at);
      const auto* g = reinterpret_cast<const bf16*>(&bytes);
      const auto* o = reinterpret_cast<const bf16*>(&out);
#pragma unroll
      for (int e = 0; e < 8; ++e) delta += __bfloat162float(g[e]) * __bfloat162float(o[e]);
    }
    *reinterpret_cast<uint4*>(&shared.grad_out[row][i * 8]) = bytes;
  }
  delta += __shfl_xor_sync(~0u, delta, 1);
  delta += __shfl_xor_sync(~0u, delta, 2);
  if (quarter == 0) {
    shared.delta[row] = delta;
    // Rows of no head: exp2(0 - inf) = 0.
    shared.lse[row] = row < num_rows ? grads.lse[first_row + row] : INFINITY;
  }
}

/// P and dS of one tile, rounded to bfloat16 with their scales.
template <bool kIsBlock>
__device__ void differentiate_tile(const SparseMla& problem, BackwardShared<kIsBlock>& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row0 = warp % 4 * 16, key0 = warp / 4 * 16;
  float logits[2][4] = {}, grad_p[2][4] = {};
  dot_keys<kIsBlock, 2, kNumBlocks>(logits, &shared.q[row0], shared.k, shared.k_scale, key0);
  dot_keys<kIsBlock, 2, 4>(grad_p, &shared.grad_out[row0], shared.k, shared.k_scale, key0);
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = row0 + lane / 4 + e / 2 * 8, key = key0 + t * 8 + lane % 4 * 2 + e % 2;
      const float scale = shared.q_scale[row] * problem.softmax_scale * kLog2e;
      const float p = shared.index[key] < 0 ? 0.0f : exp2f(logits[t][e] * scale - shared.lse[row]);
      const float ds = p * (grad_p[t][e] - shared.delta[row]) * problem.softmax_scale;
      shared.p[row][key] = __float2bfloat16(p);
      shared.ds_q[row][key] = __float2bfloat16(ds * shared.q_scale[row]);
#pragma unroll
      for (int block = 0; block < kNumScales<kIsBlock>; ++block)
        shared.ds_k[block][row][key] = __float2bfloat16(ds * shared.k_scale[block][key]);
    }
  }
}

__device__ void add_pair(float* to, float first, float second) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float2*>(to), make_float2(first, second));
#else
  atomicAdd(to, first);
  atomicAdd(to + 1, second);
#endif
}

constexpr int kTilesBackward = kHeadDim / kWarps / 8;  // n8 tiles of a warp's 72 columns

/// grad_kv of one tile: dS^T Q, and P^T grad_out on the columns that are also the value.
template <bool kIsBlock>
__device__ void add_grad_kv(const SparseMla& problem, const BackwardShared<kIsBlock>& shared,
                            float* grad_kv) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t base = int64_t{blockIdx.z} * problem.seqlen_k;
  for (int t = 0; t < kTilesBackward; ++t) {
    const int column = (warp * kTilesBackward + t) * 8;
    float acc[2][4] = {};
#pragma unroll
    for (int first = 0; first < kHeads; first += 32) {
      uint32_t q[4], grad_out[4];
      ldmatrix<true>(q, shared_address(&shared.q[first + lane][column]));
      if (column < kHeadDimV)
        ldmatrix<true>(grad_out, shared_address(&shared.grad_out[first + lane][column]));
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int head = first + step * 16 + lane_row_b(lane);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          uint32_t left[4];
          ldmatrix<true>(left, shared_address(&shared.ds_q[head][m * 16 + lane_col_b(lane)]));
          mma(acc[m], left, q[step * 2], q[step * 2 + 1]);
          if (column >= kHeadDimV) continue;
          ldmatrix<true>(left, shared_address(&shared.p[head][m * 16 + lane_col_b(lane)]));
          mma(acc[m], left, grad_out[step * 2], grad_out[step * 2 + 1]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = shared.index[m * 16 + lane / 4 + half * 8];
        if (at < 0) continue;
        add_pair(grad_kv + (base + at) * kHeadDim + column + lane % 4 * 2, acc[m][half * 2],
                 acc[m][half * 2 + 1]);
      }
    }
  }
}

template <bool kIsBlock, typename q_t>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_backward_kernel(SparseMla problem, SparseMlaGrads grads) {
  extern __shared__ uint4 storage[];
  auto& shared = *reinterpret_cast<BackwardShared<kIsBlock>*>(storage);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t query = int64_t{blockIdx.z} * problem.seqlen_q + blockIdx.x;
  const int64_t first_head = int64_t{blockIdx.y} * kHeads;
  const int64_t first_row = query * problem.num_heads + first_head;
  const int num_rows = static_cast<int>(min(int64_t{kHeads}, problem.num_heads - first_head));
  const int32_t* indices = problem.indices + query * problem.topk;
  load_q<q_t>(problem, first_row, num_rows, shared.q, shared.q_scale);
  load_grad_out(grads, first_row, num_rows, shared);
  float acc[4][kTilesBackward][4] = {};  // 64 rows x 72 columns of grad_q
  for (int first = 0; first < problem.topk; first += kKeysBackward) {
    // The tile before must have been used by all warps.
    __syncthreads();
    load_keys<kIsBlock>(problem, indices, first, shared.k, shared.k_scale, shared.index);
    differentiate_tile(problem, shared);
    // P and dS of all rows are read by every warp.
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kTilesBackward; ++t) {
      const int column = (warp * kTilesBackward + t) * 8;
      const auto& ds = shared.ds_k[scale_of<kIsBlock>(block_of(column))];
      uint32_t right[4];
      ldmatrix<true>(right, shared_address(&shared.k[lane][column]));
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          uint32_t left[4];
          ldmatrix<false>(
              left, shared_address(&ds[m * 16 + lane_row_a(lane)][step * 16 + lane_col_a(lane)]));
          mma(acc[m][t], left, right[step * 2], right[step * 2 + 1]);
        }
      }
    }
    add_grad_kv(problem, shared, grads.grad_kv);
  }
  auto* grad_q = static_cast<bf16*>(grads.grad_q);
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m * 16 + lane / 4 + half * 8;
      if (row >= num_rows) continue;
#pragma unroll
      for (int t = 0; t < kTilesBackward; ++t) {
        const int column = (warp * kTilesBackward + t) * 8 + lane % 4 * 2;
        *reinterpret_cast<__nv_bfloat162*>(grad_q + (first_row + row) * kHeadDim + column) =
            __floats2bfloat162_rn(acc[m][t][half * 2], acc[m][t][half * 2 + 1]);
      }
    }
  }
}

// ---- host ----

template <Form kForm>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_forward_kernel(SparseMla problem, uint16_t* out, float* lse) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char tiles[];
  forward_cta<kForm>(problem, out, lse, Cta(problem, blockIdx.x, blockIdx.y, blockIdx.z), tiles);
#endif
}

template <bool kIsToken>
__global__ void __launch_bounds__(kRowsThreads, 1)
    sparse_mla_forward_rows_kernel(SparseMla problem, uint16_t* out, float* lse) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char tiles[];
  rows_forward_cta<kIsToken>(problem, out, lse, Items{blockIdx.x, gridDim.x}, tiles);
#endif
}

/// As many CTAs as there are multiprocessors, at most.
cudaError_t launch_rows(const SparseMla& problem, uint16_t* out, float* lse, cudaStream_t stream) {
  if (num_items(problem) == 0) return cudaSuccess;
  int64_t grid = 0;
  cudaError_t status = sm90::grid_of(num_items(problem), grid);
  if (status != cudaSuccess) return status;
  const auto kernel = problem.kv_scale_stride != 0 ? sparse_mla_forward_rows_kernel<true>
                                                   : sparse_mla_forward_rows_kernel<false>;
  status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{kRowsBytes});
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(grid), kRowsThreads, kRowsBytes, stream>>>(problem, out, lse);
  return cudaGetLastError();
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), const SparseMla& problem, int bytes,
                   cudaStream_t stream, Arguments... arguments) {
  if (problem.batch * problem.seqlen_q * problem.num_heads == 0) return cudaSuccess;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<unsigned>(problem.seqlen_q),
                  static_cast<unsigned>((problem.num_heads + kHeads - 1) / kHeads),
                  static_cast<unsigned>(problem.batch));
  kernel<<<grid, kThreads, bytes, stream>>>(problem, arguments...);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_forward(const SparseMla& problem, void* out, float* lse, cudaStream_t stream) {
  if (problem.kv_scale != nullptr)
    return launch_rows(problem, static_cast<uint16_t*>(out), lse, stream);
  const auto kernel = problem.q_scale != nullptr
                          ? sparse_mla_forward_kernel<Form::kBlock>
                          : sparse_mla_forward_kernel<Form::kBlockDenseQuery>;
  return launch(kernel, problem, kForwardBytes, stream, static_cast<uint16_t*>(out), lse);
}

cudaError_t launch_backward(const SparseMla& problem, const SparseMlaGrads& grads,
                            cudaStream_t stream) {
  const auto kernel = problem.kv_scale != nullptr  ? sparse_mla_backward_kernel<false, uint8_t>
                      : problem.q_scale != nullptr ? sparse_mla_backward_kernel<true, uint8_t>
                                                   : sparse_mla_backward_kernel<true, bf16>;
  const int bytes =
      problem.kv_scale != nullptr ? sizeof(BackwardShared<false>) : sizeof(BackwardShared<true>);
  return launch(kernel, problem, bytes, stream, grads);
}

}  // namespace patchbench::ops::fp8_storage_dispatch
