#pragma once
#include "mimo_chunk.cuh"

// Axes: b batch, s seqlen, r num_ranks, h num_heads, n head_dim_qk, p head_dim_v; a row of a tile
// is (token, rank), 64 rows a chunk.
// chunk_kernel: grid (h, chunks), 256 threads; behind the states. All else of a chunk and head: 112
//   KiB of shared memory at n = 128, p = 64, r = 4, two CTAs per SM. E = g x^T and T = q k^T are
//   formed and masked once, in blocks of 16 on and below the diagonal; a token's own ranks are part
//   of them, for one angle turns both q and k and leaves their product alone.
// sum_kernel, steps_kernel: sums over chunks in a fixed order, and grad_dt, grad_trap.
// Products run on mma.sync m16n8k16 with float32 sums. Rounded to bfloat16: q and k after the turn,
//   x, g, masked E and T, S0, dS, and what is stored as bfloat16.
// Limits, checked by is_served: r in {1, 2, 4, 8}, n and p in {64, 128}.
namespace patchbench::ops::mamba3_mimo_gqa_bwd {

// ---- all the rest, per chunk ----

template <int kN, int kP>
struct alignas(16) ChunkShared {
  bf16 q[kRows * kN], k[kRows * kN];
  bf16 x[kRows * kP], g[kRows * kP];
  bf16 state[kP * kN], grad_state[kP * kN];
  bf16 masked_e[kRows * kRows], masked_t[kRows * kRows];
  Steps steps;
  // Of rows, one part a warp that holds some of a row's or column's terms.
  float w_rows[2][kRows], own[2][kRows];    // sums over b of M E T off the diagonal; of E T on it
  float w_columns[kWarpsM][kRows];          // sums over a of e^{cs_i - cs_j} E T off the diagonal
  float read[2][kRows], written[2][kRows];  // <q, S0^T g>, <k, dS^T x>
  float sigma[kThreads / 32], grad_d[kThreads / 32];
  // Behind it: turns [tokens, n / 2], then sums over tokens [kWarpsM, ranks * p].
};

template <int kN, int kP>
size_t chunk_bytes(const MimoBackward& problem) {
  return sizeof(ChunkShared<kN, kP>) +
         static_cast<size_t>(problem.chunk_tokens() * (kN / 2)) * sizeof(float2) +
         static_cast<size_t>(kWarpsM * problem.num_ranks * kP) * sizeof(float);
}

/// What a CTA of chunk_kernel works on.
template <int kN, int kP>
struct Work {
  const MimoBackward& problem;
  ChunkShared<kN, kP>& shared;
  Chunk c;
  int64_t head, chunk;
  int ranks, log_ranks;
  const float2* turns;
  float* sums;

  __device__ int token(int row) const { return row >> log_ranks; }
  __device__ int rank(int row) const { return row & (ranks - 1); }
  /// A row's place in [b, s, h, p].
  __device__ int64_t value_at(int row) const {
    return ((c.token + token(row)) * problem.num_heads + head) * kP;
  }
  __device__ int num_rows() const { return c.length << log_ranks; }
};

/// Rounds E M and T M into shared memory, and sums rows and columns of E T with and without M. What
/// lies above the diagonal, in blocks of 16, is neither made nor read.
template <int kN, int kP>
__device__ void mask(const Work<kN, kP>& work, const Part<kRows>& e, const Part<kRows>& t,
                     int end_column) {
  auto& shared = work.shared;
  using part_t = Part<kRows>;
  float rows[2] = {}, own[2] = {}, diagonal = 0.0f, columns[part_t::kTiles][2] = {};
  PB_UNROLL
  for (int tile = 0; tile < part_t::kTiles; ++tile) {
    const int column = part_t::column(tile);
    if (part_t::tile_column(tile) >= end_column) continue;
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = part_t::row(half), i = work.token(row);
      float em[2], tm[2];
      PB_UNROLL
      for (int x = 0; x < 2; ++x) {
        const int j = work.token(column + x);
        const float value = e.sums[tile][half * 2 + x], other = t.sums[tile][half * 2 + x];
        // Below the diagonal the exponent is not positive.
        const float decay = i > j ? exp2f(shared.steps.cs[i] - shared.steps.cs[j]) : 0.0f;
        const float factor = i == j ? shared.steps.gam[i] : decay * shared.steps.s[j];
        const float product = value * other;
        em[x] = value * factor;
        tm[x] = other * factor;
        columns[tile][x] += product * decay;
        if (i > j) rows[half] += product * factor;
        if (i == j) own[half] += product;
        if (row == column + x) diagonal += value;
      }
      const uint32_t to = at<kRows>(row, column);
      *reinterpret_cast<uint32_t*>(shared.masked_e + to) = narrow(em[0], em[1]);
      *reinterpret_cast<uint32_t*>(shared.masked_t + to) = narrow(tm[0], tm[1]);
    }
  }
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float row_sum = quad_sum(rows[half]), own_sum = quad_sum(own[half]);
    if (part_t::lane() % 4 == 0) {
      shared.w_rows[part_t::warp_n()][part_t::row(half)] = row_sum;
      shared.own[part_t::warp_n()][part_t::row(half)] = own_sum;
    }
  }
  PB_UNROLL
  for (int tile = 0; tile < part_t::kTiles; ++tile) {
    PB_UNROLL
    for (int x = 0; x < 2; ++x) {
      const float sum = lane_sum(columns[tile][x], 4, 32);
      if (part_t::lane() < 4) shared.w_columns[part_t::warp_m()][part_t::column(tile) + x] = sum;
    }
  }
  diagonal = lane_sum(diagonal, 1, 32);
  if (part_t::lane() == 0) shared.grad_d[threadIdx.x / 32] = diagonal;
}

/// <S0, dS>, one part a warp.
template <int kN, int kP>
__device__ void sum_sigma(const Work<kN, kP>& work) {
  float sum = 0.0f;
  const auto* a = reinterpret_cast<const uint32_t*>(work.shared.state);
  const auto* b = reinterpret_cast<const uint32_t*>(work.shared.grad_state);
  for (int i = static_cast<int>(threadIdx.x); i < kP * kN / 2; i += kThreads) {
    const float2 x = widen(a[i]), y = widen(b[i]);
    sum += x.x * y.x + x.y * y.y;
  }
  sum = lane_sum(sum, 1, 32);
  if (threadIdx.x % 32 == 0) work.shared.sigma[threadIdx.x / 32] = sum;
}

/// Sums [rank, p] over the chunk's tokens, from each thread's own rows, to partials. All threads
/// come here.
template <int kN, int kP>
__device__ void put_token_sums(const Work<kN, kP>& work, const float (&own)[Part<kP>::kTiles][2],
                               float* partials) {
  using part_t = Part<kP>;
  const int size = work.ranks * kP;
  // The last sums have been read.
  __syncthreads();
  PB_UNROLL
  for (int t = 0; t < part_t::kTiles; ++t) {
    PB_UNROLL
    for (int x = 0; x < 2; ++x) {
      const float sum = lane_sum(own[t][x], 4 * work.ranks, 32);
      const int rank = part_t::lane() / 4;
      if (rank < work.ranks)
        work.sums[part_t::warp_m() * size + rank * kP + part_t::column(t) + x] = sum;
    }
  }
  // All warps' sums are there.
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    float sum = 0.0f;
    PB_UNROLL
    for (int m = 0; m < kWarpsM; ++m) sum += work.sums[m * size + i];
    partials[i] = sum;
  }
}

/// Of a pair of columns, its sum over a token's ranks, stored by the lane of the first rank.
template <int kN, int kP>
__device__ void put_rank_sum(const Work<kN, kP>& work, float2 value, void* to, int row,
                             int column) {
  value.x = lane_sum(value.x, 4, 4 * work.ranks);
  value.y = lane_sum(value.y, 4, 4 * work.ranks);
  if (work.rank(row) == 0 && row < work.num_rows())
    *reinterpret_cast<uint32_t*>(static_cast<bf16*>(to) + work.value_at(row) + column) =
        narrow(value.x, value.y);
}

__device__ inline float2 pair_of(const void* low, int64_t at) {
  return widen(*reinterpret_cast<const uint32_t*>(static_cast<const bf16*>(low) + at));
}
__device__ inline float2 pair_of(const float* wide, int64_t at) {
  return *reinterpret_cast<const float2*>(wide + at);
}

/// grad_z, mimo_z and mimo_o of y.
template <int kN, int kP>
__device__ void put_gate(const Work<kN, kP>& work, const Part<kP>& y, float* partials) {
  using part_t = Part<kP>;
  const MimoBackward& problem = work.problem;
  float of_z[part_t::kTiles][2] = {}, of_o[part_t::kTiles][2] = {};
  const float d = problem.d == nullptr ? 0.0f : problem.d[work.head];
  PB_UNROLL
  for (int t = 0; t < part_t::kTiles; ++t) {
    const int column = part_t::column(t);
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = part_t::row(half);
      const bool has = row < work.num_rows();
      const int64_t value = has ? work.value_at(row) + column : 0;
      const int64_t of_rank = (work.head * work.ranks + work.rank(row)) * kP + column;
      const float2 x = pair_at<kP>(work.shared.x, row, column);
      float2 grad = {}, z = {}, by_o = make_float2(1.0f, 1.0f), by_z = {};
      if (has && problem.mimo_o != nullptr) {
        grad = pair_of(problem.grad_out, value);
        by_o = pair_of(problem.mimo_o, of_rank);
      } else if (has) {
        const int64_t at_rank = (work.c.token << work.log_ranks) + row;
        grad = pair_of(problem.grad_out, (at_rank * problem.num_heads + work.head) * kP + column);
      }
      if (problem.z != nullptr) {
        if (has) z = pair_of(problem.z, value);
        by_z = pair_of(problem.mimo_z, of_rank);
      }
      const float grads[2] = {grad.x, grad.y}, zs[2] = {z.x, z.y}, xs[2] = {x.x, x.y};
      const float bys_o[2] = {by_o.x, by_o.y}, bys_z[2] = {by_z.x, by_z.y};
      float to_z[2];
      PB_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float value_y = y.sums[t][2 * half + i] + d * xs[i];
        const float u = zs[i] * bys_z[i], sg = sigmoid(u);
        const float gate = problem.z != nullptr ? u * sg : 1.0f;
        of_o[t][i] += grads[i] * value_y * gate;
        const float grad_u = grads[i] * bys_o[i] * value_y * sg * (1.0f + u * (1.0f - sg));
        of_z[t][i] += grad_u * zs[i];
        to_z[i] = grad_u * bys_z[i];
      }
      if (problem.z != nullptr)
        put_rank_sum(work, make_float2(to_z[0], to_z[1]), problem.grad_z, row, column);
    }
  }
  put_token_sums(work, of_z, partials);
  put_token_sums(work, of_o, partials + work.ranks * kP);
}

/// grad_v and mimo_v of grad_x.
template <int kN, int kP>
__device__ void put_values(const Work<kN, kP>& work, const Part<kP>& grad_x, float* partials) {
  using part_t = Part<kP>;
  const MimoBackward& problem = work.problem;
  float of_v[part_t::kTiles][2] = {};
  const float d = problem.d == nullptr ? 0.0f : problem.d[work.head];
  PB_UNROLL
  for (int t = 0; t < part_t::kTiles; ++t) {
    const int column = part_t::column(t);
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = part_t::row(half);
      const bool has = row < work.num_rows();
      const float2 g = pair_at<kP>(work.shared.g, row, column);
      const float2 by =
          pair_of(problem.mimo_v, (work.head * work.ranks + work.rank(row)) * kP + column);
      const float2 v =
          has ? pair_of(problem.v, work.value_at(row) + column) : make_float2(0.0f, 0.0f);
      const float2 grad =
          make_float2(grad_x.sums[t][2 * half] + d * g.x, grad_x.sums[t][2 * half + 1] + d * g.y);
      of_v[t][0] += grad.x * v.x;
      of_v[t][1] += grad.y * v.y;
      put_rank_sum(work, make_float2(grad.x * by.x, grad.y * by.y), problem.grad_v, row, column);
    }
  }
  put_token_sums(work, of_v, partials);
}

/// sums[warp][row] = <part[row, :], other[row, :]> over the warp's columns.
template <int kN>
__device__ void dot_rows(const Part<kN>& part, const bf16* other, float (*sums)[kRows]) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = Part<kN>::row(half);
    float sum = 0.0f;
    PB_UNROLL
    for (int t = 0; t < Part<kN>::kTiles; ++t) {
      const float2 pair = pair_at<kN>(other, row, Part<kN>::column(t));
      sum += part.sums[t][2 * half] * pair.x + part.sums[t][2 * half + 1] * pair.y;
    }
    sum = quad_sum(sum);
    if (Part<kN>::lane() % 4 == 0) sums[Part<kN>::warp_n()][row] = sum;
  }
}

/// Gradients by the angles of a turned tile, added to `turning`; turns the part back.
template <int kN, int kP>
__device__ void turn_back(const Work<kN, kP>& work, Part<kN>& part, const bf16* turned,
                          float (&turning)[Part<kN>::kHalf][4]) {
  using part_t = Part<kN>;
  PB_UNROLL
  for (int t = 0; t < part_t::kHalf; ++t) {
    const int column = part_t::column(t);
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = part_t::row(half);
      const float2 low = pair_at<kN>(turned, row, column);
      const float2 high = pair_at<kN>(turned, row, kN / 2 + column);
      const float lows[2] = {low.x, low.y}, highs[2] = {high.x, high.y};
      PB_UNROLL
      for (int i = 0; i < 2; ++i) {
        float& a = part.sums[t][2 * half + i];
        float& b = part.sums[part_t::kHalf + t][2 * half + i];
        const float2 turn = work.turns[work.token(row) * (kN / 2) + column + i];
        turning[t][2 * half + i] += b * lows[i] - a * highs[i];
        const float back = a * turn.x + b * turn.y;
        b = b * turn.x - a * turn.y;
        a = back;
      }
    }
  }
}

template <int kN, int kP>
__device__ void put_angles(const Work<kN, kP>& work, const float (&turning)[Part<kN>::kHalf][4]) {
  using part_t = Part<kN>;
  const int count = static_cast<int>(work.problem.num_angles);
  PB_UNROLL
  for (int t = 0; t < part_t::kHalf; ++t) {
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = part_t::row(half);
      PB_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float sum = lane_sum(turning[t][2 * half + i], 4, 4 * work.ranks);
        const int column = part_t::column(t) + i;
        const int64_t token = work.c.token + work.token(row);
        if (work.rank(row) == 0 && row < work.num_rows() && column < count)
          work.problem.grad_angles[(token * work.problem.num_heads + work.head) * count + column] =
              sum;
      }
    }
  }
}

/// Warp 0: adt, and of s and gam what steps_kernel needs; d.
template <int kN, int kP>
__device__ void put_steps(const Work<kN, kP>& work, float* grad_d) {
  const auto& shared = work.shared;
  const int lane = static_cast<int>(threadIdx.x);
  float sigma = 0.0f, d = 0.0f;
  PB_UNROLL
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    sigma += shared.sigma[warp];
    d += shared.grad_d[warp];
  }
  const int64_t first = work.c.step + work.head * work.problem.seqlen;
  float r[2] = {}, w[2] = {};
  PB_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    if (t >= work.c.length) continue;
    float columns = 0.0f, written = 0.0f, own = 0.0f, rows = 0.0f, read = 0.0f;
    for (int row = t << work.log_ranks; row < (t + 1) << work.log_ranks; ++row) {
      PB_UNROLL
      for (int m = 0; m < kWarpsM; ++m) columns += shared.w_columns[m][row];
      written += shared.written[0][row] + shared.written[1][row];
      read += shared.read[0][row] + shared.read[1][row];
      rows += shared.w_rows[0][row] + shared.w_rows[1][row];
      own += shared.own[0][row] + shared.own[1][row];
    }
    written *= shared.steps.decay_out[t];
    r[i] = read * shared.steps.decay_in[t] + rows - shared.steps.s[t] * columns;
    w[i] = shared.steps.s[t] * written;
    work.problem.grad_steps[first + t] = written + columns;
    work.problem.grad_own[first + t] = own;
  }
  const float2 behind = suffix_sum(make_float2(r[0], r[1]));
  const float2 before = prefix_sum(make_float2(w[0], w[1]));
  const float from_r[2] = {behind.x, behind.y}, to_w[2] = {before.x - w[0], before.y - w[1]};
  PB_UNROLL
  for (int i = 0; i < 2; ++i) {
    if (2 * lane + i < work.c.length)
      work.problem.grad_adt[first + 2 * lane + i] =
          shared.steps.whole * sigma + from_r[i] + to_w[i];
  }
  if (lane == 0) *grad_d = d;
}

/// y, grad_x and the values derived from them.
template <int kN, int kP>
__device__ void do_values(const Work<kN, kP>& work, float* partials) {
  auto& shared = work.shared;
  const Steps& steps = shared.steps;
  const int row0 = Part<kP>::warp_m() * 16;
  {
    Part<kP> y;
    multiply<Operand::kAsStored, Operand::kTransposed, kN, kN, kN>(y, shared.q, shared.state);
    y.scale([&](int row) { return steps.decay_in[work.token(row)]; });
    multiply<Operand::kAsStored, Operand::kAsStored, kRows, kRows, kP>(y, shared.masked_t, shared.x,
                                                                       0, row0 + 16);
    put_gate(work, y, partials);
  }
  Part<kP> grad_x;
  multiply<Operand::kAsStored, Operand::kTransposed, kN, kN, kN>(grad_x, shared.k,
                                                                 shared.grad_state);
  grad_x.scale(
      [&](int row) { return steps.decay_out[work.token(row)] * steps.s[work.token(row)]; });
  multiply<Operand::kTransposed, Operand::kAsStored, kRows, kRows, kP>(grad_x, shared.masked_t,
                                                                       shared.g, row0);
  put_values(work, grad_x, partials + 2 * work.ranks * kP);
}

/// The gradients of q and k per head, and of the angles.
template <int kN, int kP>
__device__ void do_turned(const Work<kN, kP>& work) {
  auto& shared = work.shared;
  const Steps& steps = shared.steps;
  const int row0 = Part<kN>::warp_m() * 16;
  const int64_t stride = work.problem.num_heads * kN;
  const int64_t to = (work.c.token << work.log_ranks) * stride + work.head * kN;
  float turning[Part<kN>::kHalf][4] = {};
  {
    Part<kN> grad_q;
    multiply<Operand::kAsStored, Operand::kAsStored, kP, kP, kN>(grad_q, shared.g, shared.state);
    dot_rows(grad_q, shared.q, shared.read);
    grad_q.scale([&](int row) { return steps.decay_in[work.token(row)]; });
    multiply<Operand::kAsStored, Operand::kAsStored, kRows, kRows, kN>(grad_q, shared.masked_e,
                                                                       shared.k, 0, row0 + 16);
    turn_back(work, grad_q, shared.q, turning);
    store(grad_q, static_cast<bf16*>(work.problem.raw_q) + to, stride, work.num_rows());
  }
  Part<kN> grad_k;
  multiply<Operand::kAsStored, Operand::kAsStored, kP, kP, kN>(grad_k, shared.x, shared.grad_state);
  dot_rows(grad_k, shared.k, shared.written);
  grad_k.scale(
      [&](int row) { return steps.decay_out[work.token(row)] * steps.s[work.token(row)]; });
  multiply<Operand::kTransposed, Operand::kAsStored, kRows, kRows, kN>(grad_k, shared.masked_e,
                                                                       shared.q, row0);
  turn_back(work, grad_k, shared.k, turning);
  store(grad_k, static_cast<bf16*>(work.problem.raw_k) + to, stride, work.num_rows());
  put_angles(work, turning);
}

template <int kN, int kP>
__global__ void __launch_bounds__(kThreads, 2) chunk_kernel(MimoBackward problem) {
  PB_DYNAMIC_SHARED(storage);
  auto& shared = *reinterpret_cast<ChunkShared<kN, kP>*>(storage);
  auto* turns = reinterpret_cast<float2*>(&shared + 1);
  const int64_t head = blockIdx.x, chunk = blockIdx.y, place = chunk * problem.num_heads + head;
  const int64_t num_partials = problem.num_partials();
  float* const partials = problem.partials + place * num_partials;
  const Chunk c = chunk_of(problem, chunk);
  if (c.length == 0) {
    for (int64_t i = threadIdx.x; i < num_partials; i += kThreads) partials[i] = 0.0f;
    return;
  }
  const int ranks = static_cast<int>(problem.num_ranks), tokens = kRows / ranks;
  copy_tile<kN>(shared.state, static_cast<const bf16*>(problem.states) + place * kP * kN, kP);
  copy_tile<kN>(shared.grad_state, static_cast<const bf16*>(problem.grad_states) + place * kP * kN,
                kP);
  Raw<kN> q, k;
  q.load(problem, c, head, problem.q);
  k.load(problem, c, head, problem.k);
  load_turns<kN>(problem, c, head, turns);
  if (threadIdx.x < 32) load_steps(problem, c, head, shared.steps);
  fill_values<kP>(problem, c, head, nullptr, nullptr, shared.x, shared.g);
  // All threads read the turns.
  __syncthreads();
  fill_turned<kN>(problem, c, head, q, problem.q_bias, turns, shared.q);
  fill_turned<kN>(problem, c, head, k, problem.k_bias, turns, shared.k);
  cp_async_wait_all();
  // And each other's rows and copies.
  __syncthreads();
  const Work<kN, kP> work{.problem = problem,
                          .shared = shared,
                          .c = c,
                          .head = head,
                          .chunk = chunk,
                          .ranks = ranks,
                          .log_ranks = log_of(ranks),
                          .turns = turns,
                          .sums = reinterpret_cast<float*>(turns + tokens * (kN / 2))};
  {
    Part<kRows> e, t;
    const int end_column = Part<kRows>::warp_m() * 16 + 16;
    multiply<Operand::kAsStored, Operand::kTransposed, kP, kP, kP>(e, shared.g, shared.x, 0, kP, 0,
                                                                   end_column);
    multiply<Operand::kAsStored, Operand::kTransposed, kN, kN, kN>(t, shared.q, shared.k, 0, kN, 0,
                                                                   end_column);
    mask(work, e, t, end_column);
  }
  sum_sigma(work);
  // All warps read the masked products.
  __syncthreads();
  do_values(work, partials);
  do_turned(work);
  // The parts of all warps' rows are there.
  __syncthreads();
  if (threadIdx.x < 32) put_steps(work, partials + num_partials - 1);
}

// ---- over chunks ----

constexpr int kSumColumns = 32, kSumStrands = 8;

__global__ void __launch_bounds__(kSumColumns* kSumStrands) sum_kernel(MimoBackward problem) {
  __shared__ float strands[kSumStrands][kSumColumns];
  const int64_t head = blockIdx.y, size = problem.num_partials();
  const int64_t projection = problem.num_ranks * problem.head_dim_v;
  const int64_t i = int64_t{blockIdx.x} * kSumColumns + threadIdx.x;
  float sum = 0.0f;
  if (i < size) {
    for (int64_t chunk = threadIdx.y; chunk < problem.num_chunks; chunk += kSumStrands)
      sum += problem.partials[(chunk * problem.num_heads + head) * size + i];
  }
  strands[threadIdx.y][threadIdx.x] = sum;
  // The first strand reads the others.
  __syncthreads();
  if (threadIdx.y != 0 || i >= size) return;
  PB_UNROLL
  for (int strand = 1; strand < kSumStrands; ++strand) sum += strands[strand][threadIdx.x];
  float* const to[3] = {problem.grad_mimo_z, problem.grad_mimo_o, problem.grad_mimo_v};
  if (i == size - 1) {
    if (problem.grad_d != nullptr) problem.grad_d[head] = sum;
    return;
  }
  PB_UNROLL
  for (int which = 0; which < 3; ++which) {
    if (i / projection == which && to[which] != nullptr)
      to[which][head * projection + i % projection] = sum;
  }
}

/// grad_dt and grad_trap: s_t takes l_t dt_t, and (1 - l) dt of the token behind.
__global__ void __launch_bounds__(kThreads) steps_kernel(MimoBackward problem) {
  const int log_tokens = 6 - log_of(problem.num_ranks);
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t t = item & ((1 << log_tokens) - 1), pair = item >> log_tokens;
  const int64_t head = pair % problem.num_heads, chunk = pair / problem.num_heads;
  if (chunk >= problem.num_chunks) return;
  const Chunk c = chunk_of(problem, chunk);
  if (t >= c.length) return;
  const int64_t at = c.step + head * problem.seqlen + t;
  const float before = t > 0 || !c.is_first ? problem.grad_steps[at - 1] : 0.0f;
  const float l = sigmoid(trap_at(problem, at)), dt = problem.dt[at];
  const float grad_gamma = problem.grad_steps[at] + problem.grad_own[at];
  problem.grad_dt[at] = grad_gamma * l + before * (1.0f - l);
  const float grad_trap = (grad_gamma - before) * dt * l * (1.0f - l);
  if (problem.has_wide_trap) {
    static_cast<float*>(problem.grad_trap)[at] = grad_trap;
  } else {
    static_cast<bf16*>(problem.grad_trap)[at] = __float2bfloat16(grad_trap);
  }
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
