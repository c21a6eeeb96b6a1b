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

/// Where row i of [b, s, ...] begins: row i is (i / seqlen, i % seqlen). i and seqlen are at most
/// 2^31 - 1, so that the division has 32 bits.
PB_CE_HOST_DEVICE int64_t row_offset(int64_t i, int64_t seqlen, int64_t stride_b,
                                     int64_t stride_s) {
  const auto row = static_cast<uint32_t>(i), length = static_cast<uint32_t>(seqlen);
  return row / length * stride_b + row % length * stride_s;
}

/// [b, s, v] by its strides.
struct RowLayout {
  int64_t seqlen = 0, vocab = 0;
  int64_t stride_b = 0, stride_s = 0, stride_v = 0;
  PB_CE_HOST_DEVICE int64_t row(int64_t i) const {
    return row_offset(i, seqlen, stride_b, stride_s);
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
  /// [rows], or null: no loss, and no row is ignored. An ignored row is not read; its loss and
  /// statistics are 0. The CPU's loops leave it alone.
  T* loss = nullptr;
  int64_t ignore_index = -100;
  T label_smoothing = 0;
};

/// result = (the sum of terms, or the numerator if there is one) / (the number of labels that are
/// not ignored, for the mean).
struct TotalPass {
  const float* terms = nullptr;      ///< [rows]; null if there is a numerator
  const float* numerator = nullptr;  ///< one number, or null
  const int64_t* labels = nullptr;   ///< [rows]
  float* result = nullptr;
  int64_t rows = 0, ignore_index = -100;
  bool is_mean = false;
};

/// Backward. `grad` may be the logits' own memory where these are contiguous: each thread reads an
/// element before it writes the same one. A row whose gradient is 0 is not read.
template <typename T>
struct GradientPass {
  const void* logits = nullptr;
  RowLayout layout;
  const int64_t* labels = nullptr;  ///< [rows]
  const T* row_max = nullptr;       ///< [rows]
  const T* rest = nullptr;          ///< [rows]
  const T* scale = nullptr;         ///< [b, s] by its strides, g_i / D
  int64_t scale_stride_b = 0, scale_stride_s = 0;
  void* grad = nullptr;  ///< [rows, vocab]
  int64_t rows = 0, vocab_begin = 0, vocab_total = 0, ignore_index = -100;
  T label_smoothing = 0;
  PB_CE_HOST_DEVICE T scale_of(int64_t i) const {
    return scale[row_offset(i, layout.seqlen, scale_stride_b, scale_stride_s)];
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

/// (1 - e) (log1p(r) - (x_t - m)) + e (log1p(r) - (sum_j x_j / V - m)), e the smoothing.
template <typename T>
PB_CE_HOST_DEVICE T loss_of_row(T row_max, T rest, T label_logit, T logit_sum, T vocab,
                                T smoothing) {
  const T log_sum = std::log1p(rest), loss = log_sum - (label_logit - row_max);
  if (smoothing == 0) return loss;
  return loss * (1 - smoothing) + (log_sum - (logit_sum / vocab - row_max)) * smoothing;
}

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// On `stream`, no host synchronisation. `num_processors` counts the GPU's multiprocessors. There
/// are at most 2^31 - 1 rows.
cudaError_t launch_statistics(const StatisticsPass<float>& pass, LogitsType type,
                              int num_processors, cudaStream_t stream);
cudaError_t launch_total(const TotalPass& pass, cudaStream_t stream);
cudaError_t launch_gradient(const GradientPass<float>& pass, LogitsType type, int num_processors,
                            cudaStream_t stream);
#endif

}  // namespace patchbench::ops::te_fused_ce
