#pragma once
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "kernel.cuh"
#ifdef PATCHBENCH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#endif

/// The elementwise steps of the op on every path: the CUDA kernels, CPU loops over the same
/// formulas, and plain torch. For op.cpp alone; nothing here checks its arguments.
namespace patchbench::ops::liger_flce_none_bwd {

using at::Tensor;

/// Who does the elementwise steps.
enum class Path { kCpu, kCuda, kPlain };

/// One call, checked: tensors, scalars and sizes.
struct Problem {
  Tensor hidden, weight, target, bias, class_weight, weight_total;  // the last three may be null
  LossTerms terms;
  std::string reduction;
  Path path;
  at::ScalarType acc;  // dtype of softmax and dz before its rounding
  int64_t tokens, features;
  int64_t row_tile_elements, class_tile_elements;  // of a tile of whole rows, of whole columns
  int64_t keep_elements = 0;                       // of kept logits besides grad_weight's memory
};

/// A tile's place in the whole matrix of logits.
struct Tile {
  int64_t first_row, rows, first_class, classes;
};

/// What the row pass makes of all rows.
struct RowTerms {
  Tensor ce, lse;  // [tokens], [2, tokens]
  Tensor
      weighted_sum;  // [tokens] where classes come tile by tile and labels are smoothed, else null
};

// ---- elementwise steps on the CPU ----

template <typename scalar_t, typename T>
void row_pass_cpu(const RowPass<T>& pass) {
  const int64_t vocab = pass.terms.vocab;
  const T softcap = static_cast<T>(pass.terms.softcap);
  at::parallel_for(0, pass.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t target = pass.target[i];
      if (target == pass.terms.ignore_index) {
        pass.loss[i] = pass.row_max[i] = pass.log_sum[i] = 0;
        continue;
      }
      const scalar_t* row = static_cast<const scalar_t*>(pass.logits) + i * vocab;
      RunningSoftmax<T> softmax;
      T weighted_sum = 0;
      // In blocks: one running fp32 sum over a vocabulary would lose log2(vocab) bits.
      constexpr int kBlock = 256;
      for (int64_t first = 0; first < vocab; first += kBlock) {
        const int count = static_cast<int>(std::min<int64_t>(kBlock, vocab - first));
        T y[kBlock], weighted = 0;
        for (int k = 0; k < count; ++k) {
          y[k] = capped(static_cast<T>(row[first + k]), softcap);
          weighted += (pass.class_weight != nullptr ? pass.class_weight[first + k] : T(1)) * y[k];
        }
        softmax.add(y, count);
        weighted_sum += weighted;
      }
      const bool in_range = target >= 0 && target < vocab;
      const T nan = std::numeric_limits<T>::quiet_NaN();
      const T target_logit = in_range ? capped(static_cast<T>(row[target]), softcap) : nan;
      const T target_weight =
          in_range && pass.class_weight != nullptr ? pass.class_weight[target] : T(1);
      const T total = pass.weight_total != nullptr ? *pass.weight_total : static_cast<T>(vocab);
      pass.row_max[i] = softmax.max;
      pass.log_sum[i] = softmax.log_sum();
      pass.loss[i] = row_loss(pass.terms, pass.row_max[i], pass.log_sum[i], target_logit,
                              target_weight, total, weighted_sum);
    }
  });
}

template <typename scalar_t, typename T>
void grad_pass_cpu(const GradPass<T>& pass) {
  at::parallel_for(0, pass.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      scalar_t* row = static_cast<scalar_t*>(pass.logits) + i * pass.classes;
      const RowGradient<T> gradient(pass, i);
      if (gradient.is_ignored) {
        std::fill(row, row + pass.classes, static_cast<scalar_t>(0));
        continue;
      }
      const T* weights =
          pass.class_weight != nullptr ? pass.class_weight + pass.first_class : nullptr;
      for (int64_t j = 0; j < pass.classes; ++j) {
        const T weight = weights != nullptr ? weights[j] : T(1);
        row[j] = static_cast<scalar_t>(gradient.at(static_cast<T>(row[j]), weight,
                                                   pass.first_class + j == gradient.target_class));
      }
    }
  });
}

// ---- the same steps in plain torch ----

/// Whether each target lies in the vocabulary; where it does not, some 0 <= index < vocab.
inline std::pair<Tensor, Tensor> target_index(const Tensor& target, int64_t vocab) {
  return {target.ge(0).logical_and(target.lt(vocab)), target.clamp(0, vocab - 1)};
}

inline Tensor capped_plain(const Tensor& logits, const Problem& problem) {
  const Tensor z = logits.to(problem.acc);
  const double cap = problem.terms.softcap;
  return cap == 0 ? z : z.div(cap).tanh().mul(cap);
}

inline Tensor total_weight(const Problem& problem) {
  if (problem.weight_total.defined()) return problem.weight_total;
  return at::full({}, static_cast<double>(problem.terms.vocab),
                  problem.hidden.options().dtype(problem.acc));
}

inline void row_pass_plain(const Problem& problem, const Tensor& logits, const Tensor& target,
                           const Tensor& loss, const Tensor& lse) {
  const auto& terms = problem.terms;
  const Tensor valid = target.ne(terms.ignore_index);
  const auto [in_range, index] = target_index(target, terms.vocab);
  const Tensor y = capped_plain(logits, problem);
  const auto [row_max, at_max] = y.max(1);
  const Tensor others = (y - row_max.unsqueeze(1)).exp().scatter_(1, at_max.unsqueeze(1), 0);
  const Tensor log_sum = others.sum(1).log1p();
  Tensor ce = log_sum - (y.gather(1, index.unsqueeze(1)).squeeze(1) - row_max);
  ce = ce * (1 - terms.label_smoothing);
  if (problem.class_weight.defined()) ce = ce * problem.class_weight.index_select(0, index);
  if (terms.label_smoothing != 0) {
    const Tensor weighted =
        problem.class_weight.defined() ? at::mv(y, problem.class_weight) : y.sum(1);
    ce = ce + (total_weight(problem) * (row_max + log_sum) - weighted) *
                  (terms.label_smoothing / static_cast<double>(terms.vocab));
  }
  ce = at::where(in_range, ce, std::numeric_limits<double>::quiet_NaN());
  loss.copy_(at::where(valid, ce, 0));
  lse.select(0, 0).copy_(at::where(valid, row_max, 0));
  lse.select(0, 1).copy_(at::where(valid, log_sum, 0));
}

/// Row scales of one tile: gradients of the loss by ce_i and zl_i, [rows] each.
struct Scales {
  Tensor ce, z;  // z is undefined without a z-loss
};

inline void grad_pass_plain(const Problem& problem, const Tensor& logits, const Tile& tile,
                            const Tensor& target, const Tensor& lse, const Scales& scales) {
  const auto& terms = problem.terms;
  const double smoothing = terms.label_smoothing;
  const double share = smoothing / static_cast<double>(terms.vocab);
  const auto [in_range, index] = target_index(target, terms.vocab);
  const Tensor y = capped_plain(logits, problem);
  const Tensor log_p = (y - lse.select(0, 0).unsqueeze(1)) - lse.select(0, 1).unsqueeze(1);
  Tensor target_scale = scales.ce * (1 - smoothing);
  if (problem.class_weight.defined()) {
    target_scale = target_scale * problem.class_weight.index_select(0, index);
  }
  target_scale = at::where(in_range, target_scale, std::numeric_limits<double>::quiet_NaN());
  Tensor rest = at::zeros_like(scales.ce);
  if (smoothing != 0) rest = rest + scales.ce * share * total_weight(problem);
  if (terms.lse_square_scale != 0) {
    rest = rest + scales.z * (2 * terms.lse_square_scale) * lse.sum(0);
  }
  const Tensor classes =
      at::arange(tile.first_class, tile.first_class + tile.classes, target.options());
  const Tensor is_target = classes.eq(target.unsqueeze(1));
  Tensor grad = at::where(is_target, log_p.expm1(), log_p.exp()) * target_scale.unsqueeze(1) +
                log_p.exp() * rest.unsqueeze(1);
  if (smoothing != 0) {
    Tensor weight_grad = (scales.ce * share).unsqueeze(1);
    if (problem.class_weight.defined()) {
      weight_grad = weight_grad * problem.class_weight.narrow(0, tile.first_class, tile.classes);
    }
    grad = grad - weight_grad;
  }
  if (terms.softcap != 0) grad = grad * (1 - (y / terms.softcap).square());
  logits.copy_(at::where(target.ne(terms.ignore_index).unsqueeze(1), grad, 0));
}

// ---- dispatch of the elementwise steps ----

#ifdef PATCHBENCH_CUDA
inline LogitsType logits_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? LogitsType::kFloat32 : LogitsType::kBFloat16;
}
#endif

template <typename T>
const T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

template <typename T>
RowPass<T> row_pass_of(const Problem& problem, const Tensor& logits, const Tile& tile,
                       const RowTerms& terms) {
  T* weighted_sum =
      terms.weighted_sum.defined() ? terms.weighted_sum.mutable_data_ptr<T>() : nullptr;
  return {.logits = logits.const_data_ptr(),
          .target = problem.target.const_data_ptr<int64_t>() + tile.first_row,
          .class_weight = data_or_null<T>(problem.class_weight),
          .weight_total = data_or_null<T>(problem.weight_total),
          .loss = terms.ce.mutable_data_ptr<T>() + tile.first_row,
          .row_max = terms.lse.mutable_data_ptr<T>() + tile.first_row,
          .log_sum = terms.lse.mutable_data_ptr<T>() + problem.tokens + tile.first_row,
          .weighted_sum = weighted_sum,
          .rows = tile.rows,
          .classes = tile.classes,
          .first_class = tile.first_class,
          .terms = problem.terms};
}

/// ce[i] and lse[:, i] of the tile's rows, from their logits: whole rows, on CUDA also tiles of all
/// rows in the order of their classes.
inline void row_pass(const Problem& problem, const Tensor& logits, const Tile& tile,
                     const RowTerms& terms) {
  if (problem.path == Path::kPlain) {
    row_pass_plain(problem, logits, problem.target.narrow(0, tile.first_row, tile.rows),
                   terms.ce.narrow(0, tile.first_row, tile.rows),
                   terms.lse.narrow(1, tile.first_row, tile.rows));
    return;
  }
#ifdef PATCHBENCH_CUDA
  if (problem.path == Path::kCuda) {
    C10_CUDA_CHECK(launch_row_pass(row_pass_of<float>(problem, logits, tile, terms),
                                   logits_type(logits), c10::cuda::getCurrentCUDAStream()));
    return;
  }
#endif
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, logits.scalar_type(), "flce", [&] {
    using acc_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    row_pass_cpu<scalar_t, acc_t>(row_pass_of<acc_t>(problem, logits, tile, terms));
  });
}

template <typename T>
GradPass<T> grad_pass_of(const Problem& problem, const Tensor& logits, const Tile& tile,
                         const Tensor& lse, const Scales& scales) {
  const T* z_scale = data_or_null<T>(scales.z);
  return {.logits = logits.mutable_data_ptr(),
          .target = problem.target.const_data_ptr<int64_t>() + tile.first_row,
          .class_weight = data_or_null<T>(problem.class_weight),
          .weight_total = data_or_null<T>(problem.weight_total),
          .row_max = lse.const_data_ptr<T>() + tile.first_row,
          .log_sum = lse.const_data_ptr<T>() + problem.tokens + tile.first_row,
          .ce_scale = scales.ce.const_data_ptr<T>() + tile.first_row,
          .z_scale = z_scale != nullptr ? z_scale + tile.first_row : nullptr,
          .rows = tile.rows,
          .classes = tile.classes,
          .first_class = tile.first_class,
          .terms = problem.terms};
}

/// Overwrites the tile's logits with dz. `lse` and `scales` are of all rows.
inline void grad_pass(const Problem& problem, const Tensor& logits, const Tile& tile,
                      const Tensor& lse, const Scales& scales) {
  if (problem.path == Path::kPlain) {
    Scales part{scales.ce.narrow(0, tile.first_row, tile.rows), {}};
    if (scales.z.defined()) part.z = scales.z.narrow(0, tile.first_row, tile.rows);
    grad_pass_plain(problem, logits, tile, problem.target.narrow(0, tile.first_row, tile.rows),
                    lse.narrow(1, tile.first_row, tile.rows), part);
    return;
  }
#ifdef PATCHBENCH_CUDA
  if (problem.path == Path::kCuda) {
    C10_CUDA_CHECK(launch_grad_pass(grad_pass_of<float>(problem, logits, tile, lse, scales),
                                    logits_type(logits), c10::cuda::getCurrentCUDAStream()));
    return;
  }
#endif
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, logits.scalar_type(), "flce", [&] {
    using acc_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    grad_pass_cpu<scalar_t, acc_t>(grad_pass_of<acc_t>(problem, logits, tile, lse, scales));
  });
}

/// Row pass and gradient pass over a tile of whole rows: ce, lse, and dz in place of the logits.
inline void row_and_grad_pass(const Problem& problem, const Tensor& logits, const Tile& tile,
                              const RowTerms& terms, const Scales& scales) {
#ifdef PATCHBENCH_CUDA
  if (problem.path == Path::kCuda) {
    C10_CUDA_CHECK(
        launch_row_and_grad_pass(row_pass_of<float>(problem, logits, tile, terms),
                                 grad_pass_of<float>(problem, logits, tile, terms.lse, scales),
                                 logits_type(logits), c10::cuda::getCurrentCUDAStream()));
    return;
  }
#endif
  row_pass(problem, logits, tile, terms);
  grad_pass(problem, logits, tile, terms.lse, scales);
}

/// grad *= factor in place, computed in factor's dtype (that of softmax) and rounded once.
inline void scale_in_place(Tensor& grad, const Tensor& factor) {
#ifdef PATCHBENCH_CUDA
  if (grad.is_cuda() && (grad.scalar_type() == at::kFloat || grad.scalar_type() == at::kBFloat16)) {
    C10_CUDA_CHECK(launch_scale(grad.mutable_data_ptr(), grad.numel(),
                                factor.const_data_ptr<float>(), logits_type(grad),
                                c10::cuda::getCurrentCUDAStream()));
    return;
  }
#endif
  grad.mul_(factor);
}

}  // namespace patchbench::ops::liger_flce_none_bwd
