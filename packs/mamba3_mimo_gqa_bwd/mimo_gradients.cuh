#pragma once
#include "mimo_chunk.cuh"

// Axes: b batch, s seqlen, r num_ranks, h num_heads, n head_dim_qk, p head_dim_v; a row of a tile
// is (token, rank), 64 rows a chunk.
// chunk_kernel: grid (h, chunks), 256 threads; behind the states. All else of a chunk and head: 110
//   KiB of shared memory at n = 128, p = 64, r = 4, two CTAs per SM. E = g x^T and T = q k^T are
//   formed and masked once; a token's own ranks are part of them, for one angle turns both q and k
//   and leaves their product alone. y and grad_x are formed as [p, rows]: a thread then holds
//   neighbouring ranks of a token and two neighbouring columns p, so that sums over ranks and
//   tokens are mostly its own. Columns of q, k, S0 and dS are exchanged in shared memory, so that a
//   thread stores 8 neighbouring columns of the gradients of q and k.
// sum_kernel, steps_kernel: sums over chunks in a fixed order, and grad_dt, grad_trap.
// Products run on mma.sync m16n8k16 with float32 sums. Rounded to bfloat16: q and k after the turn,
//   x, g, masked E and T, S0, dS, and what is stored as bfloat16.
// Limits, checked by is_served: r in {1, 2, 4, 8}, n and p in {64, 128}.
namespace patchbench::ops::mamba3_mimo_gqa_bwd {

template <int kN, int kP>
struct alignas(16) ChunkShared {
  bf16 q[kRows * kN], k[kRows * kN];  // columns exchanged
  bf16 x[kRows * kP], g[kRows * kP];  // columns split
  bf16 state[kP * kN], grad_state[kP * kN];
  bf16 masked_e[kRows * kRows], masked_t[kRows * kRows];
  Steps steps;
  // Of tokens, one part a warp that holds some of a token's terms.
  float off[kWarpsN][kRows], own[kWarpsN][kRows];  // sums of M E T below the diagonal; of E T on it
  float columns[kWarpsM][kRows];  // sums over a of e^{cs_i - cs_j} E T below the diagonal
  float read[kWarpsM][kRows], written[kWarpsM][kRows];  // <g, S0 q>, <x, dS k>
  float sigma[kThreads / 32], grad_d[kThreads / 32];
  // Behind it: turns [tokens, n / 2].
};

template <int kN, int kP>
int64_t chunk_bytes(const MimoBackward& problem) {
  return static_cast<int64_t>(sizeof(ChunkShared<kN, kP>)) +
         problem.chunk_tokens() * (kN / 2) * int64_t{sizeof(float2)};
}

/// What a CTA of chunk_kernel works on.
template <int kN, int kP, int kRanks>
struct Work {
  const MimoBackward& problem;
  ChunkShared<kN, kP>& shared;
  Chunk c;
  int64_t head;
  const float2* turns;

  __device__ uint32_t num_rows() const { return c.length * kRanks; }
};

/// What a thread holds of a pair of neighbouring rows: both of one token, or of a token each.
template <int kRanks>
struct RowPair {
  static constexpr int kTokens = kRanks == 1 ? 2 : 1, kRanksHeld = 3 - kTokens;
  static constexpr int kLanes = kRanks < 2 ? 1 : kRanks / 2;  // that share a token of four
};

/// Sums `own` of a [64, rows] result, one value for each token of a thread's row pairs, over the
/// threads of the warp, and puts the tokens' sums to `to`.
template <int kRanks>
__device__ void put_token_part(float (&own)[Part<kRows>::kTiles * RowPair<kRanks>::kTokens],
                               float* to) {
  using part_t = Part<kRows>;
  constexpr int kTokens = RowPair<kRanks>::kTokens, kCount = part_t::kTiles * kTokens;
  const uint32_t index = scatter_sum<4, 32, kCount>(own);
  const float sum = lane_sum<1, RowPair<kRanks>::kLanes>(own[0]);
  const bool is_first = part_t::lane() % 4 % RowPair<kRanks>::kLanes == 0;
  // Four values: lanes 16 apart end with the same.
  if (is_first && (kCount == 8 || part_t::lane() < 16))
    to[(part_t::column(index / kTokens) + index % kTokens) / kRanks] = sum;
}

/// Rounds E M and T M into shared memory, and sums rows and columns of E T with and without M.
template <int kN, int kP, int kRanks>
__device__ void mask(const Work<kN, kP, kRanks>& work, const Part<kRows>& e, const Part<kRows>& t) {
  auto& shared = work.shared;
  using part_t = Part<kRows>;
  constexpr int kTokens = RowPair<kRanks>::kTokens;
  float rows[4] = {}, columns[part_t::kTiles * kTokens] = {};  // rows: off, off, own, own
  PB_UNROLL
  for (int tile = 0; tile < part_t::kTiles; ++tile) {
    const uint32_t column = part_t::column(tile);
    // Blocks above the diagonal are zeros.
    const bool is_above = part_t::tile_column(tile) > part_t::warp_m() * 16 + 8;
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint32_t row = part_t::row(half), i = row / kRanks;
      const uint32_t to = at<kRows>(row, column);
      if (is_above) {
        *reinterpret_cast<uint32_t*>(shared.masked_e + to) = 0;
        *reinterpret_cast<uint32_t*>(shared.masked_t + to) = 0;
        continue;
      }
      float em[2], tm[2], decay = 0.0f, below = 0.0f, factor = 0.0f;
      bool is_own = false;
      PB_UNROLL
      for (int x = 0; x < 2; ++x) {
        if (x < kTokens) {
          const uint32_t j = column / kRanks + x;
          // Below the diagonal the exponent is not positive.
          decay = i > j ? exp2_ftz(shared.steps.cs[i] - shared.steps.cs[j]) : 0.0f;
          below = decay * shared.steps.s[j];
          is_own = i == j;
          factor = is_own ? shared.steps.gam[i] : below;
        }
        const float value = e.sums[tile][half * 2 + x], other = t.sums[tile][half * 2 + x];
        const float product = value * other;
        em[x] = value * factor;
        tm[x] = other * factor;
        columns[tile * kTokens + x % kTokens] += product * decay;
        rows[half] += product * below;
        rows[2 + half] += is_own ? product : 0.0f;
      }
      *reinterpret_cast<uint32_t*>(shared.masked_e + to) = narrow(em[0], em[1]);
      *reinterpret_cast<uint32_t*>(shared.masked_t + to) = narrow(tm[0], tm[1]);
    }
  }
  const uint32_t index = scatter_sum<1, 4, 4>(rows);
  const float sum = lane_sum<4, 4 * kRanks>(rows[0]);
  const uint32_t row = part_t::row(index % 2);
  if (row % kRanks == 0)
    (index < 2 ? shared.off : shared.own)[part_t::warp_n()][row / kRanks] = sum;
  put_token_part<kRanks>(columns, shared.columns[part_t::warp_m()]);
}

/// <S0, dS>, one part a warp.
template <int kN, int kP, int kRanks>
__device__ void sum_sigma(const Work<kN, kP, kRanks>& work) {
  float sum = 0.0f;
  PB_UNROLL
  for (int i = 0; i < kP * kN / 8 / kThreads; ++i) {
    const uint32_t at = 8 * (i * kThreads + threadIdx.x);
    Eight x, y;
    x.load(work.shared.state + at);
    y.load(work.shared.grad_state + at);
    PB_UNROLL
    for (int e = 0; e < 8; ++e) sum += x.values[e] * y.values[e];
  }
  sum = lane_sum<1, 32>(sum);
  if (threadIdx.x % 32 == 0) work.shared.sigma[threadIdx.x / 32] = sum;
}

__device__ inline float part_of(float2 pair, int i) { return i == 0 ? pair.x : pair.y; }
__device__ inline float part_of(uint32_t pair, int i) { return part_of(widen(pair), i); }

/// What a thread needs of v, z and grad_out for its columns p and p + 1 of a [p, rows] result.
template <int kRanks>
struct Given {
  using pair_t = RowPair<kRanks>;
  static constexpr int kTiles = Part<kRows>::kTiles;
  uint32_t p, v[kTiles * pair_t::kTokens], z[kTiles * pair_t::kTokens] = {}, grad[kTiles * 2];
  float2 by_v[pair_t::kRanksHeld], by_z[pair_t::kRanksHeld], by_o[pair_t::kRanksHeld];

  template <int kN, int kP>
  __device__ void load(const Work<kN, kP, kRanks>& work, uint32_t column) {
    p = column;
    const MimoBackward& problem = work.problem;
    const uint32_t stride = static_cast<uint32_t>(problem.num_heads) * kP;
    const bool has_o = problem.mimo_o != nullptr;
    const int64_t first = work.c.token * stride + work.head * kP + p;
    const int64_t of_grad = has_o ? first : first + work.c.token * (kRanks - 1) * stride;
    const auto pair_of = [](const void* from, int64_t at) {
      return *reinterpret_cast<const uint32_t*>(static_cast<const bf16*>(from) + at);
    };
    PB_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      PB_UNROLL
      for (int x = 0; x < 2; ++x) {
        const uint32_t row = Part<kRows>::column(t) + x, token = row / kRanks;
        const bool has = token < work.c.length;
        // The first token in the place of one behind the chunk's end, whose gradient is 0.
        const uint32_t at_token = has ? token * stride : 0;
        if (x < pair_t::kTokens) {
          v[t * pair_t::kTokens + x] = pair_of(problem.v, first + at_token);
          if (problem.z != nullptr)
            z[t * pair_t::kTokens + x] = pair_of(problem.z, first + at_token);
        }
        if (!has_o) {
          grad[2 * t + x] = has ? pair_of(problem.grad_out, of_grad + row * stride) : 0;
        } else if (x < pair_t::kTokens) {
          grad[2 * t + x] = has ? pair_of(problem.grad_out, of_grad + at_token) : 0;
        } else {
          grad[2 * t + 1] = grad[2 * t];
        }
      }
    }
    PB_UNROLL
    for (int x = 0; x < pair_t::kRanksHeld; ++x) {
      const uint32_t rank = (Part<kRows>::column(0) + x) % kRanks;
      const int64_t at = (work.head * kRanks + rank) * kP + p;
      const auto weight = [at](const float* from) {
        return *reinterpret_cast<const float2*>(from + at);
      };
      by_v[x] = weight(problem.mimo_v);
      by_z[x] = problem.z != nullptr ? weight(problem.mimo_z) : make_float2(0.0f, 0.0f);
      by_o[x] = problem.mimo_o != nullptr ? weight(problem.mimo_o) : make_float2(1.0f, 1.0f);
    }
  }
};

/// Of [p, rows], columns p and p + 1: sums over a token's ranks, stored.
template <int kN, int kP, int kRanks>
__device__ void put_rank_sums(const Work<kN, kP, kRanks>& work,
                              float (&own)[2 * Part<kRows>::kTiles * RowPair<kRanks>::kTokens],
                              void* to, uint32_t p) {
  using pair_t = RowPair<kRanks>;
  constexpr int kCount = 2 * Part<kRows>::kTiles * pair_t::kTokens;
  static_assert(kCount / pair_t::kLanes >= 2, "a lane ends with both columns of a token");
  const uint32_t first = scatter_sum<1, pair_t::kLanes, kCount>(own) / 2;
  PB_UNROLL
  for (int i = 0; i < kCount / pair_t::kLanes / 2; ++i) {
    const uint32_t at = first + i;
    const uint32_t token =
        Part<kRows>::column(at / pair_t::kTokens) / kRanks + at % pair_t::kTokens;
    if (token >= work.c.length) continue;
    const int64_t row = (work.c.token + token) * work.problem.num_heads + work.head;
    *reinterpret_cast<uint32_t*>(static_cast<bf16*>(to) + row * kP + p) =
        narrow(own[2 * i], own[2 * i + 1]);
  }
}

/// Gradients by the angles of a turned tile, added to `turning`; turns the part back.
template <int kN, int kP, int kRanks>
__device__ void turn_back(const Work<kN, kP, kRanks>& work, Part<kN>& part, const bf16* turned,
                          float (&turning)[4 * Part<kN>::kHalf]) {
  using part_t = Part<kN>;
  // Of the first row; the second lies 8 behind it, swizzled alike.
  const auto* const of_token =
      reinterpret_cast<const float4*>(work.turns) + part_t::row(0) / kRanks * (kN / 4);
  PB_UNROLL
  for (int t = 0; t < part_t::kHalf; ++t) {
    const uint32_t place = at<kN>(part_t::row(0), part_t::column(t));
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const auto pair_of = [&](uint32_t at) {
        return widen(*reinterpret_cast<const uint32_t*>(turned + at + half * 8 * kN));
      };
      const float2 low = pair_of(place), high = pair_of(other_half<kN>(place));
      const float4 turn =
          of_token[half * (8 / kRanks) * (kN / 4) + turn_place(part_t::span_column() / 2 + t)];
      const float lows[2] = {low.x, low.y}, highs[2] = {high.x, high.y};
      const float cosines[2] = {turn.x, turn.z}, sines[2] = {turn.y, turn.w};
      PB_UNROLL
      for (int i = 0; i < 2; ++i) {
        float& a = part.sums[t][2 * half + i];
        float& b = part.sums[part_t::kHalf + t][2 * half + i];
        turning[half * part_t::kSpan + 2 * t + i] += b * lows[i] - a * highs[i];
        const float back = a * cosines[i] + b * sines[i];
        b = b * cosines[i] - a * sines[i];
        a = back;
      }
    }
  }
}

template <int kN, int kP, int kRanks>
__device__ void put_angles(const Work<kN, kP, kRanks>& work,
                           float (&turning)[4 * Part<kN>::kHalf]) {
  using part_t = Part<kN>;
  constexpr int kCount = 4 * part_t::kHalf;
  const auto count = static_cast<uint32_t>(work.problem.num_angles);
  const uint32_t first = scatter_sum<4, 4 * kRanks, kCount>(turning);
  PB_UNROLL
  for (int i = 0; i < kCount / kRanks; ++i) {
    const uint32_t at = first + i, column = part_t::span_column() + at % part_t::kSpan;
    const uint32_t token = part_t::row(at / part_t::kSpan) / kRanks;
    const int64_t row = (work.c.token + token) * work.problem.num_heads + work.head;
    if (token < work.c.length && column < count)
      work.problem.grad_angles[row * count + column] = turning[i];
  }
}

/// One warp: adt, and of s and gam what steps_kernel needs; d.
template <int kN, int kP, int kRanks>
__device__ void put_steps(const Work<kN, kP, kRanks>& work, float* grad_d) {
  const auto& shared = work.shared;
  const uint32_t lane = threadIdx.x % 32;
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
    const uint32_t t = 2 * lane + i;
    if (t >= work.c.length) continue;
    float columns = 0.0f, written = 0.0f, read = 0.0f;
    PB_UNROLL
    for (int m = 0; m < kWarpsM; ++m) {
      columns += shared.columns[m][t];
      written += shared.written[m][t];
      read += shared.read[m][t];
    }
    const float off = shared.off[0][t] + shared.off[1][t];
    written *= shared.steps.decay_out[t];
    r[i] = read * shared.steps.decay_in[t] + off - shared.steps.s[t] * columns;
    w[i] = shared.steps.s[t] * written;
    work.problem.grad_steps[first + t] = written + columns;
    work.problem.grad_own[first + t] = shared.own[0][t] + shared.own[1][t];
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

/// A thread's sums of do_values.
template <int kRanks>
struct ValueSums {
  static constexpr int kCount = Part<kRows>::kTiles * RowPair<kRanks>::kTokens;
  float read[kCount] = {}, written[kCount] = {}, grad_d = 0.0f;
};
/// Over the ranks of each token held, and over the tokens of each rank held, of two columns p.
template <int kRanks>
struct ProjectionSums {
  float of_tokens[2 * ValueSums<kRanks>::kCount] = {},
                      of_ranks[RowPair<kRanks>::kRanksHeld][2] = {};
};

/// Of [p, rows], columns p and p + 1: sums over the warp's tokens to partials [ranks, p].
template <int kP, int kRanks>
__device__ void put_token_sums(const ProjectionSums<kRanks>& sums, float* partials, uint32_t p) {
  using part_t = Part<kRows>;
  constexpr int kLanes = RowPair<kRanks>::kLanes;
  PB_UNROLL
  for (int x = 0; x < RowPair<kRanks>::kRanksHeld; ++x) {
    const uint32_t rank = (part_t::column(0) + x) % kRanks;
    const float low = lane_sum<kLanes, 4>(sums.of_ranks[x][0]);
    const float high = lane_sum<kLanes, 4>(sums.of_ranks[x][1]);
    if (part_t::lane() % 4 < kLanes)
      *reinterpret_cast<float2*>(partials + rank * kP + p) = make_float2(low, high);
  }
}

/// y [p, rows] of 64 columns p from `block` on, and what follows from it: grad_z, and sums over
/// tokens for mimo_z and mimo_o. g: the gradient of y, not rounded.
template <int kN, int kP, int kRanks>
__device__ void do_y(const Work<kN, kP, kRanks>& work, const Given<kRanks>& given, int block,
                     float d, float (&g)[Part<kRows>::kTiles][4], ValueSums<kRanks>& sums,
                     float* partials) {
  using part_t = Part<kRows>;
  constexpr int kTokens = RowPair<kRanks>::kTokens, kRanksHeld = RowPair<kRanks>::kRanksHeld;
  auto& shared = work.shared;
  const MimoBackward& problem = work.problem;
  part_t inter, intra;
  multiply<Operand::kAsStored, Operand::kTransposed, kN, kN, kN>(inter, shared.state, shared.q, 0,
                                                                 kN, block);
  multiply<Operand::kTransposed, Operand::kTransposed, kRows, kP, kRows>(
      intra, shared.x, shared.masked_t, 0, kRows, block);
  ProjectionSums<kRanks> z_sums, o_sums;
  PB_UNROLL
  for (int t = 0; t < part_t::kTiles; ++t) {
    PB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int x = i % 2, half = i / 2;
      const int of_token = t * kTokens + x % kTokens, of_rank = x % kRanksHeld;
      const float decay = shared.steps.decay_in[(part_t::column(t) + x) / kRanks];
      const float v = part_of(given.v[of_token], half) * part_of(given.by_v[of_rank], half);
      const float z = part_of(given.z[of_token], half), by_z = part_of(given.by_z[of_rank], half);
      const float grad = part_of(given.grad[2 * t + x], half);
      const float y = inter.sums[t][i] * decay + intra.sums[t][i] + d * v;
      const float u = z * by_z, sg = sigmoid(u), gate = problem.z != nullptr ? u * sg : 1.0f;
      const float to_y = grad * part_of(given.by_o[of_rank], half);
      const float grad_u = to_y * y * (sg + u * sg * (1.0f - sg));
      g[t][i] = to_y * gate;
      o_sums.of_ranks[of_rank][half] += grad * y * gate;
      z_sums.of_ranks[of_rank][half] += grad_u * z;
      z_sums.of_tokens[2 * of_token + half] += grad_u * by_z;
      sums.read[of_token] += g[t][i] * inter.sums[t][i];
      sums.grad_d += g[t][i] * v;
    }
  }
  if (problem.z != nullptr) {
    put_rank_sums(work, z_sums.of_tokens, problem.grad_z, given.p);
    put_token_sums<kP>(z_sums, partials, given.p);
  }
  put_token_sums<kP>(o_sums, partials + kRanks * kP, given.p);
}

/// grad_x as do_y's y, and what follows from it: grad_v, and sums over tokens for mimo_v.
template <int kN, int kP, int kRanks>
__device__ void do_grad_x(const Work<kN, kP, kRanks>& work, const Given<kRanks>& given, int block,
                          float d, const float (&g)[Part<kRows>::kTiles][4],
                          ValueSums<kRanks>& sums, float* partials) {
  using part_t = Part<kRows>;
  constexpr int kTokens = RowPair<kRanks>::kTokens, kRanksHeld = RowPair<kRanks>::kRanksHeld;
  auto& shared = work.shared;
  part_t inter, intra;
  multiply<Operand::kAsStored, Operand::kTransposed, kN, kN, kN>(inter, shared.grad_state, shared.k,
                                                                 0, kN, block);
  multiply<Operand::kTransposed, Operand::kAsStored, kRows, kP, kRows>(
      intra, shared.g, shared.masked_t, 0, kRows, block);
  ProjectionSums<kRanks> v_sums;
  PB_UNROLL
  for (int t = 0; t < part_t::kTiles; ++t) {
    PB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int x = i % 2, half = i / 2;
      const int of_token = t * kTokens + x % kTokens, of_rank = x % kRanksHeld;
      const uint32_t token = (part_t::column(t) + x) / kRanks;
      const float decay = shared.steps.decay_out[token] * shared.steps.s[token];
      const float v = part_of(given.v[of_token], half), by = part_of(given.by_v[of_rank], half);
      const float grad_x = inter.sums[t][i] * decay + intra.sums[t][i] + d * g[t][i];
      v_sums.of_ranks[of_rank][half] += grad_x * v;
      v_sums.of_tokens[2 * of_token + half] += grad_x * by;
      sums.written[of_token] += v * by * inter.sums[t][i];
    }
  }
  put_rank_sums(work, v_sums.of_tokens, work.problem.grad_v, given.p);
  put_token_sums<kP>(v_sums, partials + 2 * kRanks * kP, given.p);
}

/// y, grad_x and what follows from them. The products are [p, rows], so that a thread holds two
/// columns p of a token's ranks.
template <int kN, int kP, int kRanks>
__device__ void do_values(const Work<kN, kP, kRanks>& work, Given<kRanks> given, float* partials) {
  using part_t = Part<kRows>;
  auto& shared = work.shared;
  const float d = work.problem.d == nullptr ? 0.0f : work.problem.d[work.head];
  ValueSums<kRanks> sums;
  PB_UNROLL
  for (int block = 0; block < kP; block += kRows) {
    if (block > 0) given.load(work, given.p + kRows);
    float g[part_t::kTiles][4];
    do_y(work, given, block, d, g, sums, partials);
    do_grad_x(work, given, block, d, g, sums, partials);
  }
  put_token_part<kRanks>(sums.read, shared.read[part_t::warp_m()]);
  put_token_part<kRanks>(sums.written, shared.written[part_t::warp_m()]);
  const float grad_d = lane_sum<1, 32>(sums.grad_d);
  if (part_t::lane() == 0) shared.grad_d[threadIdx.x / 32] = grad_d;
}

/// The gradients of q and k per head, and of the angles.
template <int kN, int kP, int kRanks>
__device__ void do_turned(const Work<kN, kP, kRanks>& work) {
  auto& shared = work.shared;
  const Steps& steps = shared.steps;
  const uint32_t row0 = Part<kN>::warp_m() * 16;
  const int64_t stride = work.problem.num_heads * kN;
  const int64_t to = work.c.token * kRanks * stride + work.head * kN;
  // Warps whose columns have no angle do not turn.
  const bool is_turned = Part<kN>::warp_n() * (kN / 4) < work.problem.num_angles;
  float turning[4 * Part<kN>::kHalf] = {};
  {
    Part<kN> grad_q;
    multiply<Operand::kAsStored, Operand::kAsStored, kP, kP, kN>(grad_q, shared.g, shared.state);
    grad_q.scale([&](uint32_t row) { return steps.decay_in[row / kRanks]; });
    multiply<Operand::kAsStored, Operand::kAsStored, kRows, kRows, kN>(grad_q, shared.masked_e,
                                                                       shared.k, 0, row0 + 16);
    if (is_turned) turn_back(work, grad_q, shared.q, turning);
    store(grad_q, static_cast<bf16*>(work.problem.raw_q) + to, stride, work.num_rows());
  }
  Part<kN> grad_k;
  multiply<Operand::kAsStored, Operand::kAsStored, kP, kP, kN>(grad_k, shared.x, shared.grad_state);
  grad_k.scale([&](uint32_t row) { return steps.decay_out[row / kRanks] * steps.s[row / kRanks]; });
  multiply<Operand::kTransposed, Operand::kAsStored, kRows, kRows, kN>(grad_k, shared.masked_e,
                                                                       shared.q, row0);
  if (is_turned) turn_back(work, grad_k, shared.k, turning);
  store(grad_k, static_cast<bf16*>(work.problem.raw_k) + to, stride, work.num_rows());
  if (is_turned) put_angles(work, turning);
}

/// 227 KiB of shared memory hold one CTA with both head dims 128.
template <int kN, int kP>
constexpr int kChunkCtas = kN + kP == 256 ? 1 : 2;

template <int kN, int kP, int kRanks>
__global__ void __launch_bounds__(kThreads, kChunkCtas<kN, kP>) chunk_kernel(MimoBackward problem) {
  PB_DYNAMIC_SHARED(storage);
  auto& shared = *reinterpret_cast<ChunkShared<kN, kP>*>(storage);
  auto* turns = reinterpret_cast<float2*>(&shared + 1);
  const int64_t head = blockIdx.x, chunk = blockIdx.y, place = chunk * problem.num_heads + head;
  constexpr int kSums = 3 * kRanks * kP;
  float* const sums = problem.partials + 2 * place * kSums;
  float* const grad_d =
      problem.partials + 2 * problem.num_chunks * problem.num_heads * kSums + place;
  const Chunk c = chunk_of(problem, chunk, kRows / kRanks);
  if (c.length == 0) {
    for (uint32_t i = threadIdx.x; i < 2 * kSums; i += kThreads) sums[i] = 0.0f;
    if (threadIdx.x == 0) *grad_d = 0.0f;
    return;
  }
  copy_raw<kN, kRanks>(problem, c, head, problem.q, shared.q);
  copy_raw<kN, kRanks>(problem, c, head, problem.k, shared.k);
  RawValues<kP, kRanks> values;
  values.load(problem, c, head);
  copy_tile<kN, kP>(shared.state, static_cast<const bf16*>(problem.states) + place * kP * kN);
  copy_tile<kN, kP>(shared.grad_state,
                    static_cast<const bf16*>(problem.grad_states) + place * kP * kN);
  load_turns<kN, kRanks>(problem, c, head, turns);
  if (is_last_warp()) load_steps(problem, c, head, shared.steps);
  fill_values<kP, kRanks>(problem, c, head, values, nullptr, nullptr, shared.x, shared.g);
  cp_async_wait_all();
  // All threads read the turns.
  __syncthreads();
  constexpr Columns kOrder = Columns::kExchanged;
  fill_turned<kN, kRanks, kOrder>(c, head, problem.q_bias, turns, shared.q);
  fill_turned<kN, kRanks, kOrder>(c, head, problem.k_bias, turns, shared.k);
  // And each other's rows and copies.
  __syncthreads();
  const Work<kN, kP, kRanks> work{
      .problem = problem, .shared = shared, .c = c, .head = head, .turns = turns};
  Given<kRanks> given;  // loaded early, for it is used at once behind the barrier
  given.load(work, Part<kRows>::warp_m() * 16 + Part<kRows>::lane() / 4 * 2);
  {
    Part<kRows> e, t;
    multiply<Operand::kAsStored, Operand::kTransposed, kP, kP, kP>(e, shared.g, shared.x);
    multiply<Operand::kAsStored, Operand::kTransposed, kN, kN, kN>(t, shared.q, shared.k);
    mask(work, e, t);
  }
  sum_sigma(work);
  // All warps read the masked products.
  __syncthreads();
  do_values(work, given, sums + Part<kRows>::warp_n() * kSums);
  // The parts of all warps' tokens are there.
  __syncthreads();
  if (is_last_warp()) put_steps(work, grad_d);
  do_turned(work);
}

constexpr int kSumColumns = 32, kSumStrands = 8, kSumDepth = 8;  // loads in flight

__global__ void __launch_bounds__(kSumColumns* kSumStrands) sum_kernel(MimoBackward problem) {
  __shared__ float strands[kSumStrands][kSumColumns];
  const int64_t head = blockIdx.y, size = problem.num_sums(), heads = problem.num_heads;
  const int64_t projection = problem.num_ranks * problem.head_dim_v;
  const int64_t i = int64_t{blockIdx.x} * kSumColumns + threadIdx.x;
  const bool is_d = i == size;
  const int64_t stride = is_d ? heads : 2 * heads * size;
  const float* const from = problem.partials + (is_d ? 2 * problem.num_chunks * heads * size + head
                                                     : 2 * head * size + i);
  float sum = 0.0f;
  if (i <= size) {
    for (int64_t base = threadIdx.y; base < problem.num_chunks; base += kSumStrands * kSumDepth) {
      float parts[kSumDepth][2] = {};
      PB_UNROLL
      for (int u = 0; u < kSumDepth; ++u) {
        const int64_t chunk = base + u * kSumStrands;
        if (chunk >= problem.num_chunks) continue;
        parts[u][0] = from[chunk * stride];
        if (!is_d) parts[u][1] = from[chunk * stride + size];
      }
      PB_UNROLL
      for (const auto& part : parts) sum += part[0] + part[1];
    }
  }
  strands[threadIdx.y][threadIdx.x] = sum;
  // The first strand reads the others.
  __syncthreads();
  if (threadIdx.y != 0 || i > size) return;
  PB_UNROLL
  for (int strand = 1; strand < kSumStrands; ++strand) sum += strands[strand][threadIdx.x];
  float* const to[3] = {problem.grad_mimo_z, problem.grad_mimo_o, problem.grad_mimo_v};
  if (is_d) {
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
  const int log_tokens = 31 - __clz(static_cast<int>(problem.chunk_tokens()));
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t t = item & ((1 << log_tokens) - 1), pair = item >> log_tokens;
  const int64_t head = pair % problem.num_heads, chunk = pair / problem.num_heads;
  if (chunk >= problem.num_chunks) return;
  const Chunk c = chunk_of(problem, chunk, 1 << log_tokens);
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
