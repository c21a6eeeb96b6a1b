#pragma once
#include "mimo_backward.cuh"
#include "mimo_tiles.cuh"

/// What the kernels of a chunk and head make first: where it lies, its weights, and its tiles.
namespace patchbench::ops::mamba3_mimo_gqa_bwd {

constexpr float kLog2e = 1.4426950408889634f;

struct Chunk {
  int64_t token;  // its first, in [b s]
  int64_t step;   // that of head 0, in [b, h, s]
  int64_t end;    // of its sequence, in [b s]
  int length;
  bool is_first;  // of its sequence
};

__device__ inline Chunk chunk_of(const MimoBackward& problem, int64_t chunk) {
  const int64_t tokens = problem.chunk_tokens();
  int64_t batch = 0, begin, end;
  Chunk c;
  if (problem.cu_seqlens != nullptr) {
    const int4 span = reinterpret_cast<const int4*>(problem.spans)[chunk];
    begin = span.x;
    c.length = span.y;
    c.is_first = span.z != 0;
    end = span.w;
  } else {
    // 32 bits: a 64-bit division takes longer than all else here.
    const int seqlen = static_cast<int>(problem.seqlen), each = static_cast<int>(tokens);
    const int per_row = (seqlen + each - 1) / each, index = static_cast<int>(chunk);
    batch = index / per_row;
    begin = index % per_row * each;
    c.length = min(each, seqlen - static_cast<int>(begin));
    c.is_first = begin == 0;
    end = problem.seqlen;
  }
  c.token = batch * problem.seqlen + begin;
  c.step = batch * problem.num_heads * problem.seqlen + begin;
  c.end = batch * problem.seqlen + end;
  return c;
}

/// Per token of a chunk; aligned for what lies behind it. Tokens behind its end have adt = 0, so
/// that cs stays, and weights of 0.
struct alignas(16) Steps {
  float cs[kRows];  // in units of log2
  float decay_in[kRows], decay_out[kRows];
  float s[kRows], gam[kRows];
  float whole;
};

__device__ inline float trap_at(const MimoBackward& problem, int64_t step) {
  return problem.has_wide_trap ? static_cast<const float*>(problem.trap)[step]
                               : __bfloat162float(static_cast<const bf16*>(problem.trap)[step]);
}
__device__ inline float sigmoid(float value) { return 1.0f / (1.0f + exp2f(-value * kLog2e)); }

/// Warp 0. Two neighbouring tokens a lane.
__device__ inline void load_steps(const MimoBackward& problem, const Chunk& c, int64_t head,
                                  Steps& steps) {
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t first = c.step + head * problem.seqlen;
  float own[2];
  PB_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    const bool has = t < c.length;
    own[i] = has ? problem.adt[first + t] : 0.0f;
    const float gam = has ? sigmoid(trap_at(problem, first + t)) * problem.dt[first + t] : 0.0f;
    float next = 0.0f;
    if (has && c.token + t + 1 < c.end)
      next = (1.0f - sigmoid(trap_at(problem, first + t + 1))) * problem.dt[first + t + 1];
    steps.gam[t] = gam;
    steps.s[t] = gam + next;
  }
  const float2 cs = prefix_sum(make_float2(own[0], own[1]));
  const float end = __shfl_sync(kAll, cs.y, 31);
  const float sums[2] = {cs.x, cs.y};
  PB_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    steps.cs[t] = sums[i] * kLog2e;
    steps.decay_in[t] = exp2f(sums[i] * kLog2e);
    steps.decay_out[t] = exp2f((end - sums[i]) * kLog2e);
  }
  if (lane == 0) steps.whole = exp2f(end * kLog2e);
}

/// (cos, sin) of the chunk's angles, [tokens, n / 2]; those that there are not turn by nothing.
template <int kN>
__device__ void load_turns(const MimoBackward& problem, const Chunk& c, int64_t head,
                           float2* turns) {
  const int tokens = static_cast<int>(problem.chunk_tokens());
  const int count = static_cast<int>(problem.num_angles);
  for (int i = static_cast<int>(threadIdx.x); i < tokens * (kN / 2); i += kThreads) {
    const int token = i / (kN / 2), column = i % (kN / 2);
    float2 turn = make_float2(1.0f, 0.0f);
    if (token < c.length && column < count) {
      const int64_t from = ((c.token + token) * problem.num_heads + head) * count + column;
      sincosf(problem.angles[from], &turn.y, &turn.x);
    }
    turns[i] = turn;
  }
}

struct alignas(16) Eight {
  float values[8];
  __device__ void load(const float* from) {
    *reinterpret_cast<float4*>(values) = reinterpret_cast<const float4*>(from)[0];
    *reinterpret_cast<float4*>(values + 4) = reinterpret_cast<const float4*>(from)[1];
  }
  __device__ void load(const bf16* from) { widen_from(*reinterpret_cast<const uint4*>(from)); }
  __device__ void widen_from(const uint4& words) {
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
    PB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float2 pair = widen(pairs[i]);
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
  }
  __device__ void store(bf16* to) const {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(narrow(values[0], values[1]), narrow(values[2], values[3]),
                   narrow(values[4], values[5]), narrow(values[6], values[7]));
  }
};

__device__ inline int log_of(int64_t ranks) { return 31 - __clz(static_cast<int>(ranks)); }

/// A thread's part of q or k of a head, [rows, n], as it lies in memory: loaded before the turns
/// are known.
template <int kN>
struct Raw {
  static constexpr int kSpans = kN / 16;  // of 8 columns of either half
  static constexpr int kItems = kRows * kSpans / kThreads;
  uint4 low[kItems], high[kItems];

  __device__ static int row(int i) {
    return (i * kThreads + static_cast<int>(threadIdx.x)) / kSpans;
  }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % kSpans * 8; }

  __device__ void load(const MimoBackward& problem, const Chunk& c, int64_t head,
                       const void* source) {
    const int ranks = static_cast<int>(problem.num_ranks);
    const int heads = static_cast<int>(problem.num_heads) / static_cast<int>(problem.num_groups);
    const int64_t stride = problem.num_groups * kN;
    const auto* from = static_cast<const bf16*>(source) + c.token * ranks * stride +
                       static_cast<int>(head) / heads * kN + column();
    PB_UNROLL
    for (int i = 0; i < kItems; ++i) {
      // A row of the chunk's start in the place of one behind its end.
      const int64_t at = (row(i) < c.length * ranks ? row(i) : 0) * stride;
      low[i] = *reinterpret_cast<const uint4*>(from + at);
      high[i] = *reinterpret_cast<const uint4*>(from + at + kN / 2);
    }
  }
};

/// With its bias and turned; zeros behind the chunk's end.
template <int kN>
__device__ void fill_turned(const MimoBackward& problem, const Chunk& c, int64_t head,
                            const Raw<kN>& raw, const float* bias, const float2* turns, bf16* to) {
  const int ranks = static_cast<int>(problem.num_ranks), log_ranks = log_of(ranks);
  const int column = Raw<kN>::column();
  PB_UNROLL
  for (int i = 0; i < Raw<kN>::kItems; ++i) {
    const int row = Raw<kN>::row(i);
    Eight low = {}, high = {};
    if (row < c.length * ranks) {
      const float* const own = bias + (head * ranks + (row & (ranks - 1))) * kN + column;
      const float2* const turn = turns + (row >> log_ranks) * (kN / 2) + column;
      Eight low_bias, high_bias;
      low.widen_from(raw.low[i]);
      high.widen_from(raw.high[i]);
      low_bias.load(own);
      high_bias.load(own + kN / 2);
      PB_UNROLL
      for (int e = 0; e < 8; ++e) {
        const float a = low.values[e] + low_bias.values[e];
        const float b = high.values[e] + high_bias.values[e];
        low.values[e] = a * turn[e].x - b * turn[e].y;
        high.values[e] = a * turn[e].y + b * turn[e].x;
      }
    }
    low.store(to + at<kN>(row, column));
    high.store(to + at<kN>(row, kN / 2 + column));
  }
}

/// x = v mimo_v and g = grad_out mimo_o silu(z mimo_z), [rows, p], each times the factor of its
/// token, if there is one; zeros behind the chunk's end.
template <int kP>
__device__ void fill_values(const MimoBackward& problem, const Chunk& c, int64_t head,
                            const float* x_factor, const float* g_factor, bf16* x, bf16* g) {
  const int ranks = static_cast<int>(problem.num_ranks), num_rows = c.length * ranks;
  const int log_ranks = log_of(ranks);
  PB_UNROLL
  for (int i = 0; i < kRows * kP / 8 / kThreads; ++i) {
    const int item = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = item / (kP / 8), column = item % (kP / 8) * 8;
    const int token = row >> log_ranks, rank = row & (ranks - 1);
    Eight x_row = {}, g_row = {};
    if (row < num_rows) {
      const int64_t from = ((c.token + token) * problem.num_heads + head) * kP + column;
      const int64_t of_rank = (head * ranks + rank) * kP + column;
      Eight by;
      x_row.load(static_cast<const bf16*>(problem.v) + from);
      by.load(problem.mimo_v + of_rank);
      PB_UNROLL
      for (int e = 0; e < 8; ++e) x_row.values[e] *= by.values[e];
      const auto* grad_out = static_cast<const bf16*>(problem.grad_out);
      if (problem.mimo_o != nullptr) {
        g_row.load(grad_out + from);
        by.load(problem.mimo_o + of_rank);
        PB_UNROLL
        for (int e = 0; e < 8; ++e) g_row.values[e] *= by.values[e];
      } else {
        const int64_t at_rank = (c.token + token) * ranks + rank;
        g_row.load(grad_out + (at_rank * problem.num_heads + head) * kP + column);
      }
      if (problem.z != nullptr) {
        Eight z;
        z.load(static_cast<const bf16*>(problem.z) + from);
        by.load(problem.mimo_z + of_rank);
        PB_UNROLL
        for (int e = 0; e < 8; ++e) {
          const float u = z.values[e] * by.values[e];
          g_row.values[e] *= u * sigmoid(u);
        }
      }
      PB_UNROLL
      for (int e = 0; e < 8; ++e) {
        if (x_factor != nullptr) x_row.values[e] *= x_factor[token];
        if (g_factor != nullptr) g_row.values[e] *= g_factor[token];
      }
    }
    x_row.store(x + at<kP>(row, column));
    g_row.store(g + at<kP>(row, column));
  }
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
