#include "kernel.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

// reduce_rows_kernel: grid (column blocks, row blocks, 2 tensors), 256 threads, no shared memory.
//   A unit is 8 columns of one output, (rank, group, head_dim / 8) flattened. kLanes threads of a
//   warp share a unit, each has up to kHeads heads of the group; the others of the warp lie next to
//   it in memory. A thread walks its block of rows with kRows rows of loads in flight, keeps the
//   bias sums of its heads in registers (8 kHeads floats) and adds its heads to the group's sum,
//   which the kLanes threads then exchange so that each stores 8 / kLanes columns.
// sum_partials_kernel: 8 threads per 4 bias elements, each every 8th row block, 8 loads in flight.
//   limits: head_dim a multiple of 8, heads per group <= 256, checked in op.cpp
namespace patchbench::ops::mamba3_mimo_gqa_bwd {
namespace {

constexpr int kThreads = 256, kWarp = 32;
constexpr int kVector = 8;         // columns of a unit
constexpr int kLoadsInFlight = 8;  // units per thread
static_assert(kMaxGroupHeads == 8 * 32, "a group's heads are 8 a thread, 32 threads");
constexpr int kSumColumns = 32, kSumStrands = 8, kSumDepth = 8;
constexpr int64_t kMinRows = 32;  // of a block: its bias sums are written once per block
constexpr int kBlocksPerProcessor = 2;

/// 8 columns of one head as they lie in memory.
template <typename scalar_t>
struct Unit {
  static constexpr int kWords = kVector * sizeof(scalar_t) / 16;
  uint4 words[kWords];

  __device__ void load(const scalar_t* from) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = __ldcs(reinterpret_cast<const uint4*>(from) + w);
  }
  __device__ float at(int i) const {
    const uint4& word = words[i * sizeof(scalar_t) / 16];
    const int lane = i % (16 / sizeof(scalar_t));
    const int part = lane * sizeof(scalar_t) / 4;
    const uint32_t bits = part == 0 ? word.x : part == 1 ? word.y : part == 2 ? word.z : word.w;
    if constexpr (std::is_same_v<scalar_t, float>) {
      return __uint_as_float(bits);
    } else if constexpr (std::is_same_v<scalar_t, __nv_bfloat16>) {
      return __uint_as_float(lane % 2 == 0 ? bits << 16 : bits & 0xffff0000u);
    } else {
      const __half2_raw pair{static_cast<uint16_t>(bits), static_cast<uint16_t>(bits >> 16)};
      return lane % 2 == 0 ? __low2float(pair) : __high2float(pair);
    }
  }
};

/// Sums `own` over the kLanes threads of a unit, which are kWarp / kLanes lanes apart. Each pair
/// swaps halves, so that a thread ends with 8 / kLanes columns (one from 8 threads on) in the front
/// of `own`; returns the first of them.
template <int kLanes>
__device__ int reduce_scatter(float (&own)[kVector], int head_lane) {
  int first = 0;
#pragma unroll
  for (int step = kLanes / 2, width = kVector; step > 0; step /= 2) {
    const int distance = step * (kWarp / kLanes);
    const int half = width / 2;
    const bool is_upper = (head_lane & step) != 0;
    if (half == 0) {
      own[0] += __shfl_xor_sync(0xffffffffu, own[0], distance);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      if (i >= half) continue;
      const float kept = is_upper ? own[i + half] : own[i];
      const float sent = is_upper ? own[i] : own[i + half];
      own[i] = kept + __shfl_xor_sync(0xffffffffu, sent, distance);
    }
    if (is_upper) first += half;
    width = half;
  }
  return first;
}

template <typename scalar_t, int kCount>
__device__ void store_columns(scalar_t* to, const float (&from)[kVector]) {
  struct alignas(sizeof(scalar_t) * kCount < 16 ? sizeof(scalar_t) * kCount : 16) Columns {
    scalar_t value[kCount];
  } columns;
#pragma unroll
  for (int i = 0; i < kCount; ++i) columns.value[i] = static_cast<scalar_t>(from[i]);
  *reinterpret_cast<Columns*>(to) = columns;
}

// Longer than 60 lines: loads, sums and stores of one block take turns in a loop over rows.
template <typename scalar_t, int kHeads, int kLanes, int kRows, int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    reduce_rows_kernel(GroupReduce problem, int64_t rows_per_block) {
  constexpr int kBeside = kWarp / kLanes;  // units of a warp
  constexpr int kStored = kLanes < kVector ? kVector / kLanes : 1;
  const int64_t head_dim = problem.head_dim, units = head_dim / kVector;
  const int heads = static_cast<int>(problem.num_heads / problem.num_groups);
  const int lane = threadIdx.x % kWarp, head_lane = lane / kBeside;
  const int64_t warp = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int64_t unit = warp * kBeside + lane % kBeside;
  const bool is_used = unit < problem.num_ranks * problem.num_groups * units;
  const int64_t output = unit / units, column = unit % units * kVector;
  const int64_t row_stride = problem.num_ranks * problem.num_heads * head_dim;
  const int64_t grad_stride = problem.num_ranks * problem.num_groups * head_dim;
  const int tensor = blockIdx.z;
  // Chosen, not indexed: an index that is not a constant would copy the arguments to local memory.
  const auto* raw = static_cast<const scalar_t*>(tensor == 0 ? problem.raw[0] : problem.raw[1]) +
                    (output * heads + head_lane) * head_dim + column;
  auto* grad = static_cast<scalar_t*>(tensor == 0 ? problem.grad[0] : problem.grad[1]) +
               output * head_dim + column;
  const int64_t first = blockIdx.y * rows_per_block;
  const int64_t end = min(first + rows_per_block, problem.rows);
  float bias[kHeads][kVector] = {};
  for (int64_t base = first; base < end; base += kRows) {
    Unit<scalar_t> loaded[kRows][kHeads] = {};
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
#pragma unroll
      for (int k = 0; k < kHeads; ++k) {
        if (is_used && base + u < end && k * kLanes + head_lane < heads)
          loaded[u][k].load(raw + (base + u) * row_stride + k * kLanes * head_dim);
      }
    }
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      float own[kVector];
#pragma unroll
      for (int k = 0; k < kHeads; ++k) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float value = loaded[u][k].at(i);
          bias[k][i] += value;
          own[i] = k == 0 ? value : own[i] + value;
        }
      }
      const int at = reduce_scatter<kLanes>(own, head_lane);
      // From 16 threads on, several end with the same column.
      const bool is_first = head_lane % (kLanes * kStored / kVector) == 0;
      if (is_used && base + u < end && is_first)
        store_columns<scalar_t, kStored>(grad + (base + u) * grad_stride + at, own);
    }
  }
  if (!is_used) return;
  const int64_t rank = output / problem.num_groups, group = output % problem.num_groups;
  auto* partial = problem.partial + (int64_t{tensor} * gridDim.y + blockIdx.y) * row_stride;
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
    const int64_t head = group * heads + k * kLanes + head_lane;
    if (k * kLanes + head_lane >= heads) continue;
    auto* to = partial + (head * problem.num_ranks + rank) * head_dim + column;
    store_columns<float, kVector>(to, bias[k]);
  }
}

__device__ void add(float4& sum, const float4& part) {
  sum.x += part.x;
  sum.y += part.y;
  sum.z += part.z;
  sum.w += part.w;
}

__global__ void __launch_bounds__(kSumColumns* kSumStrands)
    sum_partials_kernel(GroupReduce problem, int64_t row_blocks) {
  __shared__ float4 strands[kSumStrands][kSumColumns];
  const int64_t size = problem.num_heads * problem.num_ranks * problem.head_dim / 4;
  const int64_t element = int64_t{blockIdx.x} * kSumColumns + threadIdx.x;
  const int tensor = blockIdx.y;
  float4 total = {};
  if (element < size) {
    const auto* partial =
        reinterpret_cast<const float4*>(problem.partial) + tensor * row_blocks * size + element;
    for (int64_t base = threadIdx.y; base < row_blocks; base += kSumStrands * kSumDepth) {
      float4 parts[kSumDepth] = {};
#pragma unroll
      for (int u = 0; u < kSumDepth; ++u) {
        const int64_t block = base + u * kSumStrands;
        if (block < row_blocks) parts[u] = partial[block * size];
      }
#pragma unroll
      for (const float4& part : parts) add(total, part);
    }
  }
  strands[threadIdx.y][threadIdx.x] = total;
  // The first strand reads the others.
  __syncthreads();
  if (threadIdx.y != 0 || element >= size) return;
#pragma unroll
  for (int strand = 1; strand < kSumStrands; ++strand) add(total, strands[strand][threadIdx.x]);
  auto* sum = tensor == 0 ? problem.grad_bias[0] : problem.grad_bias[1];
  reinterpret_cast<float4*>(sum)[element] = total;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Threads of a unit and heads of each, as measured on an H200: from 8 threads on, whose loads are
/// scattered, two rows of 8 heads in flight beat two blocks on a multiprocessor.
struct Split {
  int heads, lanes;
};

Split split_of(int64_t heads) {
  if (heads <= 2) return {static_cast<int>(heads), 1};
  if (heads <= 8) return {4, heads <= 4 ? 1 : 2};
  int lanes = 2;
  while (lanes * 8 < heads) lanes *= 2;
  return {8, lanes};
}

int64_t num_column_blocks(const GroupReduce& problem) {
  const int64_t units = problem.num_ranks * problem.num_groups * problem.head_dim / kVector;
  return ceil_div(units * split_of(problem.num_heads / problem.num_groups).lanes, kThreads);
}

template <typename scalar_t, int kHeads, int kLanes>
cudaError_t launch_rows(const GroupReduce& problem, int num_processors, cudaStream_t stream) {
  const int64_t blocks = num_row_blocks(problem, num_processors);
  const dim3 grid(static_cast<unsigned>(num_column_blocks(problem)), static_cast<unsigned>(blocks),
                  2);
  constexpr int kRows = kLanes < 8 ? kLoadsInFlight / kHeads : 2;
  constexpr int kMinBlocks = kLanes < 8 ? 2 : 1;
  const auto kernel = reduce_rows_kernel<scalar_t, kHeads, kLanes, kRows, kMinBlocks>;
  kernel<<<grid, kThreads, 0, stream>>>(problem, ceil_div(problem.rows, blocks));
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  const int64_t elements = problem.num_heads * problem.num_ranks * problem.head_dim / 4;
  const dim3 sum_grid(static_cast<unsigned>(ceil_div(elements, kSumColumns)), 2);
  sum_partials_kernel<<<sum_grid, dim3(kSumColumns, kSumStrands), 0, stream>>>(problem, blocks);
  return cudaGetLastError();
}

template <typename scalar_t>
cudaError_t launch_split(const GroupReduce& problem, int num_processors, cudaStream_t stream) {
  const Split split = split_of(problem.num_heads / problem.num_groups);
  switch (split.heads * 100 + split.lanes) {
    case 101:
      return launch_rows<scalar_t, 1, 1>(problem, num_processors, stream);
    case 201:
      return launch_rows<scalar_t, 2, 1>(problem, num_processors, stream);
    case 401:
      return launch_rows<scalar_t, 4, 1>(problem, num_processors, stream);
    case 402:
      return launch_rows<scalar_t, 4, 2>(problem, num_processors, stream);
    case 802:
      return launch_rows<scalar_t, 8, 2>(problem, num_processors, stream);
    case 804:
      return launch_rows<scalar_t, 8, 4>(problem, num_processors, stream);
    case 808:
      return launch_rows<scalar_t, 8, 8>(problem, num_processors, stream);
    case 816:
      return launch_rows<scalar_t, 8, 16>(problem, num_processors, stream);
    case 832:
      return launch_rows<scalar_t, 8, 32>(problem, num_processors, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int64_t num_row_blocks(const GroupReduce& problem, int num_processors) {
  const int64_t columns = std::max<int64_t>(1, num_column_blocks(problem));
  const int64_t wanted = int64_t{num_processors} * kBlocksPerProcessor / (2 * columns);
  return std::clamp<int64_t>(wanted, 1, ceil_div(problem.rows, kMinRows));
}

bool is_served(const GroupReduce& problem) {
  return problem.rows > 0 && problem.head_dim % kVector == 0 &&
         problem.num_heads / problem.num_groups <= kMaxGroupHeads;
}

cudaError_t launch_group_reduce(const GroupReduce& problem, ElementType type, int num_processors,
                                cudaStream_t stream) {
  if (problem.num_heads * problem.num_ranks * problem.head_dim == 0) return cudaSuccess;
  switch (type) {
    case ElementType::kFloat32:
      return launch_split<float>(problem, num_processors, stream);
    case ElementType::kBFloat16:
      return launch_split<__nv_bfloat16>(problem, num_processors, stream);
    case ElementType::kFloat16:
      return launch_split<__half>(problem, num_processors, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
