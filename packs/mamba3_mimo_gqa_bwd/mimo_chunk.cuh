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
  uint32_t length;
  bool is_first;  // of its sequence
};

__device__ inline Chunk chunk_of(const MimoBackward& problem, int64_t chunk, int tokens) {
  int64_t batch = 0, begin, end;
  Chunk c;
  if (problem.cu_seqlens != nullptr) {
    const int4 span = reinterpret_cast<const int4*>(problem.spans)[chunk];
    begin = span.x;
    c.length = static_cast<uint32_t>(span.y);
    c.is_first = span.z != 0;
    end = span.w;
  } else {
    // 32 bits: a 64-bit division takes longer than all else here.
    const int seqlen = static_cast<int>(problem.seqlen), each = tokens;
    const int per_row = (seqlen + each - 1) / each, index = static_cast<int>(chunk);
    batch = index / per_row;
    begin = index % per_row * each;
    c.length = static_cast<uint32_t>(min(each, seqlen - static_cast<int>(begin)));
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
__device__ inline float sigmoid(float value) {
  return rcp_approx(1.0f + exp2_ftz(-value * kLog2e));
}

/// The warp that makes what one warp makes: its columns of a turn are the last to have an angle.
__device__ inline bool is_last_warp() { return threadIdx.x >= kThreads - 32; }

/// One warp. Two neighbouring tokens a lane.
__device__ inline void load_steps(const MimoBackward& problem, const Chunk& c, int64_t head,
                                  Steps& steps) {
  const uint32_t lane = threadIdx.x % 32;
  const int64_t first = c.step + head * problem.seqlen;
  float own[2];
  PB_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t t = 2 * lane + i;
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
    const uint32_t t = 2 * lane + i;
    steps.cs[t] = sums[i] * kLog2e;
    steps.decay_in[t] = exp2_ftz(sums[i] * kLog2e);
    steps.decay_out[t] = exp2_ftz((end - sums[i]) * kLog2e);
  }
  if (lane == 0) steps.whole = exp2_ftz(end * kLog2e);
}

/// Where a pair of neighbouring turns, 16 bytes, lies in its token's row: eight threads that read
/// one each, 64 bytes apart, fall into all banks.
__device__ inline uint32_t turn_place(uint32_t pair) { return pair ^ (pair / 8 % 4); }

/// (cos, sin) of the chunk's angles, [tokens, n / 2]; those that there are not turn by nothing.
template <int kN, int kRanks>
__device__ void load_turns(const MimoBackward& problem, const Chunk& c, int64_t head,
                           float2* turns) {
  constexpr int kHalf = kN / 2, kItems = kRows / kRanks * kHalf / kThreads;
  constexpr int kApart = kThreads / kHalf;  // tokens of a step
  const auto count = static_cast<uint32_t>(problem.num_angles);
  const uint32_t thread = threadIdx.x;
  // The last warps, two on each scheduler, take the columns that most often have no angle.
  const uint32_t column = thread / 32 / kApart * 32 + thread % 32, first = thread / 32 % kApart;
  const float* const angles =
      problem.angles + (c.token * problem.num_heads + head) * count + column;
  const uint32_t stride = static_cast<uint32_t>(problem.num_heads) * count;
  float angle[kItems];
  PB_UNROLL
  for (int i = 0; i < kItems; ++i) {
    const uint32_t token = i * kApart + first;
    angle[i] = token < c.length && column < count ? angles[int64_t{token} * stride] : 0.0f;
  }
  PB_UNROLL
  for (int i = 0; i < kItems; ++i) {
    float2 turn = make_float2(1.0f, 0.0f);
    if (column < count) sincosf(angle[i], &turn.y, &turn.x);
    turns[(i * kApart + first) * kHalf + turn_place(column / 2) * 2 + column % 2] = turn;
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
  __device__ uint4 narrowed() const {
    return make_uint4(narrow(values[0], values[1]), narrow(values[2], values[3]),
                      narrow(values[4], values[5]), narrow(values[6], values[7]));
  }
  __device__ void store(bf16* to) const { *reinterpret_cast<uint4*>(to) = narrowed(); }
  /// Into a row of x or g: of 16 columns the even ones first, so that columns p and p + 1 fall into
  /// rows i and i + 8 of a product, which one thread holds.
  __device__ void store_split(bf16* even, bf16* odd) const {
    *reinterpret_cast<uint2*>(even) =
        make_uint2(narrow(values[0], values[2]), narrow(values[4], values[6]));
    *reinterpret_cast<uint2*>(odd) =
        make_uint2(narrow(values[1], values[3]), narrow(values[5], values[7]));
  }
};

/// A thread's part of a tile of q or k, [rows, n]: 8 columns of either half, of rows of one rank.
template <int kN, int kRanks>
struct TurnedPart {
  static constexpr int kSpans = kN / 16, kApart = kThreads / kSpans, kItems = kRows / kApart;
  static_assert(kApart % 8 == 0, "a thread's rows are of one rank and swizzled alike");
  __device__ static uint32_t row(uint32_t i) { return i * kApart + threadIdx.x / kSpans; }
  __device__ static uint32_t column() { return threadIdx.x % kSpans * 8; }
};

/// Starts the copy of q or k of a head to where fill_turned finds it; a row of the chunk's start in
/// the place of one behind its end.
template <int kN, int kRanks>
__device__ void copy_raw(const MimoBackward& problem, const Chunk& c, int64_t head,
                         const void* source, bf16* to) {
  using part_t = TurnedPart<kN, kRanks>;
  const int heads = static_cast<int>(problem.num_heads) / static_cast<int>(problem.num_groups);
  const int64_t stride = problem.num_groups * kN;
  const uint32_t column = part_t::column();
  const auto* const from = static_cast<const bf16*>(source) + c.token * kRanks * stride +
                           static_cast<int>(head) / heads * kN + column;
  const uint32_t low = at<kN>(part_t::row(0), column), high = other_half<kN>(low);
  PB_UNROLL
  for (int i = 0; i < part_t::kItems; ++i) {
    const uint32_t row = part_t::row(i);
    const bf16* const of_row = from + (row < c.length * kRanks ? row : 0) * stride;
    cp_async(to + low + i * part_t::kApart * kN, of_row);
    cp_async(to + high + i * part_t::kApart * kN, of_row + kN / 2);
  }
}

/// Where the columns of a tile of q and k lie: in order, or exchanged, so that a product's columns
/// lie side by side in a thread. What is stored exchanged is in order again, and the other way
/// round.
enum class Columns { kInOrder, kExchanged };

/// A tile of copy_raw, once the thread's own copies are there: adds the bias and turns; zeros
/// behind the chunk's end.
template <int kN, int kRanks, Columns kColumns>
__device__ void fill_turned(const Chunk& c, int64_t head, const float* bias, const float2* turns,
                            bf16* tile) {
  using part_t = TurnedPart<kN, kRanks>;
  const uint32_t column = part_t::column();
  const float* const of_rank = bias + (head * kRanks + part_t::row(0) % kRanks) * kN + column;
  Eight low_bias, high_bias;
  low_bias.load(of_rank);
  high_bias.load(of_rank + kN / 2);
  // Of the first row; the others lie a multiple of 8 rows behind it.
  const uint32_t raw = at<kN>(part_t::row(0), column);
  const auto* const of_token =
      reinterpret_cast<const float4*>(turns) + part_t::row(0) / kRanks * (kN / 4);
  uint4 words[part_t::kItems][2];
  PB_UNROLL
  for (int i = 0; i < part_t::kItems; ++i) {
    Eight low = {}, high = {};
    if (part_t::row(i) < c.length * kRanks) {
      low.load(tile + raw + i * part_t::kApart * kN);
      high.load(tile + other_half<kN>(raw) + i * part_t::kApart * kN);
      PB_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const float4 turn =
            of_token[i * (part_t::kApart / kRanks) * (kN / 4) + turn_place(column / 2 + pair)];
        const float cosines[2] = {turn.x, turn.z}, sines[2] = {turn.y, turn.w};
        PB_UNROLL
        for (int x = 0; x < 2; ++x) {
          const int e = 2 * pair + x;
          const float a = low.values[e] + low_bias.values[e];
          const float b = high.values[e] + high_bias.values[e];
          low.values[e] = a * cosines[x] - b * sines[x];
          high.values[e] = a * sines[x] + b * cosines[x];
        }
      }
    }
    words[i][0] = low.narrowed();
    words[i][1] = high.narrowed();
  }
  // Exchanged, a thread's columns go where others of its warp have read.
  if constexpr (kColumns == Columns::kExchanged) __syncwarp();
  PB_UNROLL
  for (int side = 0; side < 2; ++side) {
    PB_UNROLL
    for (int i = 0; i < part_t::kItems; ++i) {
      bf16* const rows = tile + i * part_t::kApart * kN;
      if constexpr (kColumns == Columns::kInOrder) {
        *reinterpret_cast<uint4*>(rows + (side == 0 ? raw : other_half<kN>(raw))) = words[i][side];
      } else {
        const uint32_t own[4] = {words[i][side].x, words[i][side].y, words[i][side].z,
                                 words[i][side].w};
        PB_UNROLL
        for (int e = 0; e < 4; ++e) {
          const uint32_t place = at<kN>(part_t::row(0), exchanged<kN>(column + 2 * e));
          *reinterpret_cast<uint32_t*>(rows + (side == 0 ? place : other_half<kN>(place))) = own[e];
        }
      }
    }
  }
}

/// A thread's part of v, z and grad_out of a head, for rows [rows, p], as it lies in memory.
template <int kP, int kRanks>
struct RawValues {
  static constexpr int kSpans = kP / 8, kApart = kThreads / kSpans, kItems = kRows / kApart;
  static_assert(kApart % 8 == 0, "a thread's rows are of one rank and swizzled alike");
  uint4 v[kItems], z[kItems], grad[kItems];

  __device__ static uint32_t row(uint32_t i) { return i * kApart + threadIdx.x / kSpans; }
  __device__ static uint32_t column() { return threadIdx.x % kSpans * 8; }

  __device__ void load(const MimoBackward& problem, const Chunk& c, int64_t head) {
    const int64_t stride = problem.num_heads * kP, first = head * kP + column();
    const int64_t from = c.token * stride + first;
    const auto* const from_v = static_cast<const bf16*>(problem.v) + from;
    const auto* const from_z = static_cast<const bf16*>(problem.z) + from;
    const bool has_o = problem.mimo_o != nullptr;
    const auto* const from_grad = static_cast<const bf16*>(problem.grad_out) +
                                  c.token * (has_o ? 1 : kRanks) * stride + first;
    PB_UNROLL
    for (int i = 0; i < kItems; ++i) {
      // A row of the chunk's start in the place of one behind its end.
      const uint32_t at_row = row(i) < c.length * kRanks ? row(i) : 0, token = at_row / kRanks;
      v[i] = *reinterpret_cast<const uint4*>(from_v + token * stride);
      grad[i] = *reinterpret_cast<const uint4*>(from_grad + (has_o ? token : at_row) * stride);
      if (problem.z != nullptr) z[i] = *reinterpret_cast<const uint4*>(from_z + token * stride);
    }
  }
};

/// x = v mimo_v and g = grad_out mimo_o silu(z mimo_z), [rows, p] with split columns, each times
/// the factor of its token, if there is one; zeros behind the chunk's end.
template <int kP, int kRanks>
__device__ void fill_values(const MimoBackward& problem, const Chunk& c, int64_t head,
                            const RawValues<kP, kRanks>& raw, const float* x_factor,
                            const float* g_factor, bf16* x, bf16* g) {
  using raw_t = RawValues<kP, kRanks>;
  const uint32_t column = raw_t::column();
  const int64_t of_rank = (head * kRanks + raw_t::row(0) % kRanks) * kP + column;
  Eight by_v, by_o, by_z;
  by_v.load(problem.mimo_v + of_rank);
  if (problem.mimo_o != nullptr) by_o.load(problem.mimo_o + of_rank);
  if (problem.z != nullptr) by_z.load(problem.mimo_z + of_rank);
  const uint32_t split = column / 16 * 16 + column % 16 / 2;
  const uint32_t even = at<kP>(raw_t::row(0), split), odd = at<kP>(raw_t::row(0), split + 8);
  PB_UNROLL
  for (int i = 0; i < raw_t::kItems; ++i) {
    const uint32_t row = raw_t::row(i), token = row / kRanks;
    Eight x_row = {}, g_row = {};
    if (row < c.length * kRanks) {
      x_row.widen_from(raw.v[i]);
      g_row.widen_from(raw.grad[i]);
      const float x_by = x_factor != nullptr ? x_factor[token] : 1.0f;
      const float g_by = g_factor != nullptr ? g_factor[token] : 1.0f;
      PB_UNROLL
      for (int e = 0; e < 8; ++e) {
        x_row.values[e] *= by_v.values[e] * x_by;
        g_row.values[e] *= g_by;
      }
      if (problem.mimo_o != nullptr) {
        PB_UNROLL
        for (int e = 0; e < 8; ++e) g_row.values[e] *= by_o.values[e];
      }
      if (problem.z != nullptr) {
        Eight z;
        z.widen_from(raw.z[i]);
        PB_UNROLL
        for (int e = 0; e < 8; ++e) {
          const float u = z.values[e] * by_z.values[e];
          g_row.values[e] *= u * sigmoid(u);
        }
      }
    }
    const uint32_t behind = i * raw_t::kApart * kP;
    x_row.store_split(x + even + behind, x + odd + behind);
    g_row.store_split(g + even + behind, g + odd + behind);
  }
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
