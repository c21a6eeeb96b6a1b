#pragma once
#include <cstdint>
#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
#include <cuda_runtime_api.h>
#endif

/// The products of q and k within one token of the Mamba-3 MIMO layer, and their gradients. No
/// framework header: raw pointers and a stream.
///
///   qk_dot[b,h,s,r,u] = sum_n (q[b,s,r,g,n] + q_bias[h,r,n]) (k[b,s,u,g,n] + k_bias[h,u,n])
///   g = h / (num_heads / num_groups)
namespace patchbench::ops::mamba3_mimo_smem_2d {

enum class ElementType { kFloat32, kBFloat16 };

/// How a tile lies in shared memory and is copied. kFlat: q and k as [chunk R, head_dim], products
/// as [chunk, R R]. kRank3: [chunk, R, head_dim] and [chunk, R, R]. Both are the same bytes.
enum class Layout { kFlat, kRank3 };
enum class Copy { kCpAsync, kTma };
struct Staging {
  Layout layout = Layout::kFlat;
  Copy copy = Copy::kTma;
};

/// All pointers are of one device, contiguous and 16-byte aligned; nothing is owned.
struct QkDot {
  const void* q = nullptr;  ///< [batch, seqlen, num_ranks, num_groups, head_dim]
  const void* k = nullptr;
  const float* q_bias = nullptr;  ///< [num_heads, num_ranks, head_dim]
  const float* k_bias = nullptr;
  void* qk_dot = nullptr;             ///< forwards: [batch, num_heads, seqlen, R, R]
  const void* grad_qk_dot = nullptr;  ///< backwards: as qk_dot
  void* grad_q = nullptr;             ///< as q
  void* grad_k = nullptr;
  float* partial = nullptr;      ///< scratch [num_spans, num_heads, 2, num_ranks, head_dim]
  float* grad_q_bias = nullptr;  ///< as q_bias
  float* grad_k_bias = nullptr;
  uint32_t* check = nullptr;  ///< of launch_staging alone: [num_spans, num_groups, 256]
  int64_t batch = 0, seqlen = 0, num_ranks = 0, num_groups = 0, num_heads = 0, head_dim = 0;
};

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// What is copied how: TMA wants rows of a tile of 16 bytes and more.
struct Plan {
  Layout layout;
  Copy operands, products;
};
/// TMA on compute capability 9.0 with a driver that encodes tensor maps, else cp.async.
Plan plan_of(const QkDot& problem, ElementType type, Staging staging, int compute_major);
/// Which tiles are copied: q, k and the products, or the products alone.
enum class Staged { kAll, kProducts };
/// num_ranks 2, 4 or 8, head_dim 64 or 128, rows, batch and groups below 65536.
bool is_served(const QkDot& problem);
/// Of shared memory that a CTA needs.
int64_t shared_bytes(const QkDot& problem, ElementType type);
/// Spans of chunks of all batch entries: a function of the extents alone, so that sums are in one
/// order everywhere.
int64_t num_spans(const QkDot& problem);

/// One launch. Sums over head_dim in float32 in a fixed order, rounded once; bitwise equal for
/// every plan. Capturable. Returns the launch's status.
cudaError_t launch_qk_dot(const QkDot& problem, ElementType type, Plan plan, cudaStream_t stream);
/// Two launches. Sums over heads, ranks and tokens in float32 in a fixed order, no atomics, grad_q
/// and grad_k rounded once; bitwise equal for every plan. Capturable.
cudaError_t launch_qk_dot_backward(const QkDot& problem, ElementType type, Plan plan,
                                   cudaStream_t stream);
/// Copies tiles as the backward does, computes nothing, and folds a word of each tile and thread
/// into `check`: what staging alone costs. bfloat16 alone.
cudaError_t launch_staging(const QkDot& problem, Plan plan, Staged staged, cudaStream_t stream);
#endif

}  // namespace patchbench::ops::mamba3_mimo_smem_2d
