#pragma once
#include "mimo_chunk.cuh"

// Axes: b batch, s seqlen, r num_ranks, h num_heads, n head_dim_qk, p head_dim_v; a row of a tile
// is (token, rank), 64 rows a chunk.
// plan_kernel: one CTA; only for packed sequences: where their chunks lie.
// added_kernel: grid (h, chunks), 256 threads, three CTAs per SM at p = 64, else two. What a chunk
//   adds to the state and to its gradient, x^T k and g^T q with the decays in x and g: 58 KiB of
//   shared memory at n = 128, p = 64, r = 4.
// pass_kernel: grid (p n / 2048, h, sequences x 2), 256 threads of 8 elements each: the scan over
//   chunks, in place, forwards for S0 and backwards for dS, 8 to 16 chunks of loads in flight.
// Rounded to bfloat16: q and k after the turn, x and g times their decays, what a chunk adds, S0
//   and dS.
namespace patchbench::ops::mamba3_mimo_gqa_bwd {

constexpr int kPassThreads = 256, kPassElements = 8, kPassDepth = 8;

struct Span {
  int begin, length;
};

/// Tokens of a packed sequence, held inside [0, seqlen] whatever cu_seqlens says.
__device__ inline Span sequence_span(const MimoBackward& problem, int64_t sequence) {
  const int seqlen = static_cast<int>(problem.seqlen);
  const int begin = min(max(problem.cu_seqlens[sequence], 0), seqlen);
  const int end = min(max(problem.cu_seqlens[sequence + 1], begin), seqlen);
  return {begin, end - begin};
}

__global__ void __launch_bounds__(kThreads) plan_kernel(MimoBackward problem) {
  __shared__ int sums[kThreads];
  const int tokens = static_cast<int>(problem.chunk_tokens());
  const int num_chunks = static_cast<int>(problem.num_chunks);
  const int num_sequences = static_cast<int>(problem.num_sequences);
  const int own = static_cast<int>(threadIdx.x);
  int before = 0;
  for (int base = 0; base < num_sequences; base += kThreads) {
    const int sequence = base + own;
    const int length = sequence < num_sequences ? sequence_span(problem, sequence).length : 0;
    const int count = (length + tokens - 1) / tokens;
    sums[own] = count;
    // Each step reads what the last one wrote.
    __syncthreads();
    for (int step = 1; step < kThreads; step *= 2) {
      const int other = own >= step ? sums[own - step] : 0;
      __syncthreads();
      sums[own] += other;
      __syncthreads();
    }
    // Wrong lengths must not pass the last chunk.
    if (sequence < num_sequences)
      problem.first_chunks[sequence] = min(before + sums[own] - count, num_chunks);
    before += sums[kThreads - 1];
    __syncthreads();
  }
  if (own == 0) problem.first_chunks[num_sequences] = min(before, num_chunks);
  // The search reads what other threads wrote.
  __syncthreads();
  for (int chunk = own; chunk < num_chunks; chunk += kThreads) {
    int4 span = make_int4(0, 0, 0, 0);
    if (chunk < problem.first_chunks[num_sequences]) {
      int low = 0, high = num_sequences;  // the last sequence whose first chunk is not behind
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (problem.first_chunks[middle] <= chunk ? low : high) = middle;
      }
      const Span of = sequence_span(problem, low);
      const int offset = (chunk - problem.first_chunks[low]) * tokens;
      span = make_int4(of.begin + offset, min(tokens, of.length - offset), offset == 0,
                       of.begin + of.length);
    }
    reinterpret_cast<int4*>(problem.spans)[chunk] = span;
  }
}

// ---- states ----

template <int kN, int kP>
struct alignas(16) AddedShared {
  bf16 q[kRows * kN], k[kRows * kN];
  bf16 x[kRows * kP], g[kRows * kP];
  Steps steps;
  float x_factor[kRows];
};

template <int kN, int kP>
int64_t added_bytes(const MimoBackward& problem) {
  return static_cast<int64_t>(sizeof(AddedShared<kN, kP>)) +
         problem.chunk_tokens() * (kN / 2) * int64_t{sizeof(float2)};
}

template <int kN, int kP, int kRanks>
__global__ void __launch_bounds__(kThreads, kP == 64 ? 3 : 2) added_kernel(MimoBackward problem) {
  PB_DYNAMIC_SHARED(storage);
  auto& shared = *reinterpret_cast<AddedShared<kN, kP>*>(storage);
  auto* turns = reinterpret_cast<float2*>(&shared + 1);
  const int64_t head = blockIdx.x, chunk = blockIdx.y;
  const Chunk c = chunk_of(problem, chunk, kRows / kRanks);
  if (c.length == 0) return;
  copy_raw<kN, kRanks>(problem, c, head, problem.q, shared.q);
  copy_raw<kN, kRanks>(problem, c, head, problem.k, shared.k);
  RawValues<kP, kRanks> values;
  values.load(problem, c, head);
  load_turns<kN, kRanks>(problem, c, head, turns);
  if (is_last_warp()) {
    load_steps(problem, c, head, shared.steps);
    PB_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t t = 2 * (threadIdx.x % 32) + i;
      shared.x_factor[t] = shared.steps.s[t] * shared.steps.decay_out[t];
    }
    if (threadIdx.x % 32 == 0)
      problem.decays[chunk * problem.num_heads + head] = shared.steps.whole;
  }
  // All threads read the turns and factors.
  __syncthreads();
  cp_async_wait_all();
  fill_turned<kN, kRanks, Columns::kInOrder>(c, head, problem.q_bias, turns, shared.q);
  fill_turned<kN, kRanks, Columns::kInOrder>(c, head, problem.k_bias, turns, shared.k);
  fill_values<kP, kRanks>(problem, c, head, values, shared.x_factor, shared.steps.decay_in,
                          shared.x, shared.g);
  // And each other's rows.
  __syncthreads();
  const int64_t to = (chunk * problem.num_heads + head) * kP * kN;
  PB_UNROLL
  for (int first = 0; first < kP; first += kRows) {
    Part<kN> added;
    multiply<Operand::kTransposed, Operand::kAsStored, kRows, kP, kN>(added, shared.x, shared.k, 0,
                                                                      kRows, first);
    store(added, static_cast<bf16*>(problem.states) + to + first * kN, kN, kRows);
    Part<kN> grad_added;
    multiply<Operand::kTransposed, Operand::kAsStored, kRows, kP, kN>(grad_added, shared.g,
                                                                      shared.q, 0, kRows, first);
    store(grad_added, static_cast<bf16*>(problem.grad_states) + to + first * kN, kN, kRows);
  }
}

/// state[c] = what all chunks before c added, decayed; dS likewise from the end.
__global__ void __launch_bounds__(kPassThreads) pass_kernel(MimoBackward problem) {
  const int64_t head = blockIdx.y, sequence = blockIdx.z / 2;
  const bool is_grad = blockIdx.z % 2 != 0;
  int64_t first, count;
  if (problem.cu_seqlens != nullptr) {
    first = problem.first_chunks[sequence];
    count = problem.first_chunks[sequence + 1] - first;
  } else {
    count = problem.num_chunks / problem.num_sequences;
    first = sequence * count;
  }
  const int64_t size = problem.head_dim_v * problem.head_dim_qk;
  const int64_t element = (int64_t{blockIdx.x} * kPassThreads + threadIdx.x) * kPassElements;
  if (element >= size) return;
  auto* states = static_cast<bf16*>(is_grad ? problem.grad_states : problem.states);
  const auto place = [&](int64_t i) {
    return (first + (is_grad ? count - 1 - i : i)) * problem.num_heads + head;
  };
  struct Batch {
    uint4 added[kPassDepth];
    float decay[kPassDepth];
  };
  const auto load = [&](int64_t base) {
    Batch batch;
    PB_UNROLL
    for (int u = 0; u < kPassDepth; ++u) {
      if (base + u >= count) continue;
      batch.added[u] = *reinterpret_cast<const uint4*>(states + place(base + u) * size + element);
      batch.decay[u] = problem.decays[place(base + u)];
    }
    return batch;
  };
  Eight state = {};
  Batch batch = load(0);
  for (int64_t base = 0; base < count; base += kPassDepth) {
    const Batch next = load(base + kPassDepth);
    PB_UNROLL
    for (int u = 0; u < kPassDepth; ++u) {
      if (base + u >= count) continue;
      state.store(states + place(base + u) * size + element);
      Eight values;
      values.widen_from(batch.added[u]);
      PB_UNROLL
      for (int e = 0; e < kPassElements; ++e)
        state.values[e] = state.values[e] * batch.decay[u] + values.values[e];
    }
    batch = next;
  }
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
