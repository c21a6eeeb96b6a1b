#include "mimo_backward.cuh"

#include <algorithm>
#include <type_traits>

#include "../kernel/launch.cuh"
#include "mimo_primitives.cuh"

// Over the primitives.
#include "mimo_gradients.cuh"
#include "mimo_states.cuh"

namespace patchbench::ops::mamba3_mimo_gqa_bwd {
namespace {

constexpr int64_t kMaxGrid = 65535;

bool is_head_dim(int64_t extent) { return extent == 64 || extent == 128; }

/// Calls `body` with the head dims as compile-time constants.
template <typename Body>
auto with_head_dims(const MimoBackward& problem, const Body& body) {
  using narrow_t = std::integral_constant<int, 64>;
  using wide_t = std::integral_constant<int, 128>;
  const bool is_wide_v = problem.head_dim_v == 128;
  if (problem.head_dim_qk == 64)
    return is_wide_v ? body(narrow_t(), wide_t()) : body(narrow_t(), narrow_t());
  return is_wide_v ? body(wide_t(), wide_t()) : body(wide_t(), narrow_t());
}

/// And with the ranks.
template <typename Body>
auto with_ranks(const MimoBackward& problem, const Body& body) {
  if (problem.num_ranks == 1) return body(std::integral_constant<int, 1>());
  if (problem.num_ranks == 2) return body(std::integral_constant<int, 2>());
  if (problem.num_ranks == 4) return body(std::integral_constant<int, 4>());
  return body(std::integral_constant<int, 8>());
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <int kN, int kP>
cudaError_t launch_chunks(const MimoBackward& problem, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(problem.num_heads),
                  static_cast<unsigned>(problem.num_chunks));
  return with_ranks(problem, [&](auto r) {
    return launch_kernel(chunk_kernel<kN, kP, decltype(r)::value>,
                         {.grid = grid,
                          .threads = kThreads,
                          .bytes = chunk_bytes<kN, kP>(problem),
                          .stream = stream},
                         problem);
  });
}

/// S0 and dS of every chunk.
cudaError_t launch_states(const MimoBackward& problem, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(problem.num_heads);
  if (problem.cu_seqlens != nullptr) plan_kernel<<<1, kThreads, 0, stream>>>(problem);
  const cudaError_t status = with_head_dims(problem, [&](auto n, auto p) {
    constexpr int kN = decltype(n)::value, kP = decltype(p)::value;
    return with_ranks(problem, [&](auto r) {
      return launch_kernel(added_kernel<kN, kP, decltype(r)::value>,
                           {.grid = dim3(heads, static_cast<unsigned>(problem.num_chunks)),
                            .threads = kThreads,
                            .bytes = added_bytes<kN, kP>(problem),
                            .stream = stream},
                           problem);
    });
  });
  if (status != cudaSuccess) return status;
  const int64_t elements = problem.head_dim_v * problem.head_dim_qk;
  const dim3 grid(static_cast<unsigned>(elements / (kPassThreads * kPassElements)), heads,
                  static_cast<unsigned>(2 * problem.num_sequences));
  pass_kernel<<<grid, kPassThreads, 0, stream>>>(problem);
  return cudaGetLastError();
}

}  // namespace

bool is_served(const MimoBackward& problem) {
  const int64_t r = problem.num_ranks;
  return (r == 1 || r == 2 || r == 4 || r == 8) && is_head_dim(problem.head_dim_qk) &&
         is_head_dim(problem.head_dim_v) &&
         problem.batch * problem.seqlen * problem.num_heads > 0 && problem.num_sequences > 0 &&
         problem.num_chunks <= kMaxGrid && 2 * problem.num_sequences <= kMaxGrid &&
         problem.num_heads <= kMaxGrid && problem.seqlen < (int64_t{1} << 30);
}

int64_t shared_bytes(const MimoBackward& problem) {
  return with_head_dims(problem, [&](auto n, auto p) {
    constexpr int kN = decltype(n)::value, kP = decltype(p)::value;
    return std::max(chunk_bytes<kN, kP>(problem), added_bytes<kN, kP>(problem));
  });
}

cudaError_t launch_mimo_backward(const MimoBackward& problem, cudaStream_t stream) {
  cudaError_t status = launch_states(problem, stream);
  if (status != cudaSuccess) return status;
  status = with_head_dims(problem, [&](auto n, auto p) {
    return launch_chunks<decltype(n)::value, decltype(p)::value>(problem, stream);
  });
  if (status != cudaSuccess) return status;
  const auto heads = static_cast<unsigned>(problem.num_heads);
  const dim3 sum_grid(static_cast<unsigned>(ceil_div(problem.num_sums() + 1, kSumColumns)), heads);
  sum_kernel<<<sum_grid, dim3(kSumColumns, kSumStrands), 0, stream>>>(problem);
  const int64_t steps = problem.num_chunks * problem.num_heads * problem.chunk_tokens();
  steps_kernel<<<static_cast<unsigned>(ceil_div(steps, kThreads)), kThreads, 0, stream>>>(problem);
  return cudaGetLastError();
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
