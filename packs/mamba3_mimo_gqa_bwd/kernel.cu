#include "kernel.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// reduce_rows_kernel: grid (row blocks, num_ranks * head_dim / 32, 2 * num_groups), 256 threads.
//   A CTA holds one tensor, rank, group and 32 columns over a block of rows. A unit is 8 columns of
//   one head: a thread loads one or more units of a row, adds them to its bias sums in registers
//   and hands the sum over its own heads to shared memory, where the group's sum is formed.
//   shared memory: 256 threads x 8 columns x kUnroll rows in float32 = 32 KiB
// sum_partials_kernel: one thread per bias element, row blocks in order.
//   limits: head_dim a multiple of 32, heads per group <= 256 (4 units a thread), checked in op.cpp
namespace patchbench::ops::mamba3_mimo_gqa_bwd {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32, kVector = 8;
constexpr int kVectors = kColumns / kVector;  // units of a head in a CTA
constexpr int kUnroll = 4;                    // rows in flight per thread
constexpr int64_t kMinRows = 64, kMaxRowBlocks = 256;

__host__ __device__ int64_t rows_per_block(int64_t rows) {
  const int64_t wanted = (rows + kMaxRowBlocks - 1) / kMaxRowBlocks;
  return wanted > kMinRows ? wanted : kMinRows;
}

template <typename scalar_t>
__device__ void load(const scalar_t* from, float (&to)[kVector]) {
  constexpr int kWords = static_cast<int>(kVector * sizeof(scalar_t) / 16);
  uint4 words[kWords];
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] = __ldcs(reinterpret_cast<const uint4*>(from) + w);
  const auto* values = reinterpret_cast<const scalar_t*>(words);
#pragma unroll
  for (int i = 0; i < kVector; ++i) to[i] = static_cast<float>(values[i]);
}

template <typename scalar_t, int kUnits>
__global__ void __launch_bounds__(kThreads) reduce_rows_kernel(GroupReduce problem) {
  __shared__ float sums[kUnroll][kThreads][kVector];
  const int heads = static_cast<int>(problem.num_heads / problem.num_groups);
  // Threads of one row: each takes the units u, u + width, ... of the group's heads.
  const int units = heads * kVectors;
  const int width = min(units, kThreads);
  const int lanes = kThreads / width;  // rows at a time
  const int lane = threadIdx.x / width, unit = threadIdx.x % width;
  const int tensor = blockIdx.z % 2;
  const int64_t group = blockIdx.z / 2;
  const int64_t slices = problem.head_dim / kColumns;
  const int64_t rank = blockIdx.y / slices, slice = blockIdx.y % slices;
  const int64_t row_stride = problem.num_ranks * problem.num_heads * problem.head_dim;
  const auto* raw = static_cast<const scalar_t*>(problem.raw[tensor]) +
                    (rank * problem.num_heads + group * heads) * problem.head_dim +
                    slice * kColumns;
  auto* grad = static_cast<scalar_t*>(problem.grad[tensor]) +
               (rank * problem.num_groups + group) * problem.head_dim + slice * kColumns;
  const int64_t grad_stride = problem.num_ranks * problem.num_groups * problem.head_dim;
  const int64_t first = blockIdx.x * rows_per_block(problem.rows);
  const int64_t end = min(first + rows_per_block(problem.rows), problem.rows);
  float bias[kUnits][kVector] = {};
  for (int64_t base = first; base < end; base += lanes * kUnroll) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = base + u * lanes + lane;
      float own[kVector] = {};
      if (row < end && lane < lanes) {
#pragma unroll
        for (int k = 0; k < kUnits; ++k) {
          const int at = unit + k * width;
          if (at >= units) continue;
          float values[kVector];
          load(raw + row * row_stride + at / kVectors * problem.head_dim + at % kVectors * kVector,
               values);
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            bias[k][i] += values[i];
            own[i] += values[i];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums[u][threadIdx.x][i] = own[i];
    }
    // A group's sum is formed from what all threads of a row wrote.
    __syncthreads();
    for (int out = threadIdx.x; out < kUnroll * lanes * kColumns; out += kThreads) {
      const int column = out % kColumns, at = out / kColumns % lanes, u = out / kColumns / lanes;
      const int64_t row = base + u * lanes + at;
      if (row >= end) continue;
      float total = 0.0f;
      for (int w = column / kVector; w < width; w += kVectors)
        total += sums[u][at * width + w][column % kVector];
      grad[row * grad_stride + column] = static_cast<scalar_t>(total);
    }
    // The next rows are written over these.
    __syncthreads();
  }
  auto* partial = problem.partial + (int64_t{tensor} * gridDim.x + blockIdx.x) * problem.num_heads *
                                        problem.num_ranks * problem.head_dim;
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[0][threadIdx.x][i] = bias[k][i];
    // The lanes of a unit are summed by the first of them.
    __syncthreads();
    const int at = unit + k * width;
    if (lane == 0 && at < units) {
      const int64_t head = group * heads + at / kVectors;
      auto* to = partial + (head * problem.num_ranks + rank) * problem.head_dim + slice * kColumns +
                 at % kVectors * kVector;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        float total = 0.0f;
        for (int other = 0; other < lanes; ++other) total += sums[0][other * width + unit][i];
        to[i] = total;
      }
    }
    // The next unit's sums are written over these.
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    sum_partials_kernel(GroupReduce problem, int64_t row_blocks) {
  const int64_t size = problem.num_heads * problem.num_ranks * problem.head_dim;
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= 2 * size) return;
  const int tensor = at >= size;
  const int64_t element = at - tensor * size;
  float total = 0.0f;
  for (int64_t block = 0; block < row_blocks; ++block)
    total += problem.partial[(tensor * row_blocks + block) * size + element];
  problem.grad_bias[tensor][element] = total;
}

template <typename scalar_t>
cudaError_t launch_rows(const GroupReduce& problem, cudaStream_t stream) {
  const int64_t blocks = num_row_blocks(problem.rows);
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(problem.num_ranks * problem.head_dim / kColumns),
                  static_cast<unsigned>(2 * problem.num_groups));
  const int64_t units = problem.num_heads / problem.num_groups * kVectors;
  if (units <= kThreads) {
    reduce_rows_kernel<scalar_t, 1><<<grid, kThreads, 0, stream>>>(problem);
  } else if (units <= 2 * kThreads) {
    reduce_rows_kernel<scalar_t, 2><<<grid, kThreads, 0, stream>>>(problem);
  } else {
    reduce_rows_kernel<scalar_t, 4><<<grid, kThreads, 0, stream>>>(problem);
  }
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  const int64_t elements = 2 * problem.num_heads * problem.num_ranks * problem.head_dim;
  sum_partials_kernel<<<static_cast<unsigned>((elements + kThreads - 1) / kThreads), kThreads, 0,
                        stream>>>(problem, blocks);
  return cudaGetLastError();
}

}  // namespace

int64_t num_row_blocks(int64_t rows) {
  const int64_t per_block = rows_per_block(rows);
  return (rows + per_block - 1) / per_block;
}

bool is_served(const GroupReduce& problem) {
  return problem.rows > 0 && problem.head_dim % kColumns == 0 &&
         problem.num_heads / problem.num_groups * kVectors <= 4 * kThreads &&
         problem.num_ranks * problem.head_dim / kColumns <= 65535 &&
         2 * problem.num_groups <= 65535;
}

cudaError_t launch_group_reduce(const GroupReduce& problem, ElementType type, cudaStream_t stream) {
  if (problem.num_heads * problem.num_ranks * problem.head_dim == 0) return cudaSuccess;
  switch (type) {
    case ElementType::kFloat32:
      return launch_rows<float>(problem, stream);
    case ElementType::kBFloat16:
      return launch_rows<__nv_bfloat16>(problem, stream);
    case ElementType::kFloat16:
      return launch_rows<__half>(problem, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
