#include "op.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <vector>

#include "../op_fallback.h"
#include "tiles.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace patchbench::ops::liger_flce_none_bwd {
namespace {

using OptionalTensor = std::optional<Tensor>;
using Mask = std::array<bool, 3>;  // grad_hidden, grad_weight, grad_bias

constexpr std::string_view kSlug = "liger_flce_none_bwd";
constexpr int64_t kChunkBytesCuda = int64_t{256} << 20;
constexpr int64_t kChunkBytesCpu = int64_t{64} << 20;
constexpr int64_t kMaxTokens = (int64_t{1} << 31) - 1;  // grid.x of both kernels
constexpr int64_t kMaxVocab = int64_t{1} << 28;         // 65535 segments of grid.y

Path path_of(const Tensor& hidden) {
  if (is_fallback_forced(kSlug)) return Path::kPlain;
  if (hidden.is_cpu()) return Path::kCpu;
#ifdef PATCHBENCH_CUDA
  if (hidden.is_cuda() && hidden.scalar_type() != at::kDouble &&
      at::cuda::getDeviceProperties(hidden.get_device())->major >= 8) {
    return Path::kCuda;
  }
#endif
  return Path::kPlain;
}

at::ScalarType compute_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// ---- checks: written on symbolic sizes, so that Meta and the real devices share them ----

std::string dtype_name(at::ScalarType type) { return c10::getDtypeNames(type).first; }

void check_rank(const char* name, const Tensor& tensor, int64_t rank, const char* axes) {
  TORCH_CHECK(tensor.dim() == rank, "flce: ", name, " must have ", rank, " axes ", axes, ", got ",
              tensor.dim());
}

void check_shape(const char* name, const Tensor& tensor, const std::vector<c10::SymInt>& wanted) {
  const c10::SymIntArrayRef sizes = tensor.sym_sizes();
  const bool fits = sizes.size() == wanted.size() &&
                    std::equal(sizes.begin(), sizes.end(), wanted.begin(),
                               [](const c10::SymInt& a, const c10::SymInt& b) { return a == b; });
  TORCH_CHECK(fits, "flce: ", name, " must have shape ", c10::SymIntArrayRef(wanted), ", got ",
              sizes);
}

void check_options(const FlceOptions& options) {
  TORCH_CHECK(
      options.reduction == "none" || options.reduction == "mean" || options.reduction == "sum",
      "flce: reduction must be none, mean or sum, got ", options.reduction);
  TORCH_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1,
              "flce: label_smoothing must lie in [0, 1], got ", options.label_smoothing);
  TORCH_CHECK(std::isfinite(options.lse_square_scale),
              "flce: lse_square_scale must be finite, got ", options.lse_square_scale);
  TORCH_CHECK(!options.softcap || (*options.softcap > 0 && std::isfinite(*options.softcap)),
              "flce: softcap must be finite and > 0, got ", options.softcap.value_or(0));
  TORCH_CHECK(!options.chunk_bytes || *options.chunk_bytes > 0,
              "flce: chunk_bytes must be > 0, got ", options.chunk_bytes.value_or(0));
}

struct NamedTensor {
  const char* name;
  const Tensor& tensor;
};

void check_kinds(const std::vector<NamedTensor>& tensors, const Tensor& hidden) {
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK(tensor.device() == hidden.device(), "flce: ", name, " must be on ", hidden.device(),
                ", got ", tensor.device());
  }
  const auto type = hidden.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kDouble,
              "flce: hidden must have dtype float32, bfloat16 or float64, got ", dtype_name(type));
  for (const auto& [name, tensor] : tensors) {
    const std::string_view which = name;
    if (which == "target") {
      TORCH_CHECK(tensor.scalar_type() == at::kLong, "flce: target must have dtype int64, got ",
                  dtype_name(tensor.scalar_type()));
    } else if (which == "class_weight" || which == "grad_output" || which == "lse") {
      TORCH_CHECK(tensor.is_floating_point(), "flce: ", name, " must have a floating dtype, got ",
                  dtype_name(tensor.scalar_type()));
    } else {
      TORCH_CHECK(tensor.scalar_type() == type, "flce: ", name, " must have hidden's dtype ",
                  dtype_name(type), ", got ", dtype_name(tensor.scalar_type()));
    }
  }
}

void check_inputs(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                  const FlceOptions& options) {
  check_options(options);
  check_rank("hidden", hidden, 2, "[tokens, hidden]");
  check_rank("weight", weight, 2, "[vocab, hidden]");
  check_rank("target", target, 1, "[tokens]");
  std::vector<NamedTensor> tensors{{"hidden", hidden}, {"weight", weight}, {"target", target}};
  if (options.bias) tensors.push_back({"bias", *options.bias});
  if (options.class_weight) tensors.push_back({"class_weight", *options.class_weight});
  const c10::SymInt tokens = hidden.sym_size(0), vocab = weight.sym_size(0);
  TORCH_CHECK(weight.sym_size(0) > 0 && weight.sym_size(1) > 0,
              "flce: weight must have at least one class and one feature, got ",
              weight.sym_sizes());
  TORCH_CHECK(tokens <= kMaxTokens, "flce: tokens must be at most ", kMaxTokens, ", got ", tokens);
  TORCH_CHECK(vocab <= kMaxVocab, "flce: vocab must be at most ", kMaxVocab, ", got ", vocab);
  check_kinds(tensors, hidden);
  TORCH_CHECK(weight.sym_size(1) == hidden.sym_size(1), "flce: weight must have shape [vocab, ",
              hidden.sym_size(1), "], got ", weight.sym_sizes());
  check_shape("target", target, {tokens});
  if (options.bias) check_shape("bias", *options.bias, {vocab});
  if (options.class_weight) check_shape("class_weight", *options.class_weight, {vocab});
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK(tensor.layout() == at::kStrided, "flce: ", name, " must be strided, got ",
                tensor.layout());
  }
}

void check_backward(const Tensor& grad_output, const Tensor& lse, const Tensor& hidden,
                    const Tensor& weight, const Tensor& target, const FlceOptions& options) {
  check_inputs(hidden, weight, target, options);
  check_kinds({{"grad_output", grad_output}, {"lse", lse}}, hidden);
  std::vector<c10::SymInt> loss_shape;
  if (options.reduction == "none") loss_shape.push_back(hidden.sym_size(0));
  check_shape("grad_output", grad_output, loss_shape);
  check_shape("lse", lse, {2, hidden.sym_size(0)});
}

Problem problem_of(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                   const FlceOptions& options) {
  Problem problem;
  problem.path = path_of(hidden);
  problem.acc = compute_type(hidden);
  problem.hidden = hidden;
  problem.weight = weight;
  problem.target = target.contiguous();
  if (options.bias) problem.bias = *options.bias;
  if (options.class_weight) {
    problem.class_weight = options.class_weight->to(problem.acc).contiguous();
    problem.weight_total = problem.class_weight.sum();
  }
  problem.terms = {.label_smoothing = options.label_smoothing,
                   .lse_square_scale = options.lse_square_scale,
                   .softcap = options.softcap.value_or(0),
                   .ignore_index = options.ignore_index,
                   .vocab = weight.size(0)};
  problem.reduction = options.reduction;
  problem.tokens = hidden.size(0);
  problem.features = hidden.size(1);
  const int64_t chunk_bytes =
      options.chunk_bytes.value_or(hidden.is_cpu() ? kChunkBytesCpu : kChunkBytesCuda);
  problem.tile_elements = std::max<int64_t>(1, chunk_bytes / hidden.element_size());
  return problem;
}

/// Which rows are left out. Used to fill, not to multiply: what stands in them may be infinite.
Tensor ignored_rows(const Problem& problem) {
  return problem.target.eq(problem.terms.ignore_index);
}

/// Class weight of each row's target; the clamp keeps an ignored row's index inside the table.
Tensor target_weights(const Problem& problem) {
  return problem.class_weight.index_select(0, problem.target.clamp(0, problem.terms.vocab - 1));
}

/// [D, n] of "mean" as two 0-dim tensors on the device.
std::pair<Tensor, Tensor> mean_divisors(const Problem& problem) {
  const Tensor ignored = ignored_rows(problem);
  const Tensor num_valid = ignored.logical_not().sum().to(problem.acc);
  if (!problem.class_weight.defined()) return {num_valid, num_valid};
  return {target_weights(problem).masked_fill(ignored, 0).sum(), num_valid};
}

/// On the CPU a target outside the vocabulary is refused; on CUDA looking would be a host
/// synchronisation.
void check_targets(const Problem& problem) {
  if (!problem.target.is_cpu()) return;
  const int64_t* target = problem.target.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < problem.tokens; ++i) {
    TORCH_CHECK_INDEX(target[i] == problem.terms.ignore_index ||
                          (target[i] >= 0 && target[i] < problem.terms.vocab),
                      "flce: target[", i, "] must lie in [0, ", problem.terms.vocab,
                      ") or be ignore_index ", problem.terms.ignore_index, ", got ", target[i]);
  }
}

/// The returned loss of the rows' terms.
Tensor reduced(const Problem& problem, const Tensor& ce, const Tensor& lse) {
  Tensor z;
  if (problem.terms.lse_square_scale != 0) {
    z = lse.sum(0).square().mul(problem.terms.lse_square_scale);
    z = z.masked_fill(ignored_rows(problem), 0);
  }
  if (problem.reduction == "mean") {
    const auto [weight_sum, num_valid] = mean_divisors(problem);
    const Tensor mean = ce.sum() / weight_sum;
    return z.defined() ? mean + z.sum() / num_valid : mean;
  }
  const Tensor total = z.defined() ? ce + z : ce;
  return problem.reduction == "sum" ? total.sum() : total;
}

// ---- forward ----

std::tuple<Tensor, Tensor> flce_forward(const Tensor& hidden, const Tensor& weight,
                                        const Tensor& target, const FlceOptions& options) {
  check_inputs(hidden, weight, target, options);
  const Problem problem = problem_of(hidden, weight, target, options);
  check_targets(problem);
  const c10::OptionalDeviceGuard guard(hidden.device());
  const auto acc_options = hidden.options().dtype(problem.acc);
  const Tensor ce = at::empty({problem.tokens}, acc_options);
  const Tensor lse = at::empty({2, problem.tokens}, acc_options);
  if (problem.tokens > 0) {
    const int64_t step = tile_edge(problem, problem.terms.vocab, problem.tokens);
    const Tensor slab = at::empty({step * problem.terms.vocab}, hidden.options());
    for (int64_t first = 0; first < problem.tokens; first += step) {
      const Tile tile{.first_row = first,
                      .rows = std::min(step, problem.tokens - first),
                      .first_class = 0,
                      .classes = problem.terms.vocab};
      row_pass(problem, make_logits(problem, tile, slab), tile, ce, lse);
    }
  }
  return {reduced(problem, ce, lse), lse};
}

// ---- backward ----

/// Gradients of the loss by each row's ce and z terms, contiguous [tokens].
Scales scales_of(const Problem& problem, const Tensor& grad_output) {
  const Tensor grad = grad_output.to(problem.acc);
  Tensor ce = grad, z = grad;
  if (problem.reduction == "mean") {
    const auto [weight_sum, num_valid] = mean_divisors(problem);
    ce = grad / weight_sum;
    z = grad / num_valid;
  }
  Scales scales{ce.expand({problem.tokens}).contiguous(), {}};
  if (problem.terms.lse_square_scale != 0) scales.z = z.expand({problem.tokens}).contiguous();
  return scales;
}

/// How backward walks the logits. By class, grad_weight's parts are disjoint and grad_hidden is
/// summed; by row it is the other way round. The smaller sum is chosen where both are wanted.
bool walks_by_class(const Problem& problem, const Mask& mask) {
  if (mask[0] && (mask[1] || mask[2])) return problem.tokens <= problem.terms.vocab;
  return !mask[0];
}

std::tuple<Tensor, Tensor, Tensor> zero_gradients(const Problem& problem, const Mask& mask) {
  Tensor grad_hidden, grad_weight, grad_bias;
  if (mask[0]) grad_hidden = at::zeros(problem.hidden.sizes(), problem.hidden.options());
  if (mask[1]) grad_weight = at::zeros(problem.weight.sizes(), problem.weight.options());
  if (mask[2]) grad_bias = at::zeros({problem.terms.vocab}, problem.bias.options());
  return {grad_hidden, grad_weight, grad_bias};
}

std::tuple<Tensor, Tensor, Tensor> project(const Problem& problem, const Tensor& lse,
                                           const Scales& scales, const Mask& mask) {
  const bool by_class = walks_by_class(problem, mask);
  const int64_t vocab = problem.terms.vocab, tokens = problem.tokens;
  const int64_t step =
      by_class ? tile_edge(problem, tokens, vocab) : tile_edge(problem, vocab, tokens);
  const int64_t length = by_class ? vocab : tokens;
  const bool is_one_tile = step == length;
  std::optional<Projection> grad_hidden, grad_weight;
  if (mask[0]) grad_hidden.emplace(problem, tokens, is_one_tile || !by_class);
  if (mask[1]) grad_weight.emplace(problem, vocab, is_one_tile || by_class);
  Tensor bias_sum;
  if (mask[2]) bias_sum = at::zeros({vocab}, problem.hidden.options().dtype(problem.acc));
  Tensor slab = at::empty({step * (by_class ? tokens : vocab)}, problem.hidden.options());
  for (int64_t first = 0; first < length; first += step) {
    const int64_t edge = std::min(step, length - first);
    const Tile tile{.first_row = by_class ? 0 : first,
                    .rows = by_class ? tokens : edge,
                    .first_class = by_class ? first : 0,
                    .classes = by_class ? edge : vocab};
    const Tensor grad_logits = make_logits(problem, tile, slab);
    grad_pass(problem, grad_logits, tile, lse, scales);
    const Tensor hidden = problem.hidden.narrow(0, tile.first_row, tile.rows);
    const Tensor weight = problem.weight.narrow(0, tile.first_class, tile.classes);
    if (grad_hidden) grad_hidden->add(tile.first_row, grad_logits, weight);
    if (grad_weight) grad_weight->add(tile.first_class, grad_logits.t(), hidden);
    if (mask[2]) {
      bias_sum.narrow(0, tile.first_class, tile.classes).add_(column_sum(problem, grad_logits));
    }
  }
  slab.reset();  // before the sums are rounded: that needs memory of its own
  return {grad_hidden ? grad_hidden->result() : Tensor(),
          grad_weight ? grad_weight->result() : Tensor(),
          mask[2] ? bias_sum.to(problem.bias.scalar_type()) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> flce_backward(const Tensor& grad_output, const Tensor& lse,
                                                 const Tensor& hidden, const Tensor& weight,
                                                 const Tensor& target, const FlceOptions& options,
                                                 Mask mask) {
  check_backward(grad_output, lse, hidden, weight, target, options);
  mask[2] = mask[2] && options.bias.has_value();
  const Problem problem = problem_of(hidden, weight, target, options);
  const c10::OptionalDeviceGuard guard(hidden.device());
  if (problem.tokens == 0 || !(mask[0] || mask[1] || mask[2])) return zero_gradients(problem, mask);
  const Tensor row_lse = lse.to(problem.acc).contiguous();
  return project(problem, row_lse, scales_of(problem, grad_output), mask);
}

// ---- Meta: shapes and dtypes alone ----

std::tuple<Tensor, Tensor> flce_forward_meta(const Tensor& hidden, const Tensor& weight,
                                             const Tensor& target, const FlceOptions& options) {
  check_inputs(hidden, weight, target, options);
  const auto acc_options = hidden.options().dtype(compute_type(hidden));
  std::vector<c10::SymInt> shape;
  if (options.reduction == "none") shape.push_back(hidden.sym_size(0));
  return {at::empty_symint(shape, acc_options),
          at::empty_symint({2, hidden.sym_size(0)}, acc_options)};
}

std::tuple<Tensor, Tensor, Tensor> flce_backward_meta(const Tensor& grad_output, const Tensor& lse,
                                                      const Tensor& hidden, const Tensor& weight,
                                                      const Tensor& target,
                                                      const FlceOptions& options, Mask mask) {
  check_backward(grad_output, lse, hidden, weight, target, options);
  Tensor grad_hidden, grad_weight, grad_bias;
  if (mask[0]) grad_hidden = at::empty_symint(hidden.sym_sizes(), hidden.options());
  if (mask[1]) grad_weight = at::empty_symint(weight.sym_sizes(), weight.options());
  if (mask[2] && options.bias) {
    grad_bias = at::empty_symint(options.bias->sym_sizes(), options.bias->options());
  }
  return {grad_hidden, grad_weight, grad_bias};
}

// ---- the dispatcher's side: its schemas are flat ----

#define PB_FLCE_SCALARS                                                     \
  "str reduction='mean', int ignore_index=-100, float label_smoothing=0., " \
  "float lse_square_scale=0., float? softcap=None, int? chunk_bytes=None"
#define PB_FLCE_PARAMETERS                                                               \
  const OptionalTensor &bias, const OptionalTensor &class_weight, std::string reduction, \
      int64_t ignore_index, double label_smoothing, double lse_square_scale,             \
      std::optional<double> softcap, std::optional<int64_t> chunk_bytes
#define PB_FLCE_OPTIONS                                                                        \
  FlceOptions {                                                                                \
    bias, class_weight, std::move(reduction), ignore_index, label_smoothing, lse_square_scale, \
        softcap, chunk_bytes                                                                   \
  }

using ForwardImpl = std::tuple<Tensor, Tensor> (*)(const Tensor&, const Tensor&, const Tensor&,
                                                   const FlceOptions&);
using BackwardImpl = std::tuple<Tensor, Tensor, Tensor> (*)(const Tensor&, const Tensor&,
                                                            const Tensor&, const Tensor&,
                                                            const Tensor&, const FlceOptions&,
                                                            Mask);

template <ForwardImpl kImpl>
std::tuple<Tensor, Tensor> forward_kernel(const Tensor& hidden, const Tensor& weight,
                                          const Tensor& target, PB_FLCE_PARAMETERS) {
  return kImpl(hidden, weight, target, PB_FLCE_OPTIONS);
}

template <BackwardImpl kImpl>
std::tuple<Tensor, Tensor, Tensor> backward_kernel(const Tensor& grad_output, const Tensor& lse,
                                                   const Tensor& hidden, const Tensor& weight,
                                                   const Tensor& target, PB_FLCE_PARAMETERS,
                                                   Mask output_mask) {
  return kImpl(grad_output, lse, hidden, weight, target, PB_FLCE_OPTIONS, output_mask);
}

Tensor call_flce(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                 const FlceOptions& o) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::flce", "")
          .typed<Tensor(const Tensor&, const Tensor&, const Tensor&, PB_FLCE_PARAMETERS)>();
  return op.call(hidden, weight, target, o.bias, o.class_weight, o.reduction, o.ignore_index,
                 o.label_smoothing, o.lse_square_scale, o.softcap, o.chunk_bytes);
}

std::tuple<Tensor, Tensor> call_forward(const Tensor& hidden, const Tensor& weight,
                                        const Tensor& target, const FlceOptions& o) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::flce_forward", "")
                             .typed<decltype(forward_kernel<flce_forward>)>();
  return op.call(hidden, weight, target, o.bias, o.class_weight, o.reduction, o.ignore_index,
                 o.label_smoothing, o.lse_square_scale, o.softcap, o.chunk_bytes);
}

std::tuple<Tensor, Tensor, Tensor> call_backward(const Tensor& grad_output, const Tensor& lse,
                                                 const Tensor& hidden, const Tensor& weight,
                                                 const Tensor& target, const FlceOptions& o,
                                                 Mask mask) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::flce_backward", "")
                             .typed<decltype(backward_kernel<flce_backward>)>();
  return op.call(grad_output, lse, hidden, weight, target, o.bias, o.class_weight, o.reduction,
                 o.ignore_index, o.label_smoothing, o.lse_square_scale, o.softcap, o.chunk_bytes,
                 mask);
}

Tensor flce_without_grad(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                         PB_FLCE_PARAMETERS) {
  return std::get<0>(call_forward(hidden, weight, target, PB_FLCE_OPTIONS));
}

// ---- autograd: both halves go through the dispatcher, so that a tracer records them ----

class FlceFunction : public torch::autograd::Function<FlceFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& hidden,
                        const Tensor& weight, const Tensor& target, const OptionalTensor& bias,
                        const FlceOptions& options) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [loss, lse] = call_forward(hidden, weight, target, options);
    ctx->save_for_backward({lse, hidden, weight, target, bias.value_or(Tensor()),
                            options.class_weight.value_or(Tensor())});
    ctx->saved_data["reduction"] = options.reduction;
    ctx->saved_data["ignore_index"] = options.ignore_index;
    ctx->saved_data["label_smoothing"] = options.label_smoothing;
    ctx->saved_data["lse_square_scale"] = options.lse_square_scale;
    ctx->saved_data["softcap"] = options.softcap;
    ctx->saved_data["chunk_bytes"] = options.chunk_bytes;
    return loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto optional = [](const Tensor& t) {
      return t.defined() ? OptionalTensor(t) : std::nullopt;
    };
    const FlceOptions options{.bias = optional(saved[4]),
                              .class_weight = optional(saved[5]),
                              .reduction = ctx->saved_data["reduction"].toStringRef(),
                              .ignore_index = ctx->saved_data["ignore_index"].toInt(),
                              .label_smoothing = ctx->saved_data["label_smoothing"].toDouble(),
                              .lse_square_scale = ctx->saved_data["lse_square_scale"].toDouble(),
                              .softcap = ctx->saved_data["softcap"].toOptional<double>(),
                              .chunk_bytes = ctx->saved_data["chunk_bytes"].toOptional<int64_t>()};
    // Inputs are counted without an absent bias: hidden, weight, target, bias.
    const Mask mask{ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                    options.bias.has_value() && ctx->needs_input_grad(3)};
    const auto [grad_hidden, grad_weight, grad_bias] =
        call_backward(grads[0], saved[0], saved[1], saved[2], saved[3], options, mask);
    return {grad_hidden, grad_weight, Tensor(), grad_bias, Tensor()};
  }
};

Tensor flce_with_grad(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                      PB_FLCE_PARAMETERS) {
  TORCH_CHECK(!class_weight || !class_weight->requires_grad(),
              "flce: class_weight must not require grad: the loss is not differentiated by it; "
              "pass class_weight.detach()");
  return FlceFunction::apply(hidden, weight, target, bias, PB_FLCE_OPTIONS);
}

}  // namespace

at::Tensor flce(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                const FlceOptions& options) {
  return call_flce(hidden, weight, target, options);
}

std::string flce_path(const at::Tensor& hidden) {
  const Path path = path_of(hidden);
  return path == Path::kCpu ? "cpu" : path == Path::kCuda ? "cuda" : "plain";
}

TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def(
      "flce(Tensor hidden, Tensor weight, Tensor target, Tensor? bias=None, "
      "Tensor? class_weight=None, *, " PB_FLCE_SCALARS ") -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "flce_forward(Tensor hidden, Tensor weight, Tensor target, Tensor? bias=None, "
      "Tensor? class_weight=None, *, " PB_FLCE_SCALARS ") -> (Tensor loss, Tensor lse)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "flce_backward(Tensor grad_output, Tensor lse, Tensor hidden, Tensor weight, Tensor target, "
      "Tensor? bias=None, Tensor? class_weight=None, *, " PB_FLCE_SCALARS
      ", bool[3] output_mask) -> (Tensor grad_hidden, Tensor grad_weight, Tensor grad_bias)",
      {at::Tag::pt2_compliant_tag});
  m.def("flce_path(Tensor hidden) -> str");
}

TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("flce", flce_without_grad);
  m.impl("flce_path", flce_path);
}

TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("flce_forward", forward_kernel<flce_forward>);
  m.impl("flce_backward", backward_kernel<flce_backward>);
}

TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("flce_forward", forward_kernel<flce_forward>);
  m.impl("flce_backward", backward_kernel<flce_backward>);
}

TORCH_LIBRARY_IMPL(patchbench, Meta, m) {
  m.impl("flce_forward", forward_kernel<flce_forward_meta>);
  m.impl("flce_backward", backward_kernel<flce_backward_meta>);
}

TORCH_LIBRARY_IMPL(patchbench, Autograd, m) {
  m.impl("flce", flce_with_grad);
  m.impl("flce_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("flce_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace patchbench::ops::liger_flce_none_bwd
