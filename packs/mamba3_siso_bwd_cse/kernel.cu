#include "kernel.cuh"

#include <algorithm>

#include "../kernel/launch.cuh"
#include "tiles.cuh"

// Axes: b batch, s seqlen, h num_heads, n head_dim_qk, p head_dim_v; i, j tokens of a chunk of 64.
// scan_kernel: grid (p / slice * h, sequences), 256 threads (128 for 32 x 32).
//   A CTA walks the chunks of one sequence and head backwards with a slice of 32 or 64 rows of the
//   p x n state gradient in float32 registers (at most 32 per thread), writes it rounded at each
//   kept chunk's end (chunks_per_cta) and in float32 before the first. Four stages of q, grad_out
//   and adt by cp.async: 99 KiB of shared memory at n = 128, slice 64; two CTAs per SM.
// chunk_kernel: grid (h, b, chunks), 256 threads; where sm90_walk.cu does not serve.
//   A CTA holds q, k, v, grad_out, both states and the masked E and T of one chunk and head in
//   shared memory: 101 KiB at n = 128, p = 64, two CTAs per SM. Heads are neighbours in the grid as
//   they are in memory. E = grad_out v^T and T = q k^T are formed and masked once, kept in float32
//   registers for grad_adt and in shared memory for the four products that use them. Blocks above
//   the diagonal are skipped.
// Products run on mma.sync m16n8k16 with float32 sums; 16-byte words of a row are swizzled by the
//   row, so that ldmatrix and the fragment-wise accesses meet all banks once.
// Rounded to the element type: grad_out e^cs (scan), the state gradient as an operand and in
//   sigma, masked E and T as operands, grad_q, grad_k, grad_v. All else is float32.
// Limits, checked in op.cpp: chunk 64, n and p in {32, 64, 128}, chunks, b, sequences < 65536.
namespace patchbench::ops::mamba3_siso_bwd_cse {
namespace {

constexpr int kC = static_cast<int>(kChunk);
constexpr int kThreads = 256;
constexpr int kStages = 4;  // chunks in flight in the scan
constexpr float kLog2e = 1.4426950408889634f;
constexpr int64_t kMaxGrid = 65535;

// ---- scan ----

struct Span {
  int begin, length;
};

/// Tokens of a packed sequence, held inside [0, seqlen] whatever cu_seqlens says.
__device__ Span sequence_span(const SisoBackward& problem, int64_t sequence) {
  if (problem.cu_seqlens == nullptr) return {0, static_cast<int>(problem.seqlen)};
  const int seqlen = static_cast<int>(problem.seqlen);
  const int begin = min(max(problem.cu_seqlens[sequence], 0), seqlen);
  const int end = min(max(problem.cu_seqlens[sequence + 1], begin), seqlen);
  return {begin, end - begin};
}

__device__ int chunks_of(Span span) { return (span.length + kC - 1) / kC; }

/// The chunks of all sequences before this one.
__device__ int first_chunk(const SisoBackward& problem, int64_t sequence) {
  if (problem.cu_seqlens == nullptr) return 0;
  int count = 0;
  for (int64_t other = threadIdx.x % 32; other < sequence; other += 32)
    count += chunks_of(sequence_span(problem, other));
  return __reduce_add_sync(kAll, count);
}

/// Writes where the sequence's chunks lie, and empty spans behind the last sequence's.
__device__ void write_spans(const SisoBackward& problem, int64_t sequence, Span span, int first,
                            int num_chunks) {
  const bool is_last = sequence + 1 == problem.num_sequences;
  const int end = is_last ? static_cast<int>(problem.num_chunks) - first : num_chunks;
  for (int c = static_cast<int>(threadIdx.x); c < end; c += static_cast<int>(blockDim.x)) {
    const int length = c < num_chunks ? min(kC, span.length - c * kC) : 0;
    int32_t* const to = problem.chunk_spans + 3 * (first + c);
    to[0] = span.begin + c * kC;
    to[1] = length;
    to[2] = c;
  }
}

template <typename scalar_t, int kN, int kSlice>
struct ScanShared {
  static constexpr int kWarps = kSlice * kN >= 2048 ? 8 : 4;
  struct Stage {
    scalar_t q[kC * kN];
    scalar_t grad_out[kC * kSlice];
    float adt[kC];
  };
  Stage stages[kStages];
  float decay[kWarps][kC];  // each warp its own, so that no barrier is needed
};

// Longer than 60 lines: one walk over the chunks whose steps share registers and shared memory.
template <typename scalar_t, int kN, int kSlice>
__global__ void __launch_bounds__(ScanShared<scalar_t, kN, kSlice>::kWarps * 32, 2)
    scan_kernel(SisoBackward problem) {
  using shared_t = ScanShared<scalar_t, kN, kSlice>;
  using tiling_t = Tiling<kSlice, kN, shared_t::kWarps>;
  extern __shared__ uint4 storage[];
  auto& shared = *reinterpret_cast<shared_t*>(storage);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int p_dim = static_cast<int>(problem.head_dim_v), num_slices = p_dim / kSlice;
  const int64_t head = blockIdx.x / num_slices, sequence = blockIdx.y;
  const int slice = static_cast<int>(blockIdx.x) % num_slices * kSlice;
  const int64_t batch = problem.cu_seqlens == nullptr ? sequence : 0;
  const Span span = sequence_span(problem, sequence);
  const int first = first_chunk(problem, sequence);
  // A states tensor with too few chunks must not be overrun.
  const int room = max(static_cast<int>(problem.num_chunks) - first, 0);
  const int num_chunks = min(chunks_of(span), room);
  if (problem.cu_seqlens != nullptr && head == 0 && slice == 0)
    write_spans(problem, sequence, span, first, num_chunks);

  const int64_t token = batch * problem.seqlen + span.begin;
  const int64_t stride_n = problem.num_heads * kN, stride_p = problem.num_heads * p_dim;
  const auto* q = static_cast<const scalar_t*>(problem.q) + token * stride_n + head * kN;
  const auto* grad_out =
      static_cast<const scalar_t*>(problem.grad_out) + token * stride_p + head * p_dim + slice;
  const float* adt = problem.adt + (batch * problem.num_heads + head) * problem.seqlen + span.begin;
  const auto load = [&](int c) {
    if (c >= 0) {
      auto& stage = shared.stages[c % kStages];
      const int64_t from = int64_t{c} * kC;
      const int rows = min(kC, span.length - c * kC);
      load_tile<kC, kN, shared_t::kWarps * 32>(stage.q, q + from * stride_n, stride_n, rows);
      load_tile<kC, kSlice, shared_t::kWarps * 32>(stage.grad_out, grad_out + from * stride_p,
                                                   stride_p, rows);
      const int row = static_cast<int>(threadIdx.x);
      if (row < kC) cp_async<4>(&stage.adt[row], adt + from + (row < rows ? row : 0), row < rows);
    }
    // An empty group too: the waits count groups.
    cp_async_commit_group();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) load(num_chunks - 1 - s);

  const int64_t at_state = ((sequence * problem.num_heads + head) * p_dim + slice) * kN;
  tiling_t state;
  if (problem.grad_final_state != nullptr) {
#pragma unroll
    for (int m = 0; m < tiling_t::kTilesM; ++m) {
#pragma unroll
      for (int t = 0; t < tiling_t::kTilesN; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 pair =
              *reinterpret_cast<const float2*>(problem.grad_final_state + at_state +
                                               tiling_t::row(m, half) * kN + tiling_t::column(t));
          state.sums[m][t][half * 2] = pair.x;
          state.sums[m][t][half * 2 + 1] = pair.y;
        }
      }
    }
  }
  auto* grad_states =
      static_cast<scalar_t*>(problem.grad_states) +
      (((batch * problem.num_heads + head) * problem.num_chunks + first) * p_dim + slice) * kN;
  const int period = max(static_cast<int>(problem.chunks_per_cta), 1);
  float* decay = shared.decay[warp];
  for (int c = num_chunks - 1; c >= 0; --c) {
    cp_async_wait_group<kStages - 2>();
    // All threads' copies of this chunk have landed, and all have used the one whose room is next.
    __syncthreads();
    load(c - (kStages - 1));
    const auto& stage = shared.stages[c % kStages];
    if (c == num_chunks - 1 || (first + c + 1) % period == 0)
      store(state, grad_states + int64_t{c} * p_dim * kN, kN, kSlice);
    const float2 own = make_float2(stage.adt[2 * lane], stage.adt[2 * lane + 1]);
    const float2 cs = prefix_sum(own);
    const float2 e = make_float2(exp2f(cs.x * kLog2e), exp2f(cs.y * kLog2e));
    *reinterpret_cast<float2*>(&decay[2 * lane]) = e;
    const float whole = __shfl_sync(kAll, e.y, 31);
    // The lanes read each other's factors.
    __syncwarp();
#pragma unroll
    for (int m = 0; m < tiling_t::kTilesM; ++m) {
#pragma unroll
      for (int t = 0; t < tiling_t::kTilesN; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state.sums[m][t][i] *= whole;
      }
    }
    multiply<scalar_t, Operand::kTransposed, Operand::kAsStored, kC, kSlice, kN>(
        state, stage.grad_out, stage.q, 0, kC, [&](int k, uint32_t(&left)[4]) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 factor =
                *reinterpret_cast<const float2*>(&decay[k + i / 2 * 8 + lane % 4 * 2]);
            const float2 value = widen<scalar_t>(left[i]);
            left[i] = narrow<scalar_t>(value.x * factor.x, value.y * factor.y);
          }
        });
    // The factors of the next chunk are written over these.
    __syncwarp();
  }
#pragma unroll
  for (int m = 0; m < tiling_t::kTilesM; ++m) {
#pragma unroll
    for (int t = 0; t < tiling_t::kTilesN; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(problem.grad_initial_state + at_state +
                                   tiling_t::row(m, half) * kN + tiling_t::column(t)) =
            make_float2(state.sums[m][t][half * 2], state.sums[m][t][half * 2 + 1]);
    }
  }
}

// ---- all the rest, per chunk ----

template <typename scalar_t, int kN, int kP>
struct ChunkShared {
  scalar_t grad_out[kC * kP], v[kC * kP];
  scalar_t q[kC * kN], k[kC * kN];
  scalar_t state[kP * kN], grad_state[kP * kN];
  scalar_t masked_e[kC * kC], masked_t[kC * kC];
  float cs[kC];         // in units of log2
  float decay_in[kC];   // e^{cs_i}
  float decay_out[kC];  // e^{cs_end - cs_j}
  float direct[kC];     // d + qk_dot_j
  // Parts of r_i and w_j, one a warp that holds some of its terms.
  float w_rows[2][kC], w_columns[4][kC];
  float r[4][kC], w[4][kC];
  float sigma[kThreads / 32];
};

/// Where the CTA's chunk lies.
struct Chunk {
  int length;
  int64_t token;   // its first row in [b s]
  int64_t scalar;  // its first element in [b, h, s]
};

__device__ Chunk chunk_of(const SisoBackward& problem) {
  const int64_t head = blockIdx.x, batch = blockIdx.y, chunk = blockIdx.z;
  int64_t begin = chunk * kC;
  int length = static_cast<int>(min(int64_t{kC}, problem.seqlen - begin));
  if (problem.cu_seqlens != nullptr) {
    begin = problem.chunk_spans[3 * chunk];
    length = problem.chunk_spans[3 * chunk + 1];
  }
  return {length, batch * problem.seqlen + begin,
          (batch * problem.num_heads + head) * problem.seqlen + begin};
}

/// Warp 0: the decays of the chunk. Tokens behind its end have adt = 0, so that cs stays.
template <typename shared_t>
__device__ void load_decays(const SisoBackward& problem, const Chunk& chunk, shared_t& shared) {
  const int j = 2 * static_cast<int>(threadIdx.x);
  const float* adt = problem.adt + chunk.scalar;
  const float* qk_dot = problem.qk_dot + chunk.scalar;
  const float d = problem.d == nullptr ? 0.0f : problem.d[blockIdx.x];
  const bool has[2] = {j < chunk.length, j + 1 < chunk.length};
  const float2 cs = prefix_sum(make_float2(has[0] ? adt[j] : 0.0f, has[1] ? adt[j + 1] : 0.0f));
  const float end = __shfl_sync(kAll, cs.y, 31);
  const float sums[2] = {cs.x, cs.y};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    shared.cs[j + i] = sums[i] * kLog2e;
    shared.decay_in[j + i] = exp2f(sums[i] * kLog2e);
    shared.decay_out[j + i] = exp2f((end - sums[i]) * kLog2e);
    shared.direct[j + i] = d + (has[i] ? qk_dot[j + i] : 0.0f);
  }
}

/// Rounds E M and T M into shared memory, writes grad_qk_dot from E's diagonal, and sums the rows
/// and columns of W = M E T. A warp above the diagonal holds nothing.
template <typename scalar_t, typename shared_t, typename tiling_t>
__device__ void mask(const tiling_t& e, const tiling_t& t, bool is_above, float* grad_qk_dot,
                     int length, shared_t& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float rows[2] = {}, columns[tiling_t::kTilesN][2] = {};
  if (!is_above) {
#pragma unroll
    for (int tile = 0; tile < tiling_t::kTilesN; ++tile) {
      const int column = tiling_t::column(tile);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tiling_t::row(0, half);
        float em[2], tm[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float value = e.sums[0][tile][half * 2 + i];
          if (row == column + i && row < length) grad_qk_dot[row] = value;
          // Below the diagonal the exponent is not positive.
          const float factor =
              row > column + i ? exp2f(shared.cs[row] - shared.cs[column + i]) : 0.0f;
          em[i] = value * factor;
          tm[i] = t.sums[0][tile][half * 2 + i] * factor;
          const float product = em[i] * t.sums[0][tile][half * 2 + i];
          rows[half] += product;
          columns[tile][i] += product;
        }
        const uint32_t to = at<kC>(row, column);
        *reinterpret_cast<uint32_t*>(shared.masked_e + to) = narrow<scalar_t>(em[0], em[1]);
        *reinterpret_cast<uint32_t*>(shared.masked_t + to) = narrow<scalar_t>(tm[0], tm[1]);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(rows[half]);
    if (lane % 4 == 0) shared.w_rows[tiling_t::warp_n()][tiling_t::row(0, half)] = sum;
  }
#pragma unroll
  for (int tile = 0; tile < tiling_t::kTilesN; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = columns[tile][i];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
      if (lane < 4) shared.w_columns[tiling_t::warp_m()][tiling_t::column(tile) + i] = sum;
    }
  }
}

/// result[row, :] *= factor[row]; with `other`, sums[warp][row] = <result[row, :], other[row, :]>
/// over the warp's columns.
template <typename scalar_t, int kWidth, bool kHasOther, typename tiling_t>
__device__ void scale_rows(tiling_t& result, const float* factor, const scalar_t* other,
                           float (*sums)[kC]) {
#pragma unroll
  for (int m = 0; m < tiling_t::kTilesM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tiling_t::row(m, half);
      const float by = factor[row];
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < tiling_t::kTilesN; ++t) {
        float* pair = &result.sums[m][t][half * 2];
        pair[0] *= by;
        pair[1] *= by;
        if constexpr (kHasOther) {
          const float2 value = widen<scalar_t>(
              *reinterpret_cast<const uint32_t*>(other + at<kWidth>(row, tiling_t::column(t))));
          sum += pair[0] * value.x + pair[1] * value.y;
        }
      }
      if constexpr (kHasOther) {
        sum = quad_sum(sum);
        if (threadIdx.x % 4 == 0) sums[tiling_t::warp_n()][row] = sum;
      }
    }
  }
}

/// <state, grad_state>, one part a warp.
template <typename scalar_t, int kSize, typename shared_t>
__device__ void sum_sigma(shared_t& shared) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kSize / 8 / kThreads + (kSize / 8 % kThreads != 0); ++i) {
    const int word = i * kThreads + static_cast<int>(threadIdx.x);
    if (kSize / 8 % kThreads != 0 && word >= kSize / 8) continue;
    // Both tiles are swizzled alike.
    const uint4 x = reinterpret_cast<const uint4*>(shared.state)[word];
    const uint4 y = reinterpret_cast<const uint4*>(shared.grad_state)[word];
    const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 left = widen<scalar_t>(xs[j]), right = widen<scalar_t>(ys[j]);
      sum += left.x * right.x + left.y * right.y;
    }
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
  if (threadIdx.x % 32 == 0) shared.sigma[threadIdx.x / 32] = sum;
}

/// Warp 0: grad_adt_t = sigma + sum_{i >= t} r_i + sum_{j < t} w_j.
template <int kWarpsR, int kWarpsW, typename shared_t>
__device__ void store_grad_adt(const shared_t& shared, float* grad_adt, int length) {
  const int j = 2 * static_cast<int>(threadIdx.x);
  float r[2], w[2], sigma = 0.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = j + i;
    r[i] = shared.w_rows[0][t] + shared.w_rows[1][t];
#pragma unroll
    for (int warp = 0; warp < kWarpsR; ++warp) r[i] += shared.r[warp][t];
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) r[i] -= shared.w_columns[warp][t];
    w[i] = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kWarpsW; ++warp) w[i] += shared.w[warp][t];
  }
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) sigma += shared.sigma[warp];
  sigma *= shared.decay_in[kC - 1];
  const float2 below_r = prefix_sum(make_float2(r[0], r[1]));
  const float2 below_w = prefix_sum(make_float2(w[0], w[1]));
  const float all_r = __shfl_sync(kAll, below_r.y, 31);
  if (j < length) grad_adt[j] = sigma + (all_r - below_r.x + r[0]) + (below_w.x - w[0]);
  if (j + 1 < length) grad_adt[j + 1] = sigma + (all_r - below_r.y + r[1]) + (below_w.y - w[1]);
}

// Longer than 60 lines: a chunk's products in order, each with what the one before left in shared
// memory.
template <typename scalar_t, int kN, int kP>
__global__ void __launch_bounds__(kThreads,
                                  sizeof(ChunkShared<scalar_t, kN, kP>) <= 112 * 1024 ? 2 : 1)
    chunk_kernel(SisoBackward problem) {
  using shared_t = ChunkShared<scalar_t, kN, kP>;
  constexpr int kWarps = kThreads / 32;
  constexpr auto kAs = Operand::kAsStored, kT = Operand::kTransposed;
  extern __shared__ uint4 storage[];
  auto& shared = *reinterpret_cast<shared_t*>(storage);
  const Chunk chunk = chunk_of(problem);
  if (chunk.length <= 0) return;
  const int64_t head = blockIdx.x;
  const int64_t stride_n = problem.num_heads * kN, stride_p = problem.num_heads * kP;
  const int64_t at_n = chunk.token * stride_n + head * kN;
  const int64_t at_p = chunk.token * stride_p + head * kP;
  const int64_t row = (blockIdx.y * problem.num_heads + head) * problem.num_chunks * kP * kN;
  const int64_t at_state = row + blockIdx.z * problem.state_chunk;
  const int64_t at_grad_state = row + int64_t{blockIdx.z} * kP * kN;
  const auto in = [](const void* tensor, int64_t offset) {
    return static_cast<const scalar_t*>(tensor) + offset;
  };
  const auto out = [](void* tensor, int64_t offset) {
    return static_cast<scalar_t*>(tensor) + offset;
  };
  // In the order of their use.
  load_tile<kC, kP, kThreads>(shared.grad_out, in(problem.grad_out, at_p), stride_p, chunk.length);
  load_tile<kC, kP, kThreads>(shared.v, in(problem.v, at_p), stride_p, chunk.length);
  cp_async_commit_group();
  load_tile<kC, kN, kThreads>(shared.q, in(problem.q, at_n), stride_n, chunk.length);
  load_tile<kC, kN, kThreads>(shared.k, in(problem.k, at_n), stride_n, chunk.length);
  cp_async_commit_group();
  load_tile<kP, kN, kThreads>(shared.state, in(problem.states, at_state), problem.state_row, kP);
  load_tile<kP, kN, kThreads>(shared.grad_state, in(problem.grad_states, at_grad_state), kN, kP);
  cp_async_commit_group();
  if (threadIdx.x < 32) load_decays(problem, chunk, shared);

  using square_t = Tiling<kC, kC, kWarps>;
  {
    square_t e, t;
    const bool is_above = square_t::first_column() >= square_t::end_row();
    cp_async_wait_group<2>();
    // grad_out and v of all threads have landed, and warp 0's decays are visible.
    __syncthreads();
    if (!is_above) multiply<scalar_t, kAs, kT, kP, kP, kP>(e, shared.grad_out, shared.v);
    cp_async_wait_group<1>();
    // q and k have landed.
    __syncthreads();
    if (!is_above) multiply<scalar_t, kAs, kT, kN, kN, kN>(t, shared.q, shared.k);
    mask<scalar_t>(e, t, is_above, problem.grad_qk_dot + chunk.scalar, chunk.length, shared);
  }
  cp_async_wait_group<0>();
  // The states have landed; all warps read the masked E and T.
  __syncthreads();

  using tiling_n = Tiling<kC, kN, kWarps>;
  using tiling_p = Tiling<kC, kP, kWarps>;
  {
    tiling_n grad_q;
    multiply<scalar_t, kAs, kAs, kP, kP, kN>(grad_q, shared.grad_out, shared.state);
    scale_rows<scalar_t, kN, true>(grad_q, shared.decay_in, shared.q, shared.r);
    multiply<scalar_t, kAs, kAs, kC, kC, kN>(grad_q, shared.masked_e, shared.k, 0,
                                             tiling_n::end_row());
    store(grad_q, out(problem.grad_q, at_n), stride_n, chunk.length);
  }
  {
    tiling_n grad_k;
    multiply<scalar_t, kAs, kAs, kP, kP, kN>(grad_k, shared.v, shared.grad_state);
    scale_rows<scalar_t, kN, false>(grad_k, shared.decay_out, shared.k, shared.w);
    multiply<scalar_t, kT, kAs, kC, kC, kN>(grad_k, shared.masked_e, shared.q,
                                            tiling_n::first_row(), kC);
    store(grad_k, out(problem.grad_k, at_n), stride_n, chunk.length);
  }
  {
    tiling_p grad_v;
    multiply<scalar_t, kAs, kT, kN, kN, kN>(grad_v, shared.k, shared.grad_state);
    scale_rows<scalar_t, kP, true>(grad_v, shared.decay_out, shared.v, shared.w);
    multiply<scalar_t, kT, kAs, kC, kC, kP>(grad_v, shared.masked_t, shared.grad_out,
                                            tiling_p::first_row(), kC);
#pragma unroll
    for (int m = 0; m < tiling_p::kTilesM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tiling_p::row(m, half);
        const float factor = shared.direct[row];
#pragma unroll
        for (int t = 0; t < tiling_p::kTilesN; ++t) {
          const float2 value = widen<scalar_t>(*reinterpret_cast<const uint32_t*>(
              shared.grad_out + at<kP>(row, tiling_p::column(t))));
          grad_v.sums[m][t][half * 2] += factor * value.x;
          grad_v.sums[m][t][half * 2 + 1] += factor * value.y;
        }
      }
    }
    store(grad_v, out(problem.grad_v, at_p), stride_p, chunk.length);
  }
  sum_sigma<scalar_t, kP * kN>(shared);
  // Warp 0 adds the parts of all warps.
  __syncthreads();
  if (threadIdx.x < 32)
    store_grad_adt<tiling_n::kWarpsN, tiling_p::kWarpsN>(shared, problem.grad_adt + chunk.scalar,
                                                         chunk.length);
}

// ---- host ----

template <typename scalar_t, int kN, int kSlice>
cudaError_t launch_scan(const SisoBackward& problem, cudaStream_t stream) {
  using shared_t = ScanShared<scalar_t, kN, kSlice>;
  const dim3 grid(static_cast<unsigned>(problem.head_dim_v / kSlice * problem.num_heads),
                  static_cast<unsigned>(problem.num_sequences));
  return launch_kernel(
      scan_kernel<scalar_t, kN, kSlice>,
      {.grid = grid, .threads = shared_t::kWarps * 32, .bytes = sizeof(shared_t), .stream = stream},
      problem);
}

template <typename scalar_t, int kN, int kP>
cudaError_t launch_chunks(const SisoBackward& problem, cudaStream_t stream) {
  if (problem.num_chunks * problem.batch == 0) return cudaSuccess;
  // The first chunks first: the scan has touched them last, so that some are still in L2.
  const dim3 grid(static_cast<unsigned>(problem.num_heads), static_cast<unsigned>(problem.batch),
                  static_cast<unsigned>(problem.num_chunks));
  return launch_kernel(chunk_kernel<scalar_t, kN, kP>,
                       {.grid = grid,
                        .threads = kThreads,
                        .bytes = sizeof(ChunkShared<scalar_t, kN, kP>),
                        .stream = stream},
                       problem);
}

template <typename scalar_t, int kN, int kP>
cudaError_t launch_both(const SisoBackward& problem, int64_t num_processors, cudaStream_t stream) {
  // With fewer CTAs than multiprocessors, slices of 32 rows of the state fill more of them.
  const bool is_wide =
      kP >= 64 && problem.num_sequences * problem.num_heads * (kP / 64) >= num_processors;
  cudaError_t status = cudaSuccess;
  if (problem.has_scan)
    status = is_wide ? launch_scan<scalar_t, kN, 64>(problem, stream)
                     : launch_scan<scalar_t, kN, 32>(problem, stream);
  if (status != cudaSuccess) return status;
  return problem.chunks_per_cta > 0 ? launch_walk(problem, stream)
                                    : launch_chunks<scalar_t, kN, kP>(problem, stream);
}

bool is_head_dim(int64_t extent) { return extent == 32 || extent == 64 || extent == 128; }

/// Calls `body` with the head dims as compile-time constants.
template <typename Body>
auto with_head_dims(const SisoBackward& problem, const Body& body) {
  const auto with_p = [&](auto n) {
    if (problem.head_dim_v == 32) return body(n, std::integral_constant<int, 32>());
    if (problem.head_dim_v == 64) return body(n, std::integral_constant<int, 64>());
    return body(n, std::integral_constant<int, 128>());
  };
  if (problem.head_dim_qk == 32) return with_p(std::integral_constant<int, 32>());
  if (problem.head_dim_qk == 64) return with_p(std::integral_constant<int, 64>());
  return with_p(std::integral_constant<int, 128>());
}

}  // namespace

bool is_served(const SisoBackward& problem) {
  return is_head_dim(problem.head_dim_qk) && is_head_dim(problem.head_dim_v) &&
         problem.num_chunks <= kMaxGrid && problem.batch <= kMaxGrid &&
         problem.num_sequences <= kMaxGrid && problem.num_heads <= kMaxGrid &&
         problem.seqlen < (int64_t{1} << 30);
}

int64_t shared_bytes(const SisoBackward& problem) {
  return with_head_dims(problem, [](auto n, auto p) {
    constexpr size_t kScan = sizeof(ScanShared<bf16, decltype(n)::value, 64>);
    constexpr size_t kRest = sizeof(ChunkShared<bf16, decltype(n)::value, decltype(p)::value>);
    return static_cast<int64_t>(std::max(kScan, kRest));
  });
}

cudaError_t launch_siso_backward(const SisoBackward& problem, ElementType type,
                                 int64_t num_processors, cudaStream_t stream) {
  if (problem.num_sequences * problem.num_heads == 0) return cudaSuccess;
  return with_head_dims(problem, [&](auto n, auto p) {
    constexpr int kN = decltype(n)::value, kP = decltype(p)::value;
    return type == ElementType::kBFloat16
               ? launch_both<bf16, kN, kP>(problem, num_processors, stream)
               : launch_both<__half, kN, kP>(problem, num_processors, stream);
  });
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
