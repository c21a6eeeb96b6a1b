// patchbench::cross_entropy_* on torch's stable ABI. What its functions do: op.h.
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "../kernel/checks.h"
#include "../kernel/fallback.h"
#include "../kernel/launch.h"
#include "../kernel/library.h"
#include "kernel.cuh"

namespace patchbench::ops::te_fused_ce {
namespace {

using Pair = std::tuple<Tensor, Tensor>;

constexpr const char* kSlug = "te_fused_ce";
constexpr const char* kName = "cross_entropy";
constexpr const char* kNeeds = "float32, float16 or bfloat16 and compute capability 8.0";
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;  // grid.x of the kernels
/// A number goes to torch's operators as a float64: what it holds of an int64.
constexpr int64_t kMaxIgnoreIndex = int64_t{1} << 53;

/// The arguments of the ops: op.h.
struct Options {
  std::string reduction;
  int64_t ignore_index = -100;
  double label_smoothing = 0;
};
/// The classes [begin, begin + v) of `total`.
struct Classes {
  int64_t begin = 0, total = 0;
};

enum class Path { kCpu, kCuda, kPlain };

Path path_of(const Tensor& logits) {
  if (is_fallback_forced(kSlug)) return Path::kPlain;
  if (logits.is_cpu()) return Path::kCpu;
#ifdef PATCHBENCH_CUDA
  if (logits.is_cuda() && logits.scalar_type() != kDouble && gpu_of(logits).major >= 8)
    return Path::kCuda;
#endif
  return Path::kPlain;
}

ScalarType compute_type(const Tensor& tensor) {
  return tensor.scalar_type() == kDouble ? kDouble : kFloat;
}

// ---- checks ----

void check_logits(const Tensor& logits, const Tensor& labels) {
  check_axes(kName, "logits", logits, 3, "[b, s, v]");
  check_axes(kName, "labels", labels, 2, "[b, s]");
  check_shape(kName, "labels", labels, {logits.size(0), logits.size(1)});
  PB_CHECK(logits.size(2) > 0, kName, ": logits must have at least 1 class, got 0");
  PB_CHECK(labels.numel() <= kMaxRows, kName, ": logits must have at most ", kMaxRows,
           " rows, got ", labels.numel());
  check_device(kName, "labels", labels, logits);
  PB_CHECK(logits.is_floating_point(), kName,
           ": logits must have dtype float32, float16, bfloat16 or float64, got ",
           text_of(logits.scalar_type()));
  check_dtype(kName, "labels", labels, kLong);
}

void check_options(const Options& options) {
  const auto& [reduction, ignore_index, label_smoothing] = options;
  PB_CHECK(reduction == "none" || reduction == "mean" || reduction == "sum", kName,
           ": reduction must be none, mean or sum, got ", reduction);
  PB_CHECK(ignore_index >= -kMaxIgnoreIndex && ignore_index <= kMaxIgnoreIndex, kName,
           ": ignore_index must lie in [-2^53, 2^53], got ", ignore_index);
  PB_CHECK(label_smoothing >= 0 && label_smoothing <= 1, kName,
           ": label_smoothing must lie in [0, 1], got ", label_smoothing);
}

void check_overwritten(const Tensor& logits) {
  PB_CHECK(logits.is_contiguous(), kName, ": logits must be contiguous to be overwritten");
}

void check_statistics(const Tensor& statistics, const Tensor& labels) {
  check_device(kName, "statistics", statistics, labels);
  const ScalarType type = statistics.scalar_type();
  PB_CHECK(type == kFloat || type == kDouble, kName,
           ": statistics must have dtype float32 or float64, got ", text_of(type));
  check_shape(kName, "statistics", statistics, {4, labels.size(0), labels.size(1)});
}

/// On CUDA looking at the labels would be a host synchronisation.
void check_label_values(const Tensor& labels, int64_t vocab, int64_t ignore_index) {
  if (!labels.is_cpu()) return;
  const Tensor flat = labels.contiguous();
  const auto* label = flat.data<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    PB_CHECK_INDEX(label[i] == ignore_index || (label[i] >= 0 && label[i] < vocab), kName,
                   ": labels[", i / labels.size(1), ", ", i % labels.size(1), "] must lie in [0, ",
                   vocab, ") or be ignore_index ", ignore_index, ", got ", label[i]);
  }
}

void check_backward(const Tensor& grad_output, const Tensor& statistics, const Tensor& logits,
                    const Tensor& labels, const Classes& classes, const Options& options) {
  check_logits(logits, labels);
  check_options(options);
  check_statistics(statistics, labels);
  check_dtype(kName, "statistics", statistics, compute_type(logits));
  const int64_t end = classes.begin + logits.size(2);
  PB_CHECK(classes.begin >= 0 && end <= classes.total, kName,
           ": logits must have classes in [0, vocab_total) = [0, ", classes.total, "), got [",
           classes.begin, ", ", end, ")");
  check_device(kName, "grad_output", grad_output, logits);
  PB_CHECK(grad_output.is_floating_point(), kName,
           ": grad_output must have dtype float32, float16, bfloat16 or float64, got ",
           text_of(grad_output.scalar_type()));
  check_shape(kName, "grad_output", grad_output,
              options.reduction == "none" ? labels.shape() : Ints{});
}

RowLayout layout_of(const Tensor& logits) {
  return {logits.size(1), logits.size(2), logits.stride(0), logits.stride(1), logits.stride(2)};
}

#ifdef PATCHBENCH_CUDA
LogitsType type_of(const Tensor& logits) {
  return logits.scalar_type() == kFloat  ? LogitsType::kFloat32
         : logits.scalar_type() == kHalf ? LogitsType::kFloat16
                                         : LogitsType::kBFloat16;
}
#endif

// ---- passes ----

/// The maximum and the sum of exp(x - max) so far. `rest` is the sum without the maximum's own 1,
/// so that a confident row keeps its digits.
struct OnlineSum {
  double max = -INFINITY, rest = 0;
  void add(double x) {
    if (x == -INFINITY) return;
    if (max == -INFINITY) {
      max = x;
    } else if (x > max) {
      rest = (1 + rest) * std::exp(max - x);
      max = x;
    } else {
      rest += std::exp(x - max);
    }
  }
};

/// Calls `work` with a value of the stored type and one of the type that is computed in.
template <typename Work>
void by_type(ScalarType type, const Work& work) {
  if (type == kDouble) return work(double(), double());
  if (type == kFloat) return work(float(), float());
  if (type == kHalf) return work(torch::headeronly::Half(), float());
  work(torch::headeronly::BFloat16(), float());
}

template <typename scalar_t, typename T>
void statistics_on_cpu(const StatisticsPass<T>& pass) {
  torch::stable::parallel_for(0, pass.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const scalar_t* row = static_cast<const scalar_t*>(pass.logits) + pass.layout.row(i);
      OnlineSum sum;
      double total = 0;
      for (int64_t j = 0; j < pass.layout.vocab; ++j) {
        const auto x = static_cast<double>(row[j * pass.layout.stride_v]);
        sum.add(x);
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
  const T smoothing = pass.label_smoothing;
  const T share = smoothing / static_cast<T>(pass.vocab_total);
  torch::stable::parallel_for(0, pass.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const scalar_t* row = static_cast<const scalar_t*>(pass.logits) + pass.layout.row(i);
      scalar_t* grad = static_cast<scalar_t*>(pass.grad) + i * pass.layout.vocab;
      const bool is_ignored = pass.labels[i] == pass.ignore_index;
      const int64_t label = pass.labels[i] - pass.vocab_begin;
      const T scale = pass.scale_of(i);
      for (int64_t j = 0; j < pass.layout.vocab; ++j) {
        const T x = static_cast<T>(row[j * pass.layout.stride_v]);
        const T value =
            gradient_of(x, pass.row_max[i], pass.rest[i], share, smoothing, j == label, scale);
        grad[j] = static_cast<scalar_t>(is_ignored ? T(0) : value);
      }
    }
  });
}

template <typename T>
StatisticsPass<T> statistics_pass(const Tensor& logits, const Tensor& labels,
                                  const Tensor& statistics, int64_t vocab_begin) {
  const int64_t rows = labels.numel();
  T* base = statistics.mutable_data<T>();
  return {.logits = logits.data(),
          .layout = layout_of(logits),
          .labels = labels.data<int64_t>(),
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
  const Tensor row_max = x.amax({2}, true);
  const Tensor is_label = labels.unsqueeze(2).eq(arange(vocab_begin, x.size(2), labels));
  // The maximum's own 1 is left out of the sum, so that a confident row keeps its digits.
  const Tensor is_max = arange(0, x.size(2), labels).eq(x.argmax(2, true));
  const Tensor rest = (x - row_max).exp().masked_fill(is_max, 0).sum(Ints{2});
  const Tensor label_logit = x.masked_fill(is_label.logical_not(), -INFINITY).amax({2});
  return stack({row_max.squeeze(2), rest, label_logit, x.sum(Ints{2})}, 0);
}

Tensor statistics_of(const Tensor& logits, const Tensor& labels, int64_t vocab_begin) {
  check_logits(logits, labels);
  PB_CHECK(vocab_begin >= 0, kName, ": vocab_begin must be at least 0, got ", vocab_begin);
  const DeviceScope device(logits);
  const Path path = path_of(logits);
  if (path == Path::kPlain) {
    warn_of_plain_form(kSlug, kName, logits, kNeeds);
    return plain_statistics(logits, labels, vocab_begin);
  }
  const Tensor statistics =
      empty({4, logits.size(0), logits.size(1)}, logits, compute_type(logits));
  const Tensor y = labels.contiguous();
#ifdef PATCHBENCH_CUDA
  if (path == Path::kCuda) {
    check_cuda(kName, launch_statistics(statistics_pass<float>(logits, y, statistics, vocab_begin),
                                        type_of(logits), gpu_of(logits).num_processors,
                                        current_stream(logits)));
    return statistics;
  }
#endif
  by_type(logits.scalar_type(), [&](auto element, auto wide) {
    statistics_on_cpu<decltype(element)>(
        statistics_pass<decltype(wide)>(logits, y, statistics, vocab_begin));
  });
  return statistics;
}

#ifdef PATCHBENCH_CUDA
/// Loss and statistics.
Pair forward_on_cuda(const Tensor& logits, const Tensor& labels, const Options& options) {
  const Tensor statistics = empty({4, logits.size(0), logits.size(1)}, logits, kFloat);
  const Tensor y = labels.contiguous(), losses = empty(labels.shape(), logits, kFloat);
  const cudaStream_t stream = current_stream(logits);
  auto pass = statistics_pass<float>(logits, y, statistics, 0);
  pass.loss = losses.mutable_data<float>();
  pass.ignore_index = options.ignore_index;
  pass.label_smoothing = static_cast<float>(options.label_smoothing);
  check_cuda(kName,
             launch_statistics(pass, type_of(logits), gpu_of(logits).num_processors, stream));
  if (options.reduction == "none") return {losses, statistics};
  const Tensor loss = empty({}, logits, kFloat);
  check_cuda(kName, launch_total({.terms = losses.data<float>(),
                                  .labels = y.data<int64_t>(),
                                  .result = loss.mutable_data<float>(),
                                  .rows = pass.rows,
                                  .ignore_index = options.ignore_index,
                                  .is_mean = options.reduction == "mean"},
                                 stream));
  return {loss, statistics};
}

/// g_i / D, [b, s] or [] for all rows. What is ignored keeps its g.
Tensor scale_on_cuda(const Tensor& grad_output, const Tensor& labels, const Options& options) {
  const Tensor grad = grad_output.to(kFloat);
  if (options.reduction != "mean") return grad;
  const Tensor scale = empty({}, grad, kFloat);
  check_cuda(kName, launch_total({.numerator = grad.data<float>(),
                                  .labels = labels.data<int64_t>(),
                                  .result = scale.mutable_data<float>(),
                                  .rows = labels.numel(),
                                  .ignore_index = options.ignore_index,
                                  .is_mean = true},
                                 current_stream(labels)));
  return scale;
}
#endif

/// g_i / D, [b, s] contiguous. Filled, not multiplied: what stands at an ignored row may be inf.
Tensor scale_of(const Tensor& grad_output, const Tensor& labels, ScalarType type,
                const Options& options) {
  const Tensor ignored = labels.eq(options.ignore_index);
  Tensor scale = grad_output.to(type);
  if (options.reduction == "mean") scale = scale / ignored.logical_not().sum().to(type);
  return scale.expand(labels.shape()).masked_fill(ignored, 0).contiguous();
}

Tensor plain_gradient(const Tensor& scale, const Tensor& statistics, const Tensor& logits,
                      const Tensor& labels, const Classes& classes, const Options& options) {
  const Tensor x = logits.to(statistics.scalar_type());
  const Tensor y = x - statistics[0].unsqueeze(2), rest = statistics[1].unsqueeze(2);
  const Tensor is_label = labels.unsqueeze(2).eq(arange(classes.begin, x.size(2), labels));
  const double smoothing = options.label_smoothing;
  const Tensor slope =
      where(is_label, (y - rest.log1p()).expm1().add(smoothing), y.exp() / rest.add(1));
  const Tensor grad =
      slope.sub(smoothing / static_cast<double>(classes.total)) * scale.unsqueeze(2);
  return grad.masked_fill(labels.eq(options.ignore_index).unsqueeze(2), 0).to(logits.scalar_type());
}

template <typename T>
GradientPass<T> gradient_pass(const Tensor& scale, const Tensor& statistics, const Tensor& logits,
                              const Tensor& labels, const Classes& classes, const Options& options,
                              const Tensor& grad) {
  const T* base = statistics.data<T>();
  return {.logits = logits.data(),
          .layout = layout_of(logits),
          .labels = labels.data<int64_t>(),
          .row_max = base,
          .rest = base + labels.numel(),
          .scale = scale.data<T>(),
          .scale_stride_b = scale.dim() == 0 ? 0 : scale.stride(0),
          .scale_stride_s = scale.dim() == 0 ? 0 : scale.stride(1),
          .grad = grad.mutable_data(),
          .rows = labels.numel(),
          .vocab_begin = classes.begin,
          .vocab_total = classes.total,
          .ignore_index = options.ignore_index,
          .label_smoothing = static_cast<T>(options.label_smoothing)};
}

/// Into `grad`, contiguous, which may be the logits.
void write_gradient(const Tensor& grad_output, const Tensor& statistics, const Tensor& logits,
                    const Tensor& labels, const Classes& classes, const Options& options,
                    const Tensor& grad) {
  const DeviceScope device(logits);
  const Path path = path_of(logits);
  const Tensor y = labels.contiguous(), held = statistics.contiguous();
#ifdef PATCHBENCH_CUDA
  if (path == Path::kCuda) {
    const Tensor scale = scale_on_cuda(grad_output, y, options);
    check_cuda(kName, launch_gradient(
                          gradient_pass<float>(scale, held, logits, y, classes, options, grad),
                          type_of(logits), gpu_of(logits).num_processors, current_stream(logits)));
    return;
  }
#endif
  const Tensor scale = scale_of(grad_output, labels, statistics.scalar_type(), options);
  if (path == Path::kPlain) {
    warn_of_plain_form(kSlug, kName, logits, kNeeds);
    grad.copy_(plain_gradient(scale, statistics, logits, labels, classes, options));
    return;
  }
  by_type(logits.scalar_type(), [&](auto element, auto wide) {
    gradient_on_cpu<decltype(element)>(
        gradient_pass<decltype(wide)>(scale, held, logits, y, classes, options, grad));
  });
}

Tensor loss_of(const Tensor& statistics, const Tensor& labels, int64_t vocab_total,
               const Options& options) {
  const DeviceScope device(labels);
  check_label_values(labels, vocab_total, options.ignore_index);
  const Tensor row_max = statistics[0], log_sum = statistics[1].log1p();
  const Tensor ignored = labels.eq(options.ignore_index);
  Tensor loss = log_sum - (statistics[2] - row_max);
  if (options.label_smoothing > 0) {
    const Tensor even = log_sum - (statistics[3] / static_cast<double>(vocab_total) - row_max);
    loss = loss * (1 - options.label_smoothing) + even * options.label_smoothing;
  }
  loss = loss.masked_fill(ignored, 0).contiguous();
  if (options.reduction == "none") return loss;
  const Tensor total = loss.sum();
  if (options.reduction == "sum") return total;
  return total / ignored.logical_not().sum().to(total.scalar_type());
}

// ---- operators ----

Pair forward(const Tensor& logits, const Tensor& labels, std::string reduction,
             int64_t ignore_index, double label_smoothing, bool overwrites_logits) {
  const Options options{std::move(reduction), ignore_index, label_smoothing};
  check_logits(logits, labels);
  check_options(options);
  if (overwrites_logits) check_overwritten(logits);
#ifdef PATCHBENCH_CUDA
  const DeviceScope device(logits);
  if (path_of(logits) == Path::kCuda) return forward_on_cuda(logits, labels, options);
#endif
  const Tensor statistics = statistics_of(logits, labels, 0);
  return {loss_of(statistics, labels, logits.size(2), options), statistics};
}

Tensor combine(const Tensor& statistics) {
  PB_CHECK(statistics.dim() == 4 && statistics.size(0) > 0 && statistics.size(1) == 4, kName,
           ": statistics must have shape [ranks, 4, b, s], got ", text_of(statistics.shape()));
  const ScalarType type = statistics.scalar_type();
  PB_CHECK(type == kFloat || type == kDouble, kName,
           ": statistics must have dtype float32 or float64, got ", text_of(type));
  const DeviceScope device(statistics);
  const auto parts = statistics.unbind(1);
  const Tensor row_max = parts[0].amax({0}, true);
  // The best rank's own 1 is left out of the sum; a rank of -inf alone weighs nothing.
  const Tensor sums = parts[1].add(1) * (parts[0] - row_max).exp();
  const Tensor ranks = arange(0, statistics.size(0), statistics).view({-1, 1, 1});
  const Tensor rests = where(ranks.eq(parts[0].argmax(0, true)), parts[1], sums);
  return stack({row_max.squeeze(0), rests.sum(Ints{0}), parts[2].amax({0}), parts[3].sum(Ints{0})},
               0);
}

Tensor loss(const Tensor& statistics, const Tensor& labels, int64_t vocab_total,
            std::string reduction, int64_t ignore_index, double label_smoothing) {
  const Options options{std::move(reduction), ignore_index, label_smoothing};
  check_axes(kName, "labels", labels, 2, "[b, s]");
  check_dtype(kName, "labels", labels, kLong);
  check_options(options);
  check_statistics(statistics, labels);
  PB_CHECK(vocab_total > 0, kName, ": vocab_total must be at least 1, got ", vocab_total);
  return loss_of(statistics, labels, vocab_total, options);
}

#define PB_CE_BACKWARD                                                                             \
  const Tensor &grad_output, const Tensor &statistics, const Tensor &logits, const Tensor &labels, \
      int64_t vocab_begin, int64_t vocab_total, std::string reduction, int64_t ignore_index,       \
      double label_smoothing

Tensor backward(PB_CE_BACKWARD) {
  const Options options{std::move(reduction), ignore_index, label_smoothing};
  const Classes classes{vocab_begin, vocab_total};
  check_backward(grad_output, statistics, logits, labels, classes, options);
  const Tensor grad = empty(logits.shape(), logits);
  write_gradient(grad_output, statistics, logits, labels, classes, options, grad);
  return grad;
}

void backward_in_place(PB_CE_BACKWARD) {
  const Options options{std::move(reduction), ignore_index, label_smoothing};
  const Classes classes{vocab_begin, vocab_total};
  check_backward(grad_output, statistics, logits, labels, classes, options);
  check_overwritten(logits);
  write_gradient(grad_output, statistics, logits, labels, classes, options, logits);
}

std::string path(const Tensor& logits) {
  const Path path = path_of(logits);
  return path == Path::kCpu ? "cpu" : path == Path::kCuda ? "cuda" : "plain";
}

}  // namespace

#define PB_CE_SCALARS "str reduction='mean', int ignore_index=-100, float label_smoothing=0."

STABLE_TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def("cross_entropy_forward(Tensor logits, Tensor labels, *, " PB_CE_SCALARS
        ", bool overwrites_logits=False) -> (Tensor loss, Tensor statistics)");
  m.def("cross_entropy_statistics(Tensor logits, Tensor labels, SymInt vocab_begin=0) -> Tensor");
  m.def("cross_entropy_combine(Tensor statistics) -> Tensor");
  m.def("cross_entropy_loss(Tensor statistics, Tensor labels, SymInt vocab_total, *, " PB_CE_SCALARS
        ") -> Tensor");
  m.def(
      "cross_entropy_backward(Tensor grad_output, Tensor statistics, Tensor logits, Tensor labels, "
      "SymInt vocab_begin, SymInt vocab_total, *, " PB_CE_SCALARS ") -> Tensor");
  m.def(
      "cross_entropy_backward_(Tensor grad_output, Tensor statistics, Tensor(a!) logits, "
      "Tensor labels, SymInt vocab_begin, SymInt vocab_total, *, " PB_CE_SCALARS ") -> ()");
  m.def("cross_entropy_path(Tensor logits) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("cross_entropy_path", &boxed<path>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("cross_entropy_forward", &boxed<forward>);
  m.impl("cross_entropy_statistics", &boxed<statistics_of>);
  m.impl("cross_entropy_combine", &boxed<combine>);
  m.impl("cross_entropy_loss", &boxed<loss>);
  m.impl("cross_entropy_backward", &boxed<backward>);
  m.impl("cross_entropy_backward_", &boxed<backward_in_place>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("cross_entropy_forward", &boxed<forward>);
  m.impl("cross_entropy_statistics", &boxed<statistics_of>);
  m.impl("cross_entropy_combine", &boxed<combine>);
  m.impl("cross_entropy_loss", &boxed<loss>);
  m.impl("cross_entropy_backward", &boxed<backward>);
  m.impl("cross_entropy_backward_", &boxed<backward_in_place>);
}

}  // namespace patchbench::ops::te_fused_ce
