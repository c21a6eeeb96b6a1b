#include "op.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <string_view>
#include <vector>

#include "../kernel/fallback.h"
#include "kernel.cuh"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace patchbench::ops::te_fused_ce {
namespace {

using at::Tensor;

constexpr std::string_view kSlug = "te_fused_ce";
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;  // grid.x of the kernels

enum class Path { kCpu, kCuda, kPlain };

Path path_of(const Tensor& logits) {
  if (is_fallback_forced(kSlug)) return Path::kPlain;
  if (logits.is_cpu()) return Path::kCpu;
#ifdef PATCHBENCH_CUDA
  if (logits.is_cuda() && logits.scalar_type() != at::kDouble &&
      at::cuda::getDeviceProperties(logits.get_device())->major >= 8) {
    return Path::kCuda;
  }
#endif
  return Path::kPlain;
}

at::ScalarType compute_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::string dtype_name(at::ScalarType type) { return c10::getDtypeNames(type).first; }

void check_logits(const Tensor& logits, const Tensor& labels) {
  TORCH_CHECK(logits.dim() == 3, "cross_entropy: logits must have 3 axes [b, s, v], got ",
              logits.dim());
  TORCH_CHECK(labels.dim() == 2, "cross_entropy: labels must have 2 axes [b, s], got ",
              labels.dim());
  TORCH_CHECK(labels.sym_size(0) == logits.sym_size(0) && labels.sym_size(1) == logits.sym_size(1),
              "cross_entropy: labels must have shape ", logits.sym_sizes().slice(0, 2), ", got ",
              labels.sym_sizes());
  TORCH_CHECK(logits.sym_size(2) > 0, "cross_entropy: logits must have at least 1 class, got 0");
  TORCH_CHECK(logits.sym_size(0) * logits.sym_size(1) <= kMaxRows,
              "cross_entropy: logits must have at most ", kMaxRows, " rows, got ",
              logits.sym_size(0) * logits.sym_size(1));
  TORCH_CHECK(labels.device() == logits.device(), "cross_entropy: labels must be on ",
              logits.device(), ", got ", labels.device());
  const auto type = logits.scalar_type();
  TORCH_CHECK(
      type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kDouble,
      "cross_entropy: logits must have dtype float32, float16, bfloat16 or float64, got ",
      dtype_name(type));
  TORCH_CHECK(labels.scalar_type() == at::kLong,
              "cross_entropy: labels must have dtype int64, got ",
              dtype_name(labels.scalar_type()));
}

void check_options(const CrossEntropyOptions& options) {
  const std::string& reduction = options.reduction;
  TORCH_CHECK(reduction == "none" || reduction == "mean" || reduction == "sum",
              "cross_entropy: reduction must be none, mean or sum, got ", reduction);
  TORCH_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1,
              "cross_entropy: label_smoothing must lie in [0, 1], got ", options.label_smoothing);
}

void check_statistics(const Tensor& statistics, const Tensor& labels) {
  TORCH_CHECK(statistics.dim() == 3 && statistics.sym_size(0) == 4 &&
                  statistics.sym_size(1) == labels.sym_size(0) &&
                  statistics.sym_size(2) == labels.sym_size(1),
              "cross_entropy: statistics must have shape [4, b, s] of the labels, got ",
              statistics.sym_sizes());
  TORCH_CHECK(statistics.scalar_type() == at::kFloat || statistics.scalar_type() == at::kDouble,
              "cross_entropy: statistics must have dtype float32 or float64, got ",
              dtype_name(statistics.scalar_type()));
}

/// On CUDA looking at the labels would be a host synchronisation.
void check_labels(const Tensor& labels, int64_t vocab, int64_t ignore_index) {
  if (!labels.is_cpu()) return;
  const Tensor flat = labels.contiguous();
  const int64_t* label = flat.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    TORCH_CHECK_INDEX(label[i] == ignore_index || (label[i] >= 0 && label[i] < vocab),
                      "cross_entropy: labels[", i / labels.size(1), ", ", i % labels.size(1),
                      "] must lie in [0, ", vocab, ") or be ignore_index ", ignore_index, ", got ",
                      label[i]);
  }
}

RowLayout layout_of(const Tensor& logits) {
  return {logits.size(1), logits.size(2), logits.stride(0), logits.stride(1), logits.stride(2)};
}

#ifdef PATCHBENCH_CUDA
LogitsType type_of(const Tensor& logits) {
  return logits.scalar_type() == at::kFloat  ? LogitsType::kFloat32
         : logits.scalar_type() == at::kHalf ? LogitsType::kFloat16
                                             : LogitsType::kBFloat16;
}
#endif

// ---- passes ----

/// Calls `work` with a value of the stored type and one of the type that is computed in.
template <typename Work>
void by_type(at::ScalarType type, const Work& work) {
  if (type == at::kDouble) return work(double(), double());
  if (type == at::kFloat) return work(float(), float());
  if (type == at::kHalf) return work(at::Half(), float());
  work(at::BFloat16(), float());
}

template <typename scalar_t, typename T>
void statistics_on_cpu(const StatisticsPass<T>& pass) {
  at::parallel_for(0, pass.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const scalar_t* row = static_cast<const scalar_t*>(pass.logits) + pass.layout.row(i);
      OnlineSum<double> sum;
      double total = 0;
      for (int64_t j = 0; j < pass.layout.vocab; ++j) {
        const auto x = static_cast<double>(row[j * pass.layout.stride_v]);
        sum.add(x, 0);
        total += x;
      }
      const int64_t label = pass.labels[i] - pass.vocab_begin;
      const bool is_here = label >= 0 && label < pass.layout.vocab;
      pass.row_max[i] = static_cast<T>(sum.max);
      pass.rest[i] = static_cast<T>(sum.rest);
      pass.label_logit[i] =
          is_here ? static_cast<T>(row[label * pass.layout.stride_v]) : static_cast<T>(-INFINITY);
      pass.logit_sum[i] = static_cast<T>(total);
    }
  });
}

template <typename scalar_t, typename T>
void gradient_on_cpu(const GradientPass<T>& pass) {
  const T smoothing = static_cast<T>(pass.label_smoothing);
  const T share = smoothing / static_cast<T>(pass.vocab_total);
  at::parallel_for(0, pass.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const scalar_t* row = static_cast<const scalar_t*>(pass.logits) + pass.layout.row(i);
      scalar_t* grad = static_cast<scalar_t*>(pass.grad) + i * pass.layout.vocab;
      const bool is_ignored = pass.labels[i] == pass.ignore_index;
      const int64_t label = pass.labels[i] - pass.vocab_begin;
      for (int64_t j = 0; j < pass.layout.vocab; ++j) {
        const T x = static_cast<T>(row[j * pass.layout.stride_v]);
        const T value = gradient_of(x, pass.row_max[i], pass.rest[i], share, smoothing, j == label,
                                    pass.scale[i]);
        grad[j] = static_cast<scalar_t>(is_ignored ? T(0) : value);
      }
    }
  });
}

template <typename T>
StatisticsPass<T> statistics_pass(const Tensor& logits, const Tensor& labels,
                                  const Tensor& statistics, int64_t vocab_begin) {
  const int64_t rows = labels.numel();
  T* base = statistics.data_ptr<T>();
  return {.logits = logits.const_data_ptr(),
          .layout = layout_of(logits),
          .labels = labels.const_data_ptr<int64_t>(),
          .row_max = base,
          .rest = base + rows,
          .label_logit = base + 2 * rows,
          .logit_sum = base + 3 * rows,
          .rows = rows,
          .vocab_begin = vocab_begin};
}

/// [4, b, s] in torch.
Tensor plain_statistics(const Tensor& logits, const Tensor& labels, int64_t vocab_begin) {
  const Tensor x = logits.to(compute_type(logits));
  const Tensor row_max = x.amax(2, true);
  const Tensor label = (labels - vocab_begin).unsqueeze(2);
  const Tensor is_here = label.ge(0).logical_and(label.lt(x.size(2)));
  const Tensor found = x.gather(2, label.masked_fill(is_here.logical_not(), 0));
  // The maximum's own 1 is left out of the sum, so that a confident row keeps its digits.
  const Tensor is_max =
      at::zeros_like(x, x.options().dtype(at::kBool)).scatter_(2, x.argmax(2, true), true);
  const Tensor rest = (x - row_max).exp().masked_fill(is_max, 0).sum(2);
  return at::stack({row_max.squeeze(2), rest,
                    found.masked_fill(is_here.logical_not(), -INFINITY).squeeze(2), x.sum(2)});
}

Tensor statistics_of(const Tensor& logits, const Tensor& labels, int64_t vocab_begin) {
  check_logits(logits, labels);
  const c10::OptionalDeviceGuard guard(logits.device());
  const Path path = path_of(logits);
  if (path == Path::kPlain) return plain_statistics(logits, labels, vocab_begin);
  const auto options = logits.options().dtype(compute_type(logits));
  const Tensor statistics = at::empty({4, logits.size(0), logits.size(1)}, options);
  const Tensor y = labels.contiguous();
#ifdef PATCHBENCH_CUDA
  if (path == Path::kCuda) {
    C10_CUDA_CHECK(launch_statistics(statistics_pass<float>(logits, y, statistics, vocab_begin),
                                     type_of(logits), at::cuda::getCurrentCUDAStream()));
    return statistics;
  }
#endif
  by_type(logits.scalar_type(), [&](auto element, auto wide) {
    statistics_on_cpu<decltype(element)>(
        statistics_pass<decltype(wide)>(logits, y, statistics, vocab_begin));
  });
  return statistics;
}

/// g_i / D, [b, s] contiguous. Filled, not multiplied: what stands at an ignored row may be inf.
Tensor scale_of(const Tensor& grad_output, const Tensor& labels, at::ScalarType type,
                const CrossEntropyOptions& options) {
  const Tensor ignored = labels.eq(options.ignore_index);
  Tensor scale = grad_output.to(type);
  if (options.reduction == "mean") scale = scale / ignored.logical_not().sum().to(type);
  return scale.expand_as(labels).masked_fill(ignored, 0).contiguous();
}

Tensor plain_gradient(const Tensor& scale, const Tensor& statistics, const Tensor& logits,
                      const Tensor& labels, int64_t vocab_begin, int64_t vocab_total,
                      const CrossEntropyOptions& options) {
  const Tensor x = logits.to(statistics.scalar_type());
  const Tensor y = x - statistics[0].unsqueeze(2), rest = statistics[1].unsqueeze(2);
  const Tensor classes = at::arange(x.size(2), labels.options()) + vocab_begin;
  const Tensor is_label = labels.unsqueeze(2).eq(classes);
  const double smoothing = options.label_smoothing;
  const Tensor slope =
      at::where(is_label, (y - rest.log1p()).expm1() + smoothing, y.exp() / (1 + rest));
  const Tensor grad = (slope - smoothing / static_cast<double>(vocab_total)) * scale.unsqueeze(2);
  return grad.masked_fill(labels.eq(options.ignore_index).unsqueeze(2), 0).to(logits.scalar_type());
}

template <typename T>
GradientPass<T> gradient_pass(const Tensor& scale, const Tensor& statistics, const Tensor& logits,
                              const Tensor& labels, int64_t vocab_begin, int64_t vocab_total,
                              const CrossEntropyOptions& options, const Tensor& grad) {
  const T* base = statistics.const_data_ptr<T>();
  return {.logits = logits.const_data_ptr(),
          .layout = layout_of(logits),
          .labels = labels.const_data_ptr<int64_t>(),
          .row_max = base,
          .rest = base + labels.numel(),
          .scale = scale.const_data_ptr<T>(),
          .grad = grad.data_ptr(),
          .rows = labels.numel(),
          .vocab_begin = vocab_begin,
          .vocab_total = vocab_total,
          .ignore_index = options.ignore_index,
          .label_smoothing = options.label_smoothing};
}

/// The gradient in memory of its own, or in the logits' where the options say so.
Tensor gradient_of_logits(const Tensor& grad_output, const Tensor& statistics, const Tensor& logits,
                          const Tensor& labels, int64_t vocab_begin, int64_t vocab_total,
                          const CrossEntropyOptions& options) {
  check_logits(logits, labels);
  check_options(options);
  check_statistics(statistics, labels);
  TORCH_CHECK(
      options.reduction == "none" ? grad_output.sizes() == labels.sizes() : grad_output.dim() == 0,
      "cross_entropy: grad_output must have the loss's shape, got ", grad_output.sizes());
  TORCH_CHECK(!options.overwrites_logits || logits.is_contiguous(),
              "cross_entropy: logits must be contiguous to be overwritten, got strides ",
              logits.strides());
  const c10::OptionalDeviceGuard guard(logits.device());
  const Tensor scale = scale_of(grad_output, labels, statistics.scalar_type(), options);
  const Path path = path_of(logits);
  if (path == Path::kPlain) {
    const Tensor grad =
        plain_gradient(scale, statistics, logits, labels, vocab_begin, vocab_total, options);
    return options.overwrites_logits ? logits.detach().copy_(grad) : grad;
  }
  const Tensor y = labels.contiguous(), held = statistics.contiguous();
  const Tensor grad =
      options.overwrites_logits ? logits.detach() : at::empty(logits.sizes(), logits.options());
#ifdef PATCHBENCH_CUDA
  if (path == Path::kCuda) {
    C10_CUDA_CHECK(launch_gradient(
        gradient_pass<float>(scale, held, logits, y, vocab_begin, vocab_total, options, grad),
        type_of(logits), at::cuda::getCurrentCUDAStream()));
    return grad;
  }
#endif
  by_type(logits.scalar_type(), [&](auto element, auto wide) {
    gradient_on_cpu<decltype(element)>(gradient_pass<decltype(wide)>(
        scale, held, logits, y, vocab_begin, vocab_total, options, grad));
  });
  return grad;
}

Tensor loss_of(const Tensor& statistics, const Tensor& labels, int64_t vocab_total,
               const CrossEntropyOptions& options) {
  check_options(options);
  check_statistics(statistics, labels);
  check_labels(labels, vocab_total, options.ignore_index);
  const Tensor row_max = statistics[0], log_sum = statistics[1].log1p();
  const Tensor ignored = labels.eq(options.ignore_index);
  Tensor loss = log_sum - (statistics[2] - row_max);
  if (options.label_smoothing > 0) {
    const Tensor even = log_sum - (statistics[3] / static_cast<double>(vocab_total) - row_max);
    loss = loss * (1 - options.label_smoothing) + even * options.label_smoothing;
  }
  loss = loss.masked_fill(ignored, 0);
  if (options.reduction == "none") return loss;
  const Tensor total = loss.sum();
  if (options.reduction == "sum") return total;
  return total / ignored.logical_not().sum().to(total.scalar_type());
}

// ---- autograd ----

class CrossEntropyFunction : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& logits,
                        const Tensor& labels, const CrossEntropyOptions& options) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor statistics = cross_entropy_statistics(logits, labels);
    ctx->save_for_backward({logits, labels, statistics});
    ctx->saved_data["reduction"] = options.reduction;
    ctx->saved_data["ignore_index"] = options.ignore_index;
    ctx->saved_data["label_smoothing"] = options.label_smoothing;
    ctx->saved_data["overwrites_logits"] = options.overwrites_logits;
    return cross_entropy_loss(statistics, labels, logits.size(2), options);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const CrossEntropyOptions options{
        .reduction = ctx->saved_data["reduction"].toStringRef(),
        .ignore_index = ctx->saved_data["ignore_index"].toInt(),
        .label_smoothing = ctx->saved_data["label_smoothing"].toDouble(),
        .overwrites_logits = ctx->saved_data["overwrites_logits"].toBool()};
    TORCH_CHECK(!options.overwrites_logits || !torch::autograd::get_current_graph_task_keep_graph(),
                "cross_entropy: a graph that is kept for another backward needs the logits; set "
                "overwrites_logits to False");
    const Tensor& logits = saved[0];
    const Tensor grad =
        cross_entropy_backward(grads[0], saved[2], logits, saved[1], 0, logits.size(2), options);
    // Another reader of the logits in this graph then raises, as after any in-place operation.
    if (options.overwrites_logits) logits.unsafeGetTensorImpl()->bump_version();
    return {grad, Tensor(), Tensor()};
  }
};

Tensor without_grad(const Tensor& logits, const Tensor& labels, c10::string_view reduction,
                    int64_t ignore_index, double label_smoothing, bool overwrites_logits) {
  const CrossEntropyOptions options{std::string(reduction), ignore_index, label_smoothing,
                                    overwrites_logits};
  return cross_entropy_loss(cross_entropy_statistics(logits, labels), labels, logits.size(2),
                            options);
}

Tensor with_grad(const Tensor& logits, const Tensor& labels, c10::string_view reduction,
                 int64_t ignore_index, double label_smoothing, bool overwrites_logits) {
  return CrossEntropyFunction::apply(logits, labels,
                                     CrossEntropyOptions{std::string(reduction), ignore_index,
                                                         label_smoothing, overwrites_logits});
}

Tensor backward_kernel(const Tensor& grad_output, const Tensor& statistics, const Tensor& logits,
                       const Tensor& labels, int64_t vocab_begin, int64_t vocab_total,
                       c10::string_view reduction, int64_t ignore_index, double label_smoothing) {
  return gradient_of_logits(grad_output, statistics, logits, labels, vocab_begin, vocab_total,
                            {std::string(reduction), ignore_index, label_smoothing, false});
}

Tensor loss_kernel(const Tensor& statistics, const Tensor& labels, int64_t vocab_total,
                   c10::string_view reduction, int64_t ignore_index, double label_smoothing) {
  return loss_of(statistics, labels, vocab_total,
                 {std::string(reduction), ignore_index, label_smoothing, false});
}

Tensor statistics_meta(const Tensor& logits, const Tensor& labels, int64_t) {
  check_logits(logits, labels);
  return at::empty_symint({4, logits.sym_size(0), logits.sym_size(1)},
                          logits.options().dtype(compute_type(logits)));
}

Tensor backward_meta(const Tensor&, const Tensor& statistics, const Tensor& logits,
                     const Tensor& labels, int64_t, int64_t, c10::string_view, int64_t, double) {
  check_logits(logits, labels);
  check_statistics(statistics, labels);
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

}  // namespace

Tensor cross_entropy_statistics(const Tensor& logits, const Tensor& labels, int64_t vocab_begin) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::cross_entropy_statistics", "")
                             .typed<Tensor(const Tensor&, const Tensor&, int64_t)>();
  return op.call(logits, labels, vocab_begin);
}

Tensor cross_entropy_combine(const Tensor& statistics) {
  TORCH_CHECK(statistics.dim() == 4 && statistics.size(0) > 0 && statistics.size(1) == 4,
              "cross_entropy: statistics must have shape [ranks, 4, b, s], got ",
              statistics.sizes());
  const auto parts = statistics.unbind(1);
  const Tensor best = parts[0].argmax(0, true);
  const Tensor row_max = parts[0].gather(0, best);
  // The best rank's own 1 is left out of the sum; a rank of -inf alone weighs nothing.
  const Tensor sums = (1 + parts[1]) * (parts[0] - row_max).exp();
  const Tensor rests = sums.scatter(0, best, parts[1].gather(0, best));
  return at::stack({row_max.squeeze(0), rests.sum(0), parts[2].amax(0), parts[3].sum(0)});
}

Tensor cross_entropy_loss(const Tensor& statistics, const Tensor& labels, int64_t vocab_total,
                          const CrossEntropyOptions& options) {
  return loss_of(statistics, labels, vocab_total, options);
}

Tensor cross_entropy_backward(const Tensor& grad_output, const Tensor& statistics,
                              const Tensor& logits, const Tensor& labels, int64_t vocab_begin,
                              int64_t vocab_total, const CrossEntropyOptions& options) {
  if (options.overwrites_logits) {
    return gradient_of_logits(grad_output, statistics, logits, labels, vocab_begin, vocab_total,
                              options);
  }
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::cross_entropy_backward", "")
          .typed<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t,
                        int64_t, c10::string_view, int64_t, double)>();
  return op.call(grad_output, statistics, logits, labels, vocab_begin, vocab_total,
                 options.reduction, options.ignore_index, options.label_smoothing);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::cross_entropy", "")
          .typed<Tensor(const Tensor&, const Tensor&, c10::string_view, int64_t, double, bool)>();
  return op.call(logits, labels, options.reduction, options.ignore_index, options.label_smoothing,
                 options.overwrites_logits);
}

std::string cross_entropy_path(const Tensor& logits) {
  const Path path = path_of(logits);
  return path == Path::kCpu ? "cpu" : path == Path::kCuda ? "cuda" : "plain";
}

#define PB_CE_SCALARS "str reduction='mean', int ignore_index=-100, float label_smoothing=0."

TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def("cross_entropy(Tensor logits, Tensor labels, *, " PB_CE_SCALARS
        ", bool overwrites_logits=False) -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def("cross_entropy_statistics(Tensor logits, Tensor labels, int vocab_begin=0) -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def("cross_entropy_combine(Tensor statistics) -> Tensor");
  m.def("cross_entropy_loss(Tensor statistics, Tensor labels, int vocab_total, *, " PB_CE_SCALARS
        ") -> Tensor");
  m.def(
      "cross_entropy_backward(Tensor grad_output, Tensor statistics, Tensor logits, "
      "Tensor labels, int vocab_begin, int vocab_total, *, " PB_CE_SCALARS ") -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def("cross_entropy_path(Tensor logits) -> str");
}

TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("cross_entropy", without_grad);
  m.impl("cross_entropy_path", cross_entropy_path);
}

TORCH_LIBRARY_IMPL(patchbench, CompositeImplicitAutograd, m) {
  m.impl("cross_entropy_combine", cross_entropy_combine);
  m.impl("cross_entropy_loss", loss_kernel);
}

TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("cross_entropy_statistics", statistics_of);
  m.impl("cross_entropy_backward", backward_kernel);
}

TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("cross_entropy_statistics", statistics_of);
  m.impl("cross_entropy_backward", backward_kernel);
}

TORCH_LIBRARY_IMPL(patchbench, Meta, m) {
  m.impl("cross_entropy_statistics", statistics_meta);
  m.impl("cross_entropy_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(patchbench, Autograd, m) {
  m.impl("cross_entropy", with_grad);
  m.impl("cross_entropy_statistics", torch::autograd::autogradNotImplementedFallback());
  m.impl("cross_entropy_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace patchbench::ops::te_fused_ce
