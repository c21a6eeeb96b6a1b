#include <cudaTypedefs.h>

#include <algorithm>
#include <array>

#include "../kernel/launch.cuh"
#include "tiles.cuh"

// Axes: b batch, s seqlen, R num_ranks, g num_groups, h num_heads, n head_dim; a chunk is 64 / R
// tokens, a row of a tile one (token, rank).
// products_kernel, gradients_kernel, staging_kernel: grid (spans of chunks, g), 256 threads.
//   A CTA walks the chunks of its span and, in each, the heads of its group. A warp has 8 rows,
//   whole tokens, a lane n / 32 columns of them: q and k stay in registers for all heads while the
//   next chunk's are copied. Tiles of products, one a head, go through four stages.
//   shared memory at n = 128: 32 KiB of q and k in 16 bits, 64 KiB in float32; stages 256 R bytes a
//   byte of the type; backwards 64 R n bytes more, in which the warps' bias sums meet.
// sum_spans_kernel: one thread a bias element, spans in order.
// Rounded to the element type: qk_dot, grad_q, grad_k. All else is float32.
// Limits, checked in op.cpp: R in {2, 4, 8}, n in {64, 128}, rows, b and g below 65536.
namespace patchbench::ops::mamba3_mimo_smem_2d {
namespace {

template <int kCount, typename scalar_t>
__device__ void load_row(const scalar_t* from, float (&to)[kCount]) {
  constexpr int kBytes = kCount * int{sizeof(scalar_t)};
  using word_t = typename Word<kUnitBytes<kBytes>>::type;
  constexpr int kWords = kBytes / int{sizeof(word_t)};
  word_t words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const word_t*>(from)[i];
  const auto* values = reinterpret_cast<const scalar_t*>(words);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = static_cast<float>(values[i]);
}

/// A lane's columns of the warp's rows.
template <int kColumns>
using Rows = float[kRowsPerWarp][kColumns];

template <int kN, typename scalar_t>
__device__ void load_rows(const scalar_t* tile, Rows<kN / 32>& to) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i)
    load_row(tile + (warp * kRowsPerWarp + i) * kN + lane * (kN / 32), to[i]);
}

/// Waits for the chunk's operands, takes them into registers and starts the next chunk's copy.
template <typename scalar_t, int kR, int kN>
__device__ void take_operands(Tiles<scalar_t, kR, kN>& tiles, const QkDot& problem,
                              const Maps& maps, const Plan& plan, const Span<kR>& span, int chunk,
                              Rows<kN / 32>& q, Rows<kN / 32>& k) {
  wait_for_operands(tiles, plan, chunk - span.first);
  load_rows<kN>(tiles.q, q);
  load_rows<kN>(tiles.k, k);
  // All have read the tiles: the next chunk's are written over them.
  __syncthreads();
  if (chunk + 1 < span.end)
    load_operands(tiles, problem, maps, plan, span.place(problem, chunk + 1));
}

/// Sums of kCount values over the lanes; each lane is left with kCount / 32, at least one: those
/// from lane * kCount / 32 on. A fixed order, the same in every lane.
template <int kCount>
__device__ void sum_over_lanes(float (&values)[kCount]) {
  int count = kCount;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    if (count > 1) {
      count /= 2;
      const bool is_upper = (threadIdx.x & static_cast<unsigned>(offset)) != 0;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        if (i >= count) break;
        const float sent = is_upper ? values[i] : values[i + count];
        const float kept = is_upper ? values[i + count] : values[i];
        values[i] = kept + __shfl_xor_sync(kAll, sent, offset);
      }
    } else {
      values[0] += __shfl_xor_sync(kAll, values[0], offset);
    }
  }
}

template <int kR, int kN>
__device__ const float* bias_of(const float* bias, int64_t head) {
  return bias + head * kR * kN + threadIdx.x % 32 * (kN / 32);
}

// ---- forwards ----

/// The products of the warp's rows with the ranks of their token, to its rows of the tile.
template <typename scalar_t, int kR, int kN>
__device__ void write_products(const QkDot& problem, int64_t head, const Rows<kN / 32>& q,
                               const Rows<kN / 32>& k, scalar_t* tile) {
  constexpr int kColumns = kN / 32, kCount = kRowsPerWarp * kR;
  const float* q_bias = bias_of<kR, kN>(problem.q_bias, head);
  const float* k_bias = bias_of<kR, kN>(problem.k_bias, head);
  float kb[kRowsPerWarp][kColumns], sums[kCount];
#pragma unroll
  for (int r = 0; r < kR; ++r) {
    float bias[kColumns];
    load_row(k_bias + r * kN, bias);
#pragma unroll
    for (int i = r; i < kRowsPerWarp; i += kR) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) kb[i][c] = k[i][c] + bias[c];
    }
  }
#pragma unroll
  for (int r = 0; r < kR; ++r) {
    float bias[kColumns];
    load_row(q_bias + r * kN, bias);
#pragma unroll
    for (int i = r; i < kRowsPerWarp; i += kR) {
#pragma unroll
      for (int u = 0; u < kR; ++u) {
        float sum = 0.0f;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sum = fmaf(q[i][c] + bias[c], kb[i - r + u][c], sum);
        sums[i * kR + u] = sum;
      }
    }
  }
  sum_over_lanes(sums);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int kOwn = kCount > 32 ? kCount / 32 : 1, kLanes = kCount > 32 ? 1 : 32 / kCount;
  if (lane % kLanes != 0) return;
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    tile[warp * kCount + lane / kLanes * kOwn + i] = static_cast<scalar_t>(sums[i]);
}

template <typename scalar_t, int kR, int kN>
__global__ void __launch_bounds__(kThreads)
    products_kernel(const QkDot problem, const __grid_constant__ Maps maps, const Plan plan) {
  extern __shared__ __align__(128) unsigned char storage[];
  auto& tiles = *reinterpret_cast<Tiles<scalar_t, kR, kN>*>(storage);
  const Span<kR> span(problem);
  const int heads = static_cast<int>(problem.num_heads / problem.num_groups);
  init_barriers(tiles);
  load_operands(tiles, problem, maps, plan, span.place(problem, span.first));
  cp_async_commit_group();
  int step = 0;
  for (int chunk = span.first; chunk < span.end; ++chunk) {
    Rows<kN / 32> q, k;
    take_operands(tiles, problem, maps, plan, span, chunk, q, k);
    cp_async_commit_group();
    const Place place = span.place(problem, chunk);
    for (int i = 0; i < heads; ++i, ++step) {
      const int head = span.group * heads + i;
      const int stage = step % kStages;
      write_products<scalar_t, kR, kN>(problem, head, q, k, tiles.products[stage]);
      publish_writes();
      // The next step's stage has been read by the store that was started kStages - 1 steps ago.
      if (threadIdx.x == 0) wait_for_stores<kStages - 2>();
      // The tile is whole.
      __syncthreads();
      store_products(tiles, stage, problem, maps, plan, place, head);
    }
  }
  // Shared memory must outlive the stores that read it.
  if (threadIdx.x == 0) wait_for_stores<0>();
}

// ---- backwards ----

template <int kR, int kN>
using BiasSums = float[kWarps][2][kR][kN];

template <int kColumns>
__device__ void put(float* to, const float (&values)[kColumns]) {
  using word_t = typename Word<kColumns * 4>::type;
  *reinterpret_cast<word_t*>(to) = *reinterpret_cast<const word_t*>(values);
}

/// Adds one head's part to the gradients of the warp's rows, and writes the warp's sums over its
/// tokens, of which num_tokens are in the sequence.
template <typename scalar_t, int kR, int kN>
__device__ void add_head(const QkDot& problem, int64_t head, const scalar_t* tile, int num_tokens,
                         const Rows<kN / 32>& q, const Rows<kN / 32>& k, Rows<kN / 32>& grad_q,
                         Rows<kN / 32>& grad_k, float (&sums)[2][kR][kN]) {
  constexpr int kColumns = kN / 32, kTokens = kRowsPerWarp / kR;
  // Both are what fits the registers at R = 8.
  constexpr int kAtOnce = sizeof(scalar_t) == 4 ? 2 : kR;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const float* q_bias = bias_of<kR, kN>(problem.q_bias, head);
  const float* k_bias = bias_of<kR, kN>(problem.k_bias, head);
  float q_sum[kR][kColumns] = {}, k_sum[kR][kColumns] = {};
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= num_tokens) break;
    float kb[kR][kColumns];
#pragma unroll
    for (int u = 0; u < kR; ++u) {
      load_row(k_bias + u * kN, kb[u]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) kb[u][c] += k[t * kR + u][c];
    }
#pragma unroll
    for (int r = 0; r < kR; ++r) {
      float qb[kColumns], part[kColumns] = {};
      load_row(q_bias + r * kN, qb);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) qb[c] += q[t * kR + r][c];
#pragma unroll
      for (int first = 0; first < kR; first += kAtOnce) {
        float grad[kAtOnce];
        load_row(tile + ((warp * kTokens + t) * kR + r) * kR + first, grad);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int u = first + i;
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            part[c] = fmaf(grad[i], kb[u][c], part[c]);
            k_sum[u][c] = fmaf(grad[i], qb[c], k_sum[u][c]);
            grad_k[t * kR + u][c] = fmaf(grad[i], qb[c], grad_k[t * kR + u][c]);
          }
        }
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        q_sum[r][c] += part[c];
        grad_q[t * kR + r][c] += part[c];
      }
      // Not after the loop: where a warp has one token the sum then needs no registers.
      put(&sums[0][r][lane * kColumns], q_sum[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kR; ++r) {
    if (num_tokens <= 0) put(&sums[0][r][lane * kColumns], q_sum[r]);
    put(&sums[1][r][lane * kColumns], k_sum[r]);
  }
}

/// The warps' sums, in order, onto the sums of the span's earlier chunks.
template <int kR, int kN>
__device__ void add_partial(const QkDot& problem, int64_t head, bool is_first,
                            const BiasSums<kR, kN>& sums) {
  constexpr int kSize = 2 * kR * kN;
  float* to = problem.partial + (int64_t{blockIdx.x} * problem.num_heads + head) * kSize;
  for (int i = static_cast<int>(threadIdx.x) * 4; i < kSize; i += kThreads * 4) {
    float4 total = {};
    if (!is_first) total = *reinterpret_cast<const float4*>(to + i);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 own = *reinterpret_cast<const float4*>(&sums[w][0][0][0] + i);
      total = {total.x + own.x, total.y + own.y, total.z + own.z, total.w + own.w};
    }
    *reinterpret_cast<float4*>(to + i) = total;
  }
}

template <typename scalar_t, int kN>
__device__ void write_rows(scalar_t* to, int64_t stride, int num_rows, const Rows<kN / 32>& rows) {
  constexpr int kColumns = kN / 32;
  using word_t = typename Word<kColumns* int{sizeof(scalar_t)}>::type;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const int row = warp * kRowsPerWarp + i;
    if (row >= num_rows) break;
    alignas(16) scalar_t values[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) values[c] = static_cast<scalar_t>(rows[i][c]);
    *reinterpret_cast<word_t*>(to + row * stride + lane * kColumns) =
        *reinterpret_cast<const word_t*>(values);
  }
}

template <typename scalar_t, int kR, int kN>
struct BackwardShared {
  Tiles<scalar_t, kR, kN> tiles;
  alignas(16) BiasSums<kR, kN> sums;
};

template <typename scalar_t, int kR, int kN>
__global__ void __launch_bounds__(kThreads)
    gradients_kernel(const QkDot problem, const __grid_constant__ Maps maps, const Plan plan) {
  extern __shared__ __align__(128) unsigned char storage[];
  auto& shared = *reinterpret_cast<BackwardShared<scalar_t, kR, kN>*>(storage);
  constexpr int kTokens = kRowsPerWarp / kR;
  const Span<kR> span(problem);
  const int heads = static_cast<int>(problem.num_heads / problem.num_groups);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  init_barriers(shared.tiles);
  load_operands(shared.tiles, problem, maps, plan, span.place(problem, span.first));
  ProductStream<scalar_t, kR, kN> stream(shared.tiles, problem, maps, plan, span, heads);
  for (int chunk = span.first; chunk < span.end; ++chunk) {
    Rows<kN / 32> q, k, grad_q = {}, grad_k = {};
    take_operands(shared.tiles, problem, maps, plan, span, chunk, q, k);
    const Place place = span.place(problem, chunk);
    for (int i = 0; i < heads; ++i) {
      const int head = span.group * heads + i;
      const scalar_t* tile = stream.next();
      add_head<scalar_t, kR, kN>(problem, head, tile, place.num_tokens - warp * kTokens, q, k,
                                 grad_q, grad_k, shared.sums[warp]);
      // All warps' sums are there; the next step's barrier keeps them until they are read.
      __syncthreads();
      add_partial<kR, kN>(problem, head, chunk == span.first, shared.sums);
    }
    const int64_t stride = problem.num_groups * kN;
    const int64_t at =
        (place.batch * problem.seqlen + place.token) * kR * stride + int64_t{place.group} * kN;
    write_rows<scalar_t, kN>(static_cast<scalar_t*>(problem.grad_q) + at, stride,
                             place.num_tokens * kR, grad_q);
    write_rows<scalar_t, kN>(static_cast<scalar_t*>(problem.grad_k) + at, stride,
                             place.num_tokens * kR, grad_k);
  }
}

__global__ void __launch_bounds__(kThreads) sum_spans_kernel(QkDot problem, int64_t spans) {
  const int64_t rows = problem.num_ranks * problem.head_dim, size = problem.num_heads * 2 * rows;
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= size) return;
  float total = 0.0f;
  for (int64_t span = 0; span < spans; ++span) total += problem.partial[span * size + at];
  float* to = at / rows % 2 == 0 ? problem.grad_q_bias : problem.grad_k_bias;
  to[at / (2 * rows) * rows + at % rows] = total;
}

// ---- staging alone ----

template <typename scalar_t, int kR, int kN>
__global__ void __launch_bounds__(kThreads)
    staging_kernel(const QkDot problem, const __grid_constant__ Maps maps, const Plan plan,
                   const Staged staged) {
  extern __shared__ __align__(128) unsigned char storage[];
  auto& tiles = *reinterpret_cast<Tiles<scalar_t, kR, kN>*>(storage);
  const Span<kR> span(problem);
  const int heads = static_cast<int>(problem.num_heads / problem.num_groups);
  const bool has_operands = staged == Staged::kAll;
  init_barriers(tiles);
  if (has_operands) load_operands(tiles, problem, maps, plan, span.place(problem, span.first));
  ProductStream<scalar_t, kR, kN> stream(tiles, problem, maps, plan, span, heads);
  uint32_t folded = 0;
  const auto fold = [&](const void* tile, int bytes) {
    const int word = static_cast<int>(threadIdx.x) % (bytes / 4);
    folded = folded * 31 + static_cast<const uint32_t*>(tile)[word];
  };
  for (int chunk = span.first; chunk < span.end; ++chunk) {
    if (has_operands) {
      wait_for_operands(tiles, plan, chunk - span.first);
      fold(tiles.q, int{sizeof(tiles.q)});
      fold(tiles.k, int{sizeof(tiles.k)});
      // All have read the tiles: the next chunk's are written over them.
      __syncthreads();
      if (chunk + 1 < span.end)
        load_operands(tiles, problem, maps, plan, span.place(problem, chunk + 1));
    }
    for (int i = 0; i < heads; ++i) fold(stream.next(), int{sizeof(tiles.products[0])});
  }
  problem.check[(int64_t{blockIdx.x} * problem.num_groups + blockIdx.y) * kThreads + threadIdx.x] =
      folded;
}

// ---- launches ----

PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                                12000, cudaEnableDefault, &result);
    const bool is_there = status == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(is_there ? function : nullptr);
  }();
  return found;
}

int64_t bytes_of(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

/// Extents and box of a tensor map, the fastest axis first. Strides equal those in a contiguous
/// tensor.
struct MapShape {
  int rank = 0;
  std::array<cuuint64_t, 5> extents = {};
  std::array<cuuint32_t, 5> box = {};
  void axis(int64_t extent, int64_t in_box) {
    extents[rank] = static_cast<cuuint64_t>(extent);
    box[rank++] = static_cast<cuuint32_t>(in_box);
  }
};

MapShape operand_shape(const QkDot& problem, Layout layout) {
  const int64_t ranks = problem.num_ranks;
  MapShape shape;
  shape.axis(problem.head_dim, problem.head_dim);
  shape.axis(problem.num_groups, 1);
  if (layout == Layout::kFlat) {
    shape.axis(problem.seqlen * ranks, kRows);
  } else {
    shape.axis(ranks, ranks);
    shape.axis(problem.seqlen, kRows / ranks);
  }
  shape.axis(problem.batch, 1);
  return shape;
}

MapShape product_shape(const QkDot& problem, Layout layout) {
  const int64_t ranks = problem.num_ranks;
  MapShape shape;
  if (layout == Layout::kFlat) {
    shape.axis(ranks * ranks, ranks * ranks);
  } else {
    shape.axis(ranks, ranks);
    shape.axis(ranks, ranks);
  }
  shape.axis(problem.seqlen, kRows / ranks);
  shape.axis(problem.batch * problem.num_heads, 1);
  return shape;
}

bool encode(CUtensorMap* map, const void* tensor, ElementType type, const MapShape& shape) {
  const auto element = type == ElementType::kFloat32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                     : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  std::array<cuuint64_t, 4> strides = {};
  cuuint64_t stride = static_cast<cuuint64_t>(bytes_of(type));
  for (int i = 0; i + 1 < shape.rank; ++i) strides[i] = stride *= shape.extents[i];
  const std::array<cuuint32_t, 5> steps = {1, 1, 1, 1, 1};
  return encoder()(map, element, static_cast<cuuint32_t>(shape.rank), const_cast<void*>(tensor),
                   shape.extents.data(), strides.data(), shape.box.data(), steps.data(),
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// The encoder wants a current context, which a thread that never called the runtime, as autograd's
/// own, has not. Allowed while a stream is captured.
cudaError_t make_context_current() {
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  return status == cudaSuccess ? cudaSetDevice(device) : status;
}

cudaError_t maps_of(const QkDot& problem, ElementType type, const Plan& plan, Maps& maps) {
  if (plan.operands != Copy::kTma && plan.products != Copy::kTma) return cudaSuccess;
  if (const cudaError_t status = make_context_current(); status != cudaSuccess) return status;
  if (plan.operands == Copy::kTma) {
    const MapShape shape = operand_shape(problem, plan.layout);
    maps.operand_rank = shape.rank;
    if (!encode(&maps.q, problem.q, type, shape) || !encode(&maps.k, problem.k, type, shape))
      return cudaErrorInvalidValue;
  }
  if (plan.products == Copy::kTma) {
    const MapShape shape = product_shape(problem, plan.layout);
    maps.product_rank = shape.rank;
    const void* products = problem.qk_dot != nullptr ? problem.qk_dot : problem.grad_qk_dot;
    if (!encode(&maps.products, products, type, shape)) return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

enum class Kernel { kProducts, kGradients, kStaging };

/// A launch's arguments besides the problem. `staged` is of kStaging alone.
struct Request {
  ElementType type;
  Plan plan;
  cudaStream_t stream;
  Staged staged = Staged::kAll;
};

template <Kernel kKernel, typename scalar_t, int kR, int kN>
cudaError_t launch_one(const QkDot& problem, const Request& request) {
  constexpr bool kIsBackward = kKernel == Kernel::kGradients;
  constexpr int64_t kBytes =
      kIsBackward ? sizeof(BackwardShared<scalar_t, kR, kN>) : sizeof(Tiles<scalar_t, kR, kN>);
  Maps maps{};
  const cudaError_t status = maps_of(problem, request.type, request.plan, maps);
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<unsigned>(num_spans(problem)),
                  static_cast<unsigned>(problem.num_groups));
  const auto run = [&](auto kernel, auto... more) {
    return launch_kernel(
        kernel, {.grid = grid, .threads = kThreads, .bytes = kBytes, .stream = request.stream},
        problem, maps, request.plan, more...);
  };
  if constexpr (kKernel == Kernel::kProducts) return run(products_kernel<scalar_t, kR, kN>);
  if constexpr (kIsBackward) return run(gradients_kernel<scalar_t, kR, kN>);
  if constexpr (kKernel == Kernel::kStaging)
    return run(staging_kernel<scalar_t, kR, kN>, request.staged);
}

template <Kernel kKernel, typename scalar_t, int kN>
cudaError_t launch_ranks(const QkDot& problem, const Request& request) {
  switch (problem.num_ranks) {
    case 2:
      return launch_one<kKernel, scalar_t, 2, kN>(problem, request);
    case 4:
      return launch_one<kKernel, scalar_t, 4, kN>(problem, request);
    default:
      return launch_one<kKernel, scalar_t, 8, kN>(problem, request);
  }
}

template <Kernel kKernel, typename scalar_t>
cudaError_t launch_width(const QkDot& problem, const Request& request) {
  return problem.head_dim == 64 ? launch_ranks<kKernel, scalar_t, 64>(problem, request)
                                : launch_ranks<kKernel, scalar_t, 128>(problem, request);
}

template <Kernel kKernel>
cudaError_t launch(const QkDot& problem, const Request& request) {
  return request.type == ElementType::kFloat32
             ? launch_width<kKernel, float>(problem, request)
             : launch_width<kKernel, __nv_bfloat16>(problem, request);
}

}  // namespace

Plan plan_of(const QkDot& problem, ElementType type, Staging staging, int compute_major) {
  const bool has_tma = staging.copy == Copy::kTma && compute_major == 9 && encoder() != nullptr;
  const int64_t row = problem.num_ranks * bytes_of(type) *
                      (staging.layout == Layout::kFlat ? problem.num_ranks : 1);
  return {staging.layout, has_tma ? Copy::kTma : Copy::kCpAsync,
          has_tma && row % 16 == 0 ? Copy::kTma : Copy::kCpAsync};
}

bool is_served(const QkDot& problem) {
  const int64_t ranks = problem.num_ranks, width = problem.head_dim;
  const int64_t matrices = problem.batch * problem.num_heads;
  return (ranks == 2 || ranks == 4 || ranks == 8) && (width == 64 || width == 128) &&
         problem.seqlen > 0 && problem.seqlen < (int64_t{1} << 28) && matrices > 0 &&
         problem.batch * problem.seqlen < (int64_t{1} << 31) && matrices < (int64_t{1} << 31) &&
         problem.num_groups < 65536;
}

int64_t shared_bytes(const QkDot& problem, ElementType type) {
  const int64_t operands = 2 * kRows * problem.head_dim,
                products = kStages * kRows * problem.num_ranks;
  const int64_t sums = kWarps * 2 * problem.num_ranks * problem.head_dim;
  // The barriers and their padding come on top.
  return (operands + products) * bytes_of(type) + sums * 4 + 256;
}

int64_t num_spans(const QkDot& problem) {
  const int64_t chunks = problem.batch * chunks_of(problem), each = chunks_per_span(problem);
  return (chunks + each - 1) / each;
}

cudaError_t launch_qk_dot(const QkDot& problem, ElementType type, Plan plan, cudaStream_t stream) {
  return launch<Kernel::kProducts>(problem, {type, plan, stream});
}

cudaError_t launch_qk_dot_backward(const QkDot& problem, ElementType type, Plan plan,
                                   cudaStream_t stream) {
  const cudaError_t status = launch<Kernel::kGradients>(problem, {type, plan, stream});
  if (status != cudaSuccess) return status;
  const int64_t size = 2 * problem.num_heads * problem.num_ranks * problem.head_dim;
  sum_spans_kernel<<<static_cast<unsigned>((size + kThreads - 1) / kThreads), kThreads, 0,
                     stream>>>(problem, num_spans(problem));
  return cudaGetLastError();
}

cudaError_t launch_staging(const QkDot& problem, Plan plan, Staged staged, cudaStream_t stream) {
  return launch_width<Kernel::kStaging, __nv_bfloat16>(
      problem, {ElementType::kBFloat16, plan, stream, staged});
}

}  // namespace patchbench::ops::mamba3_mimo_smem_2d
