#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#ifdef __CUDACC__
#define PB_HOST_DEVICE __host__ __device__ inline
#else
#define PB_HOST_DEVICE inline
#endif
#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
#include <cuda_runtime_api.h>
#endif

/// The elementwise half of fused linear cross entropy: what happens to a tile of logits between the
/// GEMMs. The formulas below are shared by the CPU loops (op.cpp) and the CUDA kernels (kernel.cu).
/// No framework header: raw pointers and a stream.
///
/// Letters of the formulas: i a token, j a class, z the logits, y = softcap * tanh(z / softcap) (or
/// z), V the vocabulary, w the class weights (1 where there are none), W = sum_j w_j, eps the label
/// smoothing, lambda the factor of the z-loss, t_i the target, m_i = max_j y_ij,
/// s_i = log sum_j exp(y_ij - m_i), so that lse_i = m_i + s_i.
///
///   ce_i = (1 - eps) w_t (lse_i - y_it) + (eps / V) (W lse_i - sum_j w_j y_ij)
///   zl_i = lambda lse_i^2
///   dz_ij = [ce_scale_i ((1 - eps) w_t (p_ij - delta_jt) + (eps / V) (W p_ij - w_j))
///            + z_scale_i 2 lambda lse_i p_ij] (1 - (y_ij / softcap)^2),  p_ij = exp(y_ij - lse_i)
///
/// m and s are kept apart, since their sum loses the digits of a confident token: lse_i - y_it is
/// s_i - (y_it - m_i), and p_it - 1 is expm1((y_it - m_i) - s_i). For the same reason s_i is log1p
/// of the sum without the maximum's own 1.
namespace patchbench::ops::liger_flce_none_bwd {

/// Storage type of a tile of logits.
enum class LogitsType { kFloat32, kBFloat16 };

/// The scalars of one problem. `softcap` is 0 where there is none.
struct LossTerms {
  double label_smoothing = 0, lse_square_scale = 0, softcap = 0;
  int64_t ignore_index = -100;
  int64_t vocab = 0;
};

/// Reduces a tile of logits (some rows, the classes [first_class, first_class + classes)). The
/// tiles of a row come in the order of their classes; until the last one `loss` holds y_it,
/// `log_sum` the sum that its logarithm is taken of, and `weighted_sum` what it says. All pointers
/// are of one device and row-major; nothing is owned. A row whose target is the ignore_index gets
/// loss, row_max and log_sum 0 and is not read; one whose target lies outside [0, vocab) gets loss
/// NaN.
template <typename T>
struct RowPass {
  const void* logits = nullptr;     ///< [rows, classes]
  const int64_t* target = nullptr;  ///< [rows]
  const T* class_weight = nullptr;  ///< [vocab], or null: all 1
  const T* weight_total = nullptr;  ///< [1], or null: vocab
  T* loss = nullptr;                ///< [rows], ce_i
  T* row_max = nullptr;             ///< [rows], m_i
  T* log_sum = nullptr;             ///< [rows], s_i
  T* weighted_sum = nullptr;        ///< [rows], sum_j w_j y_ij; may be null for whole rows
  int64_t rows = 0, classes = 0, first_class = 0;
  LossTerms terms;
};

/// Overwrites a tile of logits (some rows, the classes [first_class, first_class + classes)) with
/// dz, computed in T and rounded once. Rows of the ignore_index become 0 whatever their scale is.
template <typename T>
struct GradPass {
  void* logits = nullptr;           ///< [rows, classes]
  const int64_t* target = nullptr;  ///< [rows]
  const T* class_weight = nullptr;  ///< [vocab], or null: all 1
  const T* weight_total = nullptr;  ///< [1], or null: vocab
  const T* row_max = nullptr;       ///< [rows]
  const T* log_sum = nullptr;       ///< [rows]
  const T* ce_scale = nullptr;      ///< [rows], gradient of the loss by ce_i
  const T* z_scale = nullptr;       ///< [rows], by zl_i; may be null where lse_square_scale is 0
  int64_t rows = 0, classes = 0, first_class = 0;
  LossTerms terms;
};

/// cap * tanh(z / cap), or z where cap is 0.
template <typename T>
PB_HOST_DEVICE T capped(T z, T cap) {
  return cap == T(0) ? z : cap * std::tanh(z / cap);
}

/// The exponential of a softmax, to the last digits of T.
struct AccurateExp {
  template <typename T>
  PB_HOST_DEVICE T operator()(T x) const {
    return std::exp(x);
  }
};

/// Running maximum m of a stream of values and the sum of exp(y - m) over all but one that has the
/// maximum: its 1 would cost the others their digits. Exact for -inf, and NaN stays.
template <typename T, typename Exp = AccurateExp>
struct RunningSoftmax {
  T max = -std::numeric_limits<T>::infinity();
  T rest = -1;  ///< of an empty stream, which has no maximum to leave out

  /// exp(y - reference), 0 for y = -inf even where the reference is -inf too.
  static PB_HOST_DEVICE T shifted_exp(T y, T reference) {
    return Exp()(y - (reference == -std::numeric_limits<T>::infinity() ? T(0) : reference));
  }
  /// Adds another stream.
  PB_HOST_DEVICE void merge(T other_max, T other_rest) {
    if (other_max > max) {
      rest = (T(1) + rest) * shifted_exp(max, other_max) + other_rest;
      max = other_max;
    } else {
      rest += (T(1) + other_rest) * shifted_exp(other_max, max);
    }
  }
  /// Adds the first `count` values of a block. Terms of 1 are counted apart, so that leaving one
  /// out is exact.
  template <int kLength>
  PB_HOST_DEVICE void add(const T (&y)[kLength], int count) {
    T largest = max;
    for (int k = 0; k < kLength; ++k) {
      if (k < count && y[k] > largest) largest = y[k];
    }
    T others = 0, ones = 0;
    for (int k = 0; k < kLength; ++k) {
      if (k >= count) continue;
      const T term = shifted_exp(y[k], largest);
      const bool is_one = term >= T(1);
      others += is_one ? T(0) : term;
      ones += is_one ? T(1) : T(0);
    }
    if (largest > max) {
      rest = (T(1) + rest) * shifted_exp(max, largest) + (others + (ones - T(1)));
      max = largest;
    } else {
      rest += others + ones;
    }
  }
  /// s = log sum exp(y - m).
  PB_HOST_DEVICE T log_sum() const { return std::log1p(rest); }
};

/// ce_i. `target_logit` is y_it; `weighted_sum` is sum_j w_j y_ij and is used only if eps != 0.
template <typename T>
PB_HOST_DEVICE T row_loss(const LossTerms& terms, T row_max, T log_sum, T target_logit,
                          T target_weight, T weight_total, T weighted_sum) {
  const T smoothing = static_cast<T>(terms.label_smoothing);
  T loss = (T(1) - smoothing) * target_weight * (log_sum - (target_logit - row_max));
  if (smoothing != T(0)) {
    loss += smoothing / static_cast<T>(terms.vocab) *
            (weight_total * (row_max + log_sum) - weighted_sum);
  }
  return loss;
}

/// The factors of one row of dz: dz_ij = (target_scale + rest) p_ij - weight_scale w_j off the
/// target.
template <typename T>
struct RowGradient {
  T row_max, log_sum, softcap;
  T target_scale;  ///< ce_scale (1 - eps) w_t
  T rest;          ///< ce_scale (eps / V) W + z_scale 2 lambda lse
  T weight_scale;  ///< ce_scale eps / V
  int64_t target_class;
  bool is_ignored;

  PB_HOST_DEVICE RowGradient(const GradPass<T>& pass, int64_t row)
      : row_max(pass.row_max[row]),
        log_sum(pass.log_sum[row]),
        softcap(static_cast<T>(pass.terms.softcap)),
        target_class(pass.target[row]),
        is_ignored(target_class == pass.terms.ignore_index) {
    const T smoothing = static_cast<T>(pass.terms.label_smoothing);
    const T vocab = static_cast<T>(pass.terms.vocab);
    const bool in_range = target_class >= 0 && target_class < pass.terms.vocab;
    T target_weight = in_range ? T(1) : std::numeric_limits<T>::quiet_NaN();
    if (in_range && pass.class_weight != nullptr) target_weight = pass.class_weight[target_class];
    const T ce_scale = pass.ce_scale[row];
    target_scale = ce_scale * (T(1) - smoothing) * target_weight;
    weight_scale = ce_scale * smoothing / vocab;
    rest = T(0);
    if (smoothing != T(0)) {
      rest = weight_scale * (pass.weight_total != nullptr ? *pass.weight_total : vocab);
    }
    if (pass.terms.lse_square_scale != 0) {
      rest += pass.z_scale[row] * T(2) * static_cast<T>(pass.terms.lse_square_scale) *
              (row_max + log_sum);
    }
  }

  /// dz of a logit off the target, where there is neither softcap nor label smoothing.
  template <typename Exp>
  PB_HOST_DEVICE T bare_off_target(T logit) const {
    return (target_scale + rest) * Exp()((logit - row_max) - log_sum);
  }

  /// dz of one logit. `class_weight` is w_j.
  PB_HOST_DEVICE T at(T logit, T class_weight, bool is_target) const {
    const T y = capped(logit, softcap);
    const T log_p = (y - row_max) - log_sum;
    T grad;
    if (is_target) {
      const T p_less_one = std::expm1(log_p);
      grad = target_scale * p_less_one + rest * (T(1) + p_less_one) - weight_scale * class_weight;
    } else {
      grad = (target_scale + rest) * std::exp(log_p) - weight_scale * class_weight;
    }
    if (softcap != T(0)) grad *= T(1) - (y / softcap) * (y / softcap);
    return grad;
  }
};

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// Starts the row pass on `stream`: one read of the tile. Rerun-stable. Returns the launch's
/// status; rows == 0 launches nothing.
cudaError_t launch_row_pass(const RowPass<float>& pass, LogitsType type, cudaStream_t stream);
/// Starts the gradient pass on `stream`: one read and one write of the tile. Rerun-stable.
cudaError_t launch_grad_pass(const GradPass<float>& pass, LogitsType type, cudaStream_t stream);
/// Starts both passes over the same whole rows in one launch; `grad` reads what `row` writes. A row
/// is read again while it is still in L2.
cudaError_t launch_row_and_grad_pass(const RowPass<float>& row, const GradPass<float>& grad,
                                     LogitsType type, cudaStream_t stream);
/// Starts values[i] *= *factor, in float32 with one rounding; reads and writes nothing where the
/// factor is 1. `values` is 16-byte aligned.
cudaError_t launch_scale(void* values, int64_t count, const float* factor, LogitsType type,
                         cudaStream_t stream);
#endif

}  // namespace patchbench::ops::liger_flce_none_bwd
