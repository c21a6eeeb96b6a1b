#pragma once
#include <cmath>
#include <cstdint>
#ifdef __CUDACC__
#define PB_CE_HOST_DEVICE __host__ __device__ inline
#else
#define PB_CE_HOST_DEVICE inline
#endif
#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
#include <cuda_runtime_api.h>
#endif

/// Cross entropy of given logits: the passes over a row, shared by the CPU loops (op.cpp) and the
/// CUDA kernels (kernel.cu). Formulas: op.h. No framework header: raw pointers and a stream.
namespace patchbench::ops::te_fused_ce {

/// Storage type of the logits.
enum class LogitsType { kFloat32, kFloat16, kBFloat16 };

/// [b, s, v] by its strides: row i is (i / seqlen, i % seqlen).
struct RowLayout {
  int64_t seqlen = 0, vocab = 0;
  int64_t stride_b = 0, stride_s = 0, stride_v = 0;
  PB_CE_HOST_DEVICE int64_t row(int64_t i) const {
    return i / seqlen * stride_b + i % seqlen * stride_s;
  }
};

/// Forward. Pointers are of one device; nothing is owned.
template <typename T>
struct StatisticsPass {
  const void* logits = nullptr;
  RowLayout layout;
  const int64_t* labels = nullptr;  ///< [rows]
  T* row_max = nullptr;             ///< [rows], m_i
  T* rest = nullptr;                ///< [rows], r_i
  T* label_logit = nullptr;         ///< [rows], -inf where the label is not among these classes
  T* logit_sum = nullptr;           ///< [rows], sum_j x_ij
  int64_t rows = 0, vocab_begin = 0;
};

/// Backward. `grad` may be the logits' own memory where these are contiguous: each thread reads an
/// element before it writes the same one.
template <typename T>
struct GradientPass {
  const void* logits = nullptr;
  RowLayout layout;
  const int64_t* labels = nullptr;  ///< [rows]
  const T* row_max = nullptr;       ///< [rows]
  const T* rest = nullptr;          ///< [rows]
  const T* scale = nullptr;         ///< [rows], g_i / D
  void* grad = nullptr;             ///< [rows, vocab]
  int64_t rows = 0, vocab_begin = 0, vocab_total = 0, ignore_index = -100;
  double label_smoothing = 0;
};

/// The maximum and the sum of exponentials, seen so far. `rest` is the sum without the maximum's
/// own 1, so that a confident row keeps its digits.
template <typename T>
struct OnlineSum {
  T max = -INFINITY;
  T rest = 0;
  /// Takes another sum in. A maximum of -inf has seen nothing (or -inf alone, which weighs
  /// nothing).
  PB_CE_HOST_DEVICE void add(T other_max, T other_rest) {
    if (other_max == -INFINITY) return;
    if (max == -INFINITY) {
      max = other_max;
      rest = other_rest;
    } else if (other_max > max) {
      rest = other_rest + (1 + rest) * std::exp(max - other_max);
      max = other_max;
    } else {
      rest += (1 + other_rest) * std::exp(other_max - max);
    }
  }
};

/// (exp(x - m) / (1 + r) - e / V - (1 - e) [is_label]) scale. At the label p - 1 + e is taken as
/// expm1(x - m - log1p(r)) + e.
template <typename T>
PB_CE_HOST_DEVICE T gradient_of(T x, T row_max, T rest, T share, T smoothing, bool is_label,
                                T scale) {
  const T y = x - row_max;
  const T slope =
      is_label ? std::expm1(y - std::log1p(rest)) + smoothing : std::exp(y) / (1 + rest);
  return (slope - share) * scale;
}

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// On `stream`, no host synchronisation. One block a row; rows <= 2^31 - 1.
cudaError_t launch_statistics(const StatisticsPass<float>& pass, LogitsType type,
                              cudaStream_t stream);
cudaError_t launch_gradient(const GradientPass<float>& pass, LogitsType type, cudaStream_t stream);
#endif

}  // namespace patchbench::ops::te_fused_ce
