#pragma once
#include <cstdint>
#include <type_traits>

#include "rotary.cuh"

// What the three kernels of the rotary backward do in a CTA of 256 threads. Include the primitives
// first: kernel/sm90/barrier.cuh, or the emulator. Formulas: rotary.h. n, r: head_dim_qk,
// num_angles.
//
// turn_cta   grid (num_groups, blocks, batch). A CTA takes a group's heads for one block of tokens,
//   32 at a time. Sixteen lanes hold a token's row, each n / 32 elements of either half; the first
//   half is rotated, the second if r = n / 2. A half warp has two tokens, and in float32 registers
//   their sums of grad_q and grad_k over the heads. What is summed over tokens goes by warp into
//   shared memory, where a column's thread adds the warps in order.
//   Shared memory at n = 128, r = 32: 36 KiB and 1.6 KiB a head.
// sum_cta    grid (h (2 n + r) / 256). A thread has a column of `sums`: a bias gradient over all
//   blocks; of grad_cumsum what the blocks after each one sum to, in its place.
// angle_cta  grid (h r / 512, blocks, batch). A thread walks a block's tokens backwards with the
//   running sums of two angles; the lanes of a head exchange their parts of grad_dt.
// Rounded to bfloat16: grad_q, grad_k, grad_angles. All else is float32, grad_cumsum between the
// kernels, too: it sums to nearly nothing, for y does not change where all angles do.
namespace patchbench::ops::mamba3_siso_bwd_cse::rotary {

using namespace sm90;  // NOLINT: the names of the primitives

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRowLanes = 16;                       // of a token
constexpr int kOwn = 2;                             // tokens of a half warp
constexpr int kStep = kThreads / kRowLanes * kOwn;  // tokens at a time
static_assert(kStep == 32, "block_tokens is a multiple of it");
constexpr int kStages = 4;  // of the sums over tokens: two heads', and two more's meanwhile
constexpr int kAhead = 8;   // loads under way together in the other two
constexpr float kLog2e = 1.4426950408889634f, kPi = 3.141592653589793f;

PB_DEVICE float sigmoid(float x) { return rcp_approx(1.0f + exp2_of(-kLog2e * x)); }
PB_DEVICE float tanh_of(float x) {
  return 1.0f - 2.0f * rcp_approx(1.0f + exp2_of(2 * kLog2e * x));
}

/// What a token's head has besides its rows: mixed = gamma grad_qk_dot.
struct alignas(16) Factors {
  float scale, mixed, grad_qk_dot, unused;
};

template <int kN, int kR>
struct Shape {
  static_assert((kN == 64 || kN == 128) && (kR == kN / 4 || kR == kN / 2), "see is_rotary_served");
  static constexpr int kEach = kN / 32;          // elements of a lane in either half
  static constexpr int kTurned = kR / (kN / 4);  // halves that are rotated
  static constexpr int kColumns = 2 * kN + kR;
  struct Sums {
    float of[kColumns];
  };
  /// Of a CTA: stages of the warps' sums, sums of each head, and factors of 32 tokens a head.
  static constexpr int64_t bytes(int64_t heads) {
    return (kStages * kWarps + heads) * static_cast<int64_t>(sizeof(Sums)) +
           heads * kStep * static_cast<int64_t>(sizeof(Factors));
  }
};

/// A lane's neighbours in half a row.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Part {
  T of[kCount];
};
template <int kCount>
PB_DEVICE Part<float, kCount> load_floats(const float* from) {
  return *reinterpret_cast<const Part<float, kCount>*>(from);
}

/// A lane's elements of a bfloat16 row, the first half first.
template <int kN>
struct Row {
  static constexpr int kEach = kN / 32;
  Part<uint32_t, kEach / 2> half[2] = {};

  PB_DEVICE void load(const void* tensor, uint32_t row, int lane) {
    const auto* from = static_cast<const Part<uint32_t, kEach / 2>*>(tensor) +
                       (row * (2 * kRowLanes) + static_cast<uint32_t>(lane));
    PB_UNROLL
    for (int i = 0; i < 2; ++i) half[i] = from[i * kRowLanes];
  }
  PB_DEVICE float at(int i) const {
    const uint32_t word = half[i / kEach].of[i % kEach / 2];
    return i % 2 == 0 ? bf16_low(word) : bf16_high(word);
  }
};
/// Rounds a lane's elements of a row.
template <int kN>
PB_DEVICE void store_row(const float (&values)[kN / 16], void* tensor, uint32_t row, int lane) {
  constexpr int kEach = kN / 32;
  auto* const to = static_cast<Part<uint32_t, kEach / 2>*>(tensor) +
                   (row * (2 * kRowLanes) + static_cast<uint32_t>(lane));
  PB_UNROLL
  for (int i = 0; i < 2; ++i) {
    Part<uint32_t, kEach / 2> words;
    PB_UNROLL
    for (int j = 0; j < kEach; j += 2)
      words.of[j / 2] = pack_bf16(values[i * kEach + j], values[i * kEach + j + 1]);
    to[i * kRowLanes] = words;
  }
}

/// The factors of a group's heads for 32 tokens: with own = dt sigmoid(trap) = gamma, scale is own
/// and what the next token's dt leaves.
PB_DEVICE void store_factors(const RotaryBackward& p, int64_t batch, int64_t first_head, int heads,
                             int64_t start, Factors* to) {
  for (int i = thread_index(); i < heads * kStep; i += kThreads) {
    const int64_t token = start + i % kStep;
    const int64_t at = (batch * p.num_heads + first_head + i / kStep) * p.seqlen + token;
    Factors factors = {0.0f, 0.0f, 0.0f, 0.0f};
    if (token < p.seqlen) {
      const float gamma = p.dt[at] * sigmoid(p.trap[at]);
      factors.grad_qk_dot = p.grad_qk_dot[at];
      factors.mixed = gamma * factors.grad_qk_dot;
      factors.scale = gamma;
      if (token + 1 < p.seqlen) factors.scale += p.dt[at + 1] * sigmoid(-p.trap[at + 1]);
    }
    to[i] = factors;
  }
}

/// Sums four values over sixteen lanes: lane l has that of index l / 4.
PB_DEVICE float sum_of_four(const float (&values)[4], int lane) {
  const bool is_high = (lane & 8) != 0, is_odd = (lane & 4) != 0;
  float two[2];
  PB_UNROLL
  for (int i = 0; i < 2; ++i) {
    two[i] = is_high ? values[2 + i] : values[i];
    two[i] += shfl_xor_sync(is_high ? values[i] : values[2 + i], 8);
  }
  float sum = is_odd ? two[1] : two[0];
  sum += shfl_xor_sync(is_odd ? two[0] : two[1], 4);
  sum += shfl_xor_sync(sum, 2);
  return sum + shfl_xor_sync(sum, 1);
}

/// A half warp's two tokens.
template <int kN, int kR>
struct Turner {
  using shape_t = Shape<kN, kR>;
  static constexpr int kEach = shape_t::kEach, kAll = 2 * kEach;
  static constexpr int kPairs = kEach / 2;  // of a lane in either half
  static constexpr int kAngles = shape_t::kTurned * kPairs;
  using angles_t = std::conditional_t<kPairs == 2, uint32_t, uint16_t>;  // a lane's of a half
  /// What is read for one head.
  struct Reads {
    Row<kN> q[kOwn], k[kOwn];
    uint32_t angles[kOwn][shape_t::kTurned] = {};  // of either rotated half, two or one
  };

  const RotaryBackward& p;
  int lane, num_valid;
  int64_t batch, first;  // of the tokens: in the row
  Row<kN> q[kOwn], k[kOwn];
  float grad_q[kOwn][kAll] = {}, grad_k[kOwn][kAll] = {};
  // Of one head, over both tokens.
  float sum_q[kAll], sum_k[kAll], sum_angles[kAngles];

  PB_DEVICE Turner(const RotaryBackward& problem, int64_t b, int64_t start, int64_t group)
      : p(problem), lane(thread_index() % kRowLanes), batch(b) {
    first = start + thread_index() / kRowLanes * kOwn;
    const int64_t rest = p.seqlen - first;
    num_valid = rest >= kOwn ? kOwn : rest > 0 ? static_cast<int>(rest) : 0;
    PB_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      if (j >= num_valid) continue;
      q[j].load(p.q, group_row(j, group), lane);
      k[j].load(p.k, group_row(j, group), lane);
    }
  }
  PB_DEVICE int64_t token(int j) const { return batch * p.seqlen + first + j; }
  PB_DEVICE uint32_t group_row(int j, int64_t group) const {
    return static_cast<uint32_t>(token(j) * p.num_groups + group);
  }
  PB_DEVICE int column(int i) const { return i / kEach * (kN / 2) + lane * kEach + i % kEach; }
  PB_DEVICE int angle(int i) const { return i / kPairs * (kN / 4) + lane * kPairs + i % kPairs; }

  /// A head's row of a token. With 32 bits, for there are fewer than 2^27, and one factor left, an
  /// address is one instruction.
  PB_DEVICE uint32_t row(int j, int head) const {
    return static_cast<uint32_t>(token(j)) * static_cast<uint32_t>(p.num_heads) +
           static_cast<uint32_t>(head);
  }
  PB_DEVICE void read(Reads& reads, int head) const {
    PB_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      if (j >= num_valid) continue;
      const uint32_t at = row(j, head);
      reads.q[j].load(p.grad_q_rotated, at, lane);
      reads.k[j].load(p.grad_k_scaled, at, lane);
      const auto* from =
          static_cast<const angles_t*>(p.angles_cumsum) + (at * (kR / kPairs) + lane);
      PB_UNROLL
      for (int half = 0; half < shape_t::kTurned; ++half)
        reads.angles[j][half] = from[half * kRowLanes];
    }
  }

  /// One head of one token. `values`: <.> of grad_scale and <q, k>, at j and 2 + j.
  PB_DEVICE void turn(const Reads& reads, int j, const Factors& by, const float (&q_bias)[kAll],
                      const float (&k_bias)[kAll], float (&values)[4], float (&angles)[kAngles]) {
    float along_k = 0.0f, along = 0.0f;
    PB_UNROLL
    for (int i = 0; i < kAll; i += 2) {
      const float q0 = q[j].at(i) + q_bias[i], q1 = q[j].at(i + 1) + q_bias[i + 1];
      const float k0 = k[j].at(i) + k_bias[i], k1 = k[j].at(i + 1) + k_bias[i + 1];
      float u0 = reads.q[j].at(i), u1 = reads.q[j].at(i + 1);
      float w0 = reads.k[j].at(i), w1 = reads.k[j].at(i + 1);
      if (i / 2 < kAngles) {
        // The remainder keeps the index inside where the branch is not taken.
        const uint32_t word = reads.angles[j][i / kEach % shape_t::kTurned];
        float sine, cosine;
        sincos_approx(i / 2 % kPairs == 0 ? bf16_low(word) : bf16_high(word), sine, cosine);
        const float from_q = u0, from_k = w0;
        u0 = cosine * from_q + sine * u1;
        u1 = cosine * u1 - sine * from_q;
        w0 = cosine * from_k + sine * w1;
        w1 = cosine * w1 - sine * from_k;
        angles[i / 2 % kAngles] = q0 * u1 - q1 * u0 + by.scale * (k0 * w1 - k1 * w0);
      }
      along_k += k0 * w0 + k1 * w1;
      along += q0 * k0 + q1 * k1;
      u0 += by.mixed * k0;
      u1 += by.mixed * k1;
      w0 = by.scale * w0 + by.mixed * q0;
      w1 = by.scale * w1 + by.mixed * q1;
      add(j, i, u0, w0);
      add(j, i + 1, u1, w1);
    }
    values[j] = along_k;
    values[2 + j] = by.grad_qk_dot * along;
  }
  PB_DEVICE void add(int j, int i, float u, float w) {
    grad_q[j][i] += u;
    grad_k[j][i] += w;
    sum_q[i] = j == 0 ? u : sum_q[i] + u;
    sum_k[i] = j == 0 ? w : sum_k[i] + w;
  }

  /// One head: `factors` has the factors of its 32 tokens.
  PB_DEVICE void turn_head(const Reads& reads, int head, const Factors* factors) {
    float q_bias[kAll], k_bias[kAll], values[4];
    PB_UNROLL
    for (int i = 0; i < kAll; i += kEach) {
      const auto from_q = load_floats<kEach>(p.q_bias + head * kN + column(i));
      const auto from_k = load_floats<kEach>(p.k_bias + head * kN + column(i));
      PB_UNROLL
      for (int x = 0; x < kEach; ++x) {
        q_bias[i + x] = from_q.of[x];
        k_bias[i + x] = from_k.of[x];
      }
    }
    PB_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      float angles[kAngles];
      turn(reads, j, factors[thread_index() / kRowLanes * kOwn + j], q_bias, k_bias, values,
           angles);
      PB_UNROLL
      for (int i = 0; i < kAngles; ++i)
        sum_angles[i] = j == 0 ? angles[i] : sum_angles[i] + angles[i];
      if (j < num_valid) store_angles(angles, row(j, head));
    }
    const float sum = sum_of_four(values, lane);
    const int j = lane / 4 % 2;
    float* const to = lane < 8 ? p.grad_scale : p.grad_gamma;
    if (lane % 4 == 0 && j < num_valid)
      to[(batch * p.num_heads + head) * p.seqlen + first + j] = sum;
  }
  PB_DEVICE void store_angles(const float (&angles)[kAngles], uint32_t at) const {
    using part_t = Part<float, kPairs>;
    auto* const to = reinterpret_cast<part_t*>(p.grad_cumsum) + (at * (kR / kPairs) + lane);
    PB_UNROLL
    for (int half = 0; half < shape_t::kTurned; ++half) {
      part_t part;
      PB_UNROLL
      for (int i = 0; i < kPairs; ++i) part.of[i] = angles[half * kPairs + i];
      to[half * kRowLanes] = part;
    }
  }

  /// The warp's sums of that head: the lower half warp has those for q_bias, the upper for k_bias.
  PB_DEVICE void stage(typename shape_t::Sums& to) const {
    const bool is_upper = (thread_index() & kRowLanes) != 0;
    PB_UNROLL
    for (int i = 0; i < kAll; i += kEach) {
      Part<float, kEach> part;
      PB_UNROLL
      for (int x = 0; x < kEach; ++x) {
        part.of[x] = is_upper ? sum_k[i + x] : sum_q[i + x];
        part.of[x] += shfl_xor_sync(is_upper ? sum_q[i + x] : sum_k[i + x], kRowLanes);
      }
      *reinterpret_cast<Part<float, kEach>*>(&to.of[(is_upper ? kN : 0) + column(i)]) = part;
    }
    PB_UNROLL
    for (int i = 0; i < kAngles; ++i) {
      const float sum = sum_angles[i] + shfl_xor_sync(sum_angles[i], kRowLanes);
      if (!is_upper) to.of[2 * kN + angle(i)] = sum;
    }
  }

  PB_DEVICE void store(int64_t group) const {
    PB_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      if (j >= num_valid) continue;
      store_row<kN>(grad_q[j], p.grad_q, group_row(j, group), lane);
      store_row<kN>(grad_k[j], p.grad_k, group_row(j, group), lane);
    }
  }
};

/// Adds the warps' sums of a head, in their order, to what is there if `is_added`. A column is one
/// thread's.
template <int kColumns, typename sums_t>
PB_DEVICE void add_stage(const sums_t* warps, bool is_added, sums_t& to) {
  PB_UNROLL
  for (int i = 0; i < (kColumns + kThreads - 1) / kThreads; ++i) {
    const int column = i * kThreads + thread_index();
    if (column >= kColumns) continue;
    float sum = is_added ? to.of[column] : 0.0f;
    PB_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) sum += warps[warp].of[column];
    to.of[column] = sum;
  }
}

/// `storage`: Shape<kN, kR>::bytes of the heads of a group, 16-byte aligned.
template <int kN, int kR>
PB_DEVICE void turn_cta(const RotaryBackward& p, int64_t group, int64_t block, int64_t batch,
                        unsigned char* storage) {
  using sums_t = typename Shape<kN, kR>::Sums;
  constexpr int kColumns = Shape<kN, kR>::kColumns;
  const int heads = static_cast<int>(p.num_heads / p.num_groups);
  const int first_head = static_cast<int>(group) * heads;
  auto* const stages = reinterpret_cast<sums_t*>(storage);
  sums_t* const sums = stages + kStages * kWarps;
  auto* const factors = reinterpret_cast<Factors*>(sums + heads);
  const int64_t begin = block * p.block_tokens, after = begin + p.block_tokens;
  const int64_t end = after < p.seqlen ? after : p.seqlen;
  for (int64_t start = begin; start < end; start += kStep) {
    store_factors(p, batch, first_head, heads, start, factors);
    // The factors are whole, and the last heads' stages have been used.
    sync_threads();
    Turner<kN, kR> turner(p, batch, start, group);
    typename Turner<kN, kR>::Reads reads;
    turner.read(reads, first_head);
    for (int head = 0; head < heads; ++head) {
      const auto here = reads;
      if (head + 1 < heads) turner.read(reads, first_head + head + 1);
      turner.turn_head(here, first_head + head, factors + head * kStep);
      turner.stage(stages[head % kStages * kWarps + thread_index() / 32]);
      if (head % 2 == 0 && head + 1 < heads) continue;
      // All warps' sums are there; the other stages are free, for their readers have come here,
      // too.
      sync_threads();
      for (int done = head / 2 * 2; done <= head; ++done)
        add_stage<kColumns>(stages + done % kStages * kWarps, start > begin, sums[done]);
    }
    turner.store(group);
  }
  // A column's thread alone has written it.
  float* const to = p.sums + ((batch * p.num_blocks + block) * p.num_heads + first_head) * kColumns;
  for (int head = 0; head < heads; ++head)
    for (int column = thread_index(); column < kColumns; column += kThreads)
      to[head * kColumns + column] = sums[head].of[column];
}

/// The sum of a column's blocks [0, count), `stride` apart.
PB_DEVICE float sum_of_blocks(const float* from, int64_t count, int64_t stride) {
  float sum = 0.0f;
  for (int64_t block = 0; block < count; block += kAhead) {
    float values[kAhead];
    PB_UNROLL
    for (int i = 0; i < kAhead; ++i)
      values[i] = block + i < count ? from[(block + i) * stride] : 0.0f;
    PB_UNROLL
    for (int i = 0; i < kAhead; ++i) sum += values[i];
  }
  return sum;
}
/// Puts what the blocks after each one sum to in its place.
PB_DEVICE void sum_after(float* blocks, int64_t count, int64_t stride) {
  float sum = 0.0f;
  for (int64_t end = count; end > 0; end -= kAhead) {
    float values[kAhead];
    PB_UNROLL
    for (int i = 0; i < kAhead; ++i) values[i] = end > i ? blocks[(end - 1 - i) * stride] : 0.0f;
    PB_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (end > i) blocks[(end - 1 - i) * stride] = sum;
      sum += values[i];
    }
  }
}

template <int kN, int kR>
PB_DEVICE void sum_cta(const RotaryBackward& p, int64_t cta) {
  constexpr int kColumns = Shape<kN, kR>::kColumns;
  const int64_t index = cta * kThreads + thread_index(), stride = p.num_heads * kColumns;
  if (index >= stride) return;
  const int64_t head = index / kColumns, blocks = p.num_blocks;
  const int column = static_cast<int>(index % kColumns);
  if (column < 2 * kN) {
    float* const to = column < kN ? p.grad_q_bias : p.grad_k_bias;
    to[head * kN + column % kN] = sum_of_blocks(p.sums + index, p.batch * blocks, stride);
    return;
  }
  for (int64_t batch = 0; batch < p.batch; ++batch)
    sum_after(p.sums + batch * blocks * stride + index, blocks, stride);
}

/// Sums eight values over kLanes neighbours: lane l has that of index l / (kLanes / 8).
template <int kLanes>
PB_DEVICE float sum_of_eight(const float (&values)[kAhead], int lane) {
  static_assert(kAhead == 8 && kLanes >= 8 && kLanes <= 32, "three exchanges, and whole warps");
  float four[4], two[2];
  const bool bits[3] = {(lane & kLanes / 2) != 0, (lane & kLanes / 4) != 0,
                        (lane & kLanes / 8) != 0};
  PB_UNROLL
  for (int i = 0; i < 4; ++i) {
    four[i] = bits[0] ? values[4 + i] : values[i];
    four[i] += shfl_xor_sync(bits[0] ? values[i] : values[4 + i], kLanes / 2);
  }
  PB_UNROLL
  for (int i = 0; i < 2; ++i) {
    two[i] = bits[1] ? four[2 + i] : four[i];
    two[i] += shfl_xor_sync(bits[1] ? four[i] : four[2 + i], kLanes / 4);
  }
  float sum = bits[2] ? two[1] : two[0];
  sum += shfl_xor_sync(bits[2] ? two[0] : two[1], kLanes / 8);
  PB_UNROLL
  for (int step = kLanes / 16; step > 0; step /= 2) sum += shfl_xor_sync(sum, step);
  return sum;
}

/// grad_dt and grad_trap of one token; `by_angles` is the angles' part of the first.
PB_DEVICE void store_scalars(const RotaryBackward& p, int64_t at, bool is_first, float by_angles) {
  const float scale = p.grad_scale[at], before = is_first ? 0.0f : p.grad_scale[at - 1];
  const float own = scale + p.grad_gamma[at], share = sigmoid(p.trap[at]);
  p.grad_dt[at] = own * share + before * (1.0f - share) + by_angles;
  p.grad_trap[at] = (own - before) * p.dt[at] * share * (1.0f - share);
}

template <int kN, int kR>
PB_DEVICE void angle_cta(const RotaryBackward& p, int64_t cta, int64_t block, int64_t batch) {
  constexpr int kLanes = kR / 2, kColumns = Shape<kN, kR>::kColumns;
  const int64_t pair = cta * kThreads + thread_index();
  const bool is_active = pair < p.num_heads * kLanes;  // the others only take part in the exchange
  const int64_t head = is_active ? pair / kLanes : 0;
  const int lane = static_cast<int>(pair % kLanes);
  const int64_t begin = block * p.block_tokens, after = begin + p.block_tokens;
  const int64_t scalars = (batch * p.num_heads + head) * p.seqlen;
  // Of words of two angles: fewer than 2^32, see is_rotary_served.
  const auto stride = static_cast<uint32_t>(p.num_heads) * kLanes;
  const auto first = static_cast<uint32_t>(batch * p.seqlen) * stride +
                     static_cast<uint32_t>(head) * kLanes + static_cast<uint32_t>(lane);
  const float* suffix =
      p.sums + ((batch * p.num_blocks + block) * p.num_heads + head) * kColumns + 2 * kN;
  float sum[2] = {suffix[2 * lane], suffix[2 * lane + 1]};
  for (int64_t end = after < p.seqlen ? after : p.seqlen; end > begin; end -= kAhead) {
    Part<float, 2> grads[kAhead] = {};
    uint32_t angles[kAhead] = {};
    float dt[kAhead] = {}, parts[kAhead];
    PB_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const int64_t token = end - 1 - i;
      if (token < begin || !is_active) continue;
      const uint32_t at = first + static_cast<uint32_t>(token) * stride;
      grads[i] = reinterpret_cast<const Part<float, 2>*>(p.grad_cumsum)[at];
      angles[i] = static_cast<const uint32_t*>(p.angles)[at];
      dt[i] = p.dt[scalars + token];
    }
    PB_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const float turn[2] = {tanh_of(bf16_low(angles[i])), tanh_of(bf16_high(angles[i]))};
      sum[0] += grads[i].of[0];
      sum[1] += grads[i].of[1];
      parts[i] = kPi * (sum[0] * turn[0] + sum[1] * turn[1]);
      const int64_t token = end - 1 - i;
      if (token < begin || !is_active) continue;
      const float by = kPi * dt[i];
      static_cast<uint32_t*>(p.grad_angles)[first + static_cast<uint32_t>(token) * stride] =
          pack_bf16(by * sum[0] * (1.0f - turn[0] * turn[0]),
                    by * sum[1] * (1.0f - turn[1] * turn[1]));
    }
    const float total = sum_of_eight<kLanes>(parts, lane);
    const int64_t token = end - 1 - lane / (kLanes / 8);
    if (is_active && lane % (kLanes / 8) == 0 && token >= begin)
      store_scalars(p, scalars + token, token == 0, total);
  }
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse::rotary
