#include "op.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <string_view>
#include <tuple>
#include <vector>

#include "../kernel/fallback.h"
#include "checks.h"
#include "tiles.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace patchbench::ops::liger_flce_none_bwd {
namespace {

using OptionalTensor = std::optional<Tensor>;

constexpr std::string_view kSlug = "liger_flce_none_bwd";
constexpr int64_t kRowChunkBytesCuda = int64_t{256} << 20;
constexpr int64_t kClassChunkBytesCuda = int64_t{132} << 20;  // besides grad_hidden in float32
constexpr int64_t kChunkBytesCpu = int64_t{64} << 20;
constexpr int64_t kMaxRoundings = 32;  // of a sum over tiles: fewer err less than plain torch does

#ifdef PATCHBENCH_CUDA
bool is_kernel_type(at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16; }
#endif

Path path_of(const Tensor& hidden) {
  if (is_fallback_forced(kSlug)) return Path::kPlain;
  if (hidden.is_cpu()) return Path::kCpu;
#ifdef PATCHBENCH_CUDA
  if (hidden.is_cuda() && is_kernel_type(hidden.scalar_type()) &&
      at::cuda::getDeviceProperties(hidden.get_device())->major >= 8) {
    return Path::kCuda;
  }
#endif
  return Path::kPlain;
}

at::ScalarType compute_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

int64_t tile_elements(const Tensor& hidden, const FlceOptions& options, Walk walk) {
  const int64_t usual = hidden.is_cpu()       ? kChunkBytesCpu
                        : walk == Walk::kRows ? kRowChunkBytesCuda
                                              : kClassChunkBytesCuda;
  return std::max<int64_t>(1, options.chunk_bytes.value_or(usual) / hidden.element_size());
}

Problem problem_of(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                   const FlceOptions& options) {
  Problem problem;
  problem.path = path_of(hidden);
  if (problem.path == Path::kPlain)
    warn_of_plain_form(kSlug, "flce", hidden, "float32 or bfloat16, and compute capability 8.0");
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
  problem.row_tile_elements = tile_elements(hidden, options, Walk::kRows);
  problem.class_tile_elements = tile_elements(hidden, options, Walk::kClasses);
  problem.keep_elements = options.keep_bytes / hidden.element_size();
  return problem;
}

/// Which rows are left out. Used to fill, not to multiply: their values may be infinite.
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

RowTerms row_terms(const Problem& problem) {
  const auto options = problem.hidden.options().dtype(problem.acc);
  return {at::empty({problem.tokens}, options), at::empty({2, problem.tokens}, options), {}};
}

std::tuple<Tensor, Tensor> flce_forward(const Tensor& hidden, const Tensor& weight,
                                        const Tensor& target, const FlceOptions& options) {
  check_inputs(hidden, weight, target, options);
  const Problem problem = problem_of(hidden, weight, target, options);
  check_targets(problem);
  const c10::OptionalDeviceGuard guard(hidden.device());
  const RowTerms terms = row_terms(problem);
  const int64_t step = problem.tokens > 0 ? step_of(problem, Walk::kRows) : 1;
  const Tensor slab = at::empty({step * problem.terms.vocab}, hidden.options());
  for (int64_t first = 0; first < problem.tokens; first += step) {
    const Tile tile = tile_of(problem, Walk::kRows, first, step);
    Tensor logits = place_of(problem, tile, slab, {});
    make_logits(problem, tile, logits);
    row_pass(problem, logits, tile, terms);
  }
  return {reduced(problem, terms.ce, terms.lse), terms.lse};
}

/// flce_forward on CUDA, by classes, and what it leaves for backward: (loss, lse, memory of Kept,
/// added memory of it).
std::tuple<Tensor, Tensor, Tensor, Tensor> forward_keeping(const Tensor& hidden,
                                                           const Tensor& weight,
                                                           const Tensor& target,
                                                           const FlceOptions& options) {
  check_inputs(hidden, weight, target, options);
  const Problem problem = problem_of(hidden, weight, target, options);
  const c10::OptionalDeviceGuard guard(hidden.device());
  RowTerms terms = row_terms(problem);
  if (problem.terms.label_smoothing != 0) terms.weighted_sum = at::empty_like(terms.ce);
  Kept kept = kept_of(problem);
  if (kept.count > 0) kept.memory = at::empty(weight.sizes(), hidden.options());
  const int64_t vocab = problem.terms.vocab;
  const int64_t kept_classes = std::min(vocab, kept.first_added() + kept.num_added * kept.step);
  if (kept.num_added > 0)
    kept.added =
        at::empty({(kept_classes - kept.first_added()) * problem.tokens}, hidden.options());
  const bool is_whole = kept_classes == vocab;
  const Tensor slab = at::empty({is_whole ? 0 : kept.step * problem.tokens}, hidden.options());
  for (int64_t first = 0; first < vocab; first += kept.step) {
    const Tile tile = tile_of(problem, Walk::kClasses, first, kept.step);
    Tensor logits = place_of(problem, tile, slab, kept);
    make_logits(problem, tile, logits);
    row_pass(problem, logits, tile, terms);
  }
  return {reduced(problem, terms.ce, terms.lse), terms.lse, kept.memory, kept.added};
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
Walk walk_of(const Problem& problem, const Mask& mask) {
  const bool is_by_class =
      mask[0] && (mask[1] || mask[2]) ? problem.tokens <= problem.terms.vocab : !mask[0];
  return is_by_class ? Walk::kClasses : Walk::kRows;
}

using LossAndGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Gradients zero_gradients(const Problem& problem, const Mask& mask) {
  Tensor grad_hidden, grad_weight, grad_bias;
  if (mask[0]) grad_hidden = at::zeros(problem.hidden.sizes(), problem.hidden.options());
  if (mask[1]) grad_weight = at::zeros(problem.weight.sizes(), problem.weight.options());
  if (mask[2]) grad_bias = at::zeros({problem.terms.vocab}, problem.bias.options());
  return {grad_hidden, grad_weight, grad_bias};
}

/// `kept` and `added` are the memory that forward_keeping left, or null. It is used up.
Gradients backward_from(const Tensor& kept, const Tensor& added, const Tensor& grad_output,
                        const Tensor& lse, const Tensor& hidden, const Tensor& weight,
                        const Tensor& target, const FlceOptions& options, Mask mask) {
  check_backward(grad_output, lse, hidden, weight, target, options);
  mask[2] = mask[2] && options.bias.has_value();
  const Problem problem = problem_of(hidden, weight, target, options);
  const c10::OptionalDeviceGuard guard(hidden.device());
  if (problem.tokens == 0 || !(mask[0] || mask[1] || mask[2])) return zero_gradients(problem, mask);
  const Tensor row_lse = lse.to(problem.acc).contiguous();
  const Scales scales = scales_of(problem, grad_output);
  Plan plan{walk_of(problem, mask), Sum::kWide, {}};
  if (kept.defined() || added.defined()) {
    plan = {Walk::kClasses, Sum::kWide, kept_of(problem)};
    plan.kept.memory = kept;
    plan.kept.added = added;
  }
  return project(problem, plan, mask, [&](const Tensor& logits, const Tile& tile) {
    grad_pass(problem, logits, tile, row_lse, scales);
  });
}

Gradients flce_backward(const Tensor& grad_output, const Tensor& lse, const Tensor& hidden,
                        const Tensor& weight, const Tensor& target, const FlceOptions& options,
                        Mask mask) {
  return backward_from({}, {}, grad_output, lse, hidden, weight, target, options, mask);
}

// ---- both in one walk, for a reduced loss ----

/// Whether a reduced loss's gradients are taken in forward: where sums over tiles of rows lose
/// nothing, or where at most kMaxRoundings roundings to bfloat16 enter them.
bool is_taken_in_forward(const Tensor& hidden, const Tensor& weight, const FlceOptions& options) {
  if (options.reduction == "none") return false;
  if (compute_type(hidden) == hidden.scalar_type()) return true;
  if (path_of(hidden) != Path::kCuda) return false;
  const int64_t vocab = weight.sym_size(0).guard_int(__FILE__, __LINE__);
  const int64_t rows = tile_edge(tile_elements(hidden, options, Walk::kRows), vocab, kMaxTokens);
  return hidden.sym_size(0).sym_le(kMaxRoundings * rows).guard_bool(__FILE__, __LINE__);
}

LossAndGradients flce_with_gradients(const Tensor& hidden, const Tensor& weight,
                                     const Tensor& target, const FlceOptions& options, Mask mask) {
  check_inputs(hidden, weight, target, options);
  mask[2] = mask[2] && options.bias.has_value();
  const Problem problem = problem_of(hidden, weight, target, options);
  check_targets(problem);
  const c10::OptionalDeviceGuard guard(hidden.device());
  const RowTerms terms = row_terms(problem);
  const Scales scales = scales_of(problem, at::ones({}, terms.ce.options()));
  const auto [grad_hidden, grad_weight, grad_bias] =
      problem.tokens == 0 ? zero_gradients(problem, mask)
                          : project(problem, {Walk::kRows, Sum::kRounded, {}}, mask,
                                    [&](const Tensor& logits, const Tile& tile) {
                                      row_and_grad_pass(problem, logits, tile, terms, scales);
                                    });
  return {reduced(problem, terms.ce, terms.lse), terms.lse, grad_hidden, grad_weight, grad_bias};
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

Gradients gradients_meta(const Tensor& hidden, const Tensor& weight, const FlceOptions& options,
                         const Mask& mask) {
  Tensor grad_hidden, grad_weight, grad_bias;
  if (mask[0]) grad_hidden = at::empty_symint(hidden.sym_sizes(), hidden.options());
  if (mask[1]) grad_weight = at::empty_symint(weight.sym_sizes(), weight.options());
  if (mask[2] && options.bias) {
    grad_bias = at::empty_symint(options.bias->sym_sizes(), options.bias->options());
  }
  return {grad_hidden, grad_weight, grad_bias};
}

Gradients flce_backward_meta(const Tensor& grad_output, const Tensor& lse, const Tensor& hidden,
                             const Tensor& weight, const Tensor& target, const FlceOptions& options,
                             Mask mask) {
  check_backward(grad_output, lse, hidden, weight, target, options);
  return gradients_meta(hidden, weight, options, mask);
}

LossAndGradients flce_with_gradients_meta(const Tensor& hidden, const Tensor& weight,
                                          const Tensor& target, const FlceOptions& options,
                                          Mask mask) {
  return std::tuple_cat(flce_forward_meta(hidden, weight, target, options),
                        gradients_meta(hidden, weight, options, mask));
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
using BackwardImpl = Gradients (*)(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const Tensor&, const FlceOptions&, Mask);
using JointImpl = LossAndGradients (*)(const Tensor&, const Tensor&, const Tensor&,
                                       const FlceOptions&, Mask);

template <ForwardImpl kImpl>
std::tuple<Tensor, Tensor> forward_kernel(const Tensor& hidden, const Tensor& weight,
                                          const Tensor& target, PB_FLCE_PARAMETERS) {
  return kImpl(hidden, weight, target, PB_FLCE_OPTIONS);
}

template <BackwardImpl kImpl>
Gradients backward_kernel(const Tensor& grad_output, const Tensor& lse, const Tensor& hidden,
                          const Tensor& weight, const Tensor& target, PB_FLCE_PARAMETERS,
                          Mask output_mask) {
  return kImpl(grad_output, lse, hidden, weight, target, PB_FLCE_OPTIONS, output_mask);
}

template <JointImpl kImpl>
LossAndGradients joint_kernel(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                              PB_FLCE_PARAMETERS, Mask output_mask) {
  return kImpl(hidden, weight, target, PB_FLCE_OPTIONS, output_mask);
}

Tensor call_flce(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                 const FlceOptions& o) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::flce", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const Tensor&,
                                           PB_FLCE_PARAMETERS, int64_t)>();
  return op.call(hidden, weight, target, o.bias, o.class_weight, o.reduction, o.ignore_index,
                 o.label_smoothing, o.lse_square_scale, o.softcap, o.chunk_bytes, o.keep_bytes);
}

std::tuple<Tensor, Tensor> call_forward(const Tensor& hidden, const Tensor& weight,
                                        const Tensor& target, const FlceOptions& o) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::flce_forward", "")
                             .typed<decltype(forward_kernel<flce_forward>)>();
  return op.call(hidden, weight, target, o.bias, o.class_weight, o.reduction, o.ignore_index,
                 o.label_smoothing, o.lse_square_scale, o.softcap, o.chunk_bytes);
}

LossAndGradients call_with_gradients(const Tensor& hidden, const Tensor& weight,
                                     const Tensor& target, const FlceOptions& o, Mask mask) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::flce_with_gradients", "")
                             .typed<decltype(joint_kernel<flce_with_gradients>)>();
  return op.call(hidden, weight, target, o.bias, o.class_weight, o.reduction, o.ignore_index,
                 o.label_smoothing, o.lse_square_scale, o.softcap, o.chunk_bytes, mask);
}

Gradients call_backward(const Tensor& grad_output, const Tensor& lse, const Tensor& hidden,
                        const Tensor& weight, const Tensor& target, const FlceOptions& o,
                        Mask mask) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::flce_backward", "")
                             .typed<decltype(backward_kernel<flce_backward>)>();
  return op.call(grad_output, lse, hidden, weight, target, o.bias, o.class_weight, o.reduction,
                 o.ignore_index, o.label_smoothing, o.lse_square_scale, o.softcap, o.chunk_bytes,
                 mask);
}

FlceOptions keeping(FlceOptions options, int64_t keep_bytes) {
  TORCH_CHECK(keep_bytes >= 0, "flce: keep_bytes must be >= 0, got ", keep_bytes);
  options.keep_bytes = keep_bytes;
  return options;
}

Tensor flce_without_grad(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                         PB_FLCE_PARAMETERS, int64_t keep_bytes) {
  return std::get<0>(call_forward(hidden, weight, target, keeping(PB_FLCE_OPTIONS, keep_bytes)));
}

// ---- autograd: every part goes through the dispatcher, so that a tracer records it ----

/// held * factor, rounded once. In place where nobody can ask for it again and no tracer looks on:
/// grad_weight is the largest tensor of the op.
Tensor scaled(Tensor held, const Tensor& factor) {
  if (!held.defined()) return held;
  const Tensor wide = factor.to(compute_type(held));
  if (at::isTensorSubclassLike(held))
    return held.to(wide.scalar_type()).mul(wide).to(held.scalar_type());
  const c10::OptionalDeviceGuard guard(held.device());
  if (torch::autograd::get_current_graph_task_keep_graph()) held = held.clone();
  scale_in_place(held, wide);
  return held;
}

/// Whether forward may leave logits in the memory that grad_weight takes over: no tracer looks on,
/// and backward walks the classes.
bool can_keep_logits(const Tensor& hidden, const Tensor& weight) {
  return path_of(hidden) == Path::kCuda && !at::areAnyTensorSubclassLike({hidden, weight}) &&
         hidden.size(0) > 0 && hidden.size(0) <= weight.size(0);
}

class FlceFunction : public torch::autograd::Function<FlceFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& hidden,
                        const Tensor& weight, const Tensor& target, const OptionalTensor& bias,
                        const FlceOptions& options, const Mask& mask) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const bool is_held =
        (mask[0] || mask[1] || mask[2]) && is_taken_in_forward(hidden, weight, options);
    const bool keeps_logits = !is_held && mask[1] && can_keep_logits(hidden, weight);
    Tensor loss, lse, kept, added, grad_hidden, grad_weight, grad_bias;
    if (is_held) {
      std::tie(loss, lse, grad_hidden, grad_weight, grad_bias) =
          call_with_gradients(hidden, weight, target, options, mask);
    } else if (keeps_logits) {
      std::tie(loss, lse, kept, added) = forward_keeping(hidden, weight, target, options);
    } else {
      std::tie(loss, lse) = call_forward(hidden, weight, target, options);
    }
    ctx->save_for_backward({lse, hidden, weight, target, bias.value_or(Tensor()),
                            options.class_weight.value_or(Tensor()), grad_hidden, grad_weight,
                            grad_bias, kept, added});
    ctx->saved_data["is_held"] = is_held;
    ctx->saved_data["reduction"] = options.reduction;
    ctx->saved_data["ignore_index"] = options.ignore_index;
    ctx->saved_data["label_smoothing"] = options.label_smoothing;
    ctx->saved_data["lse_square_scale"] = options.lse_square_scale;
    ctx->saved_data["softcap"] = options.softcap;
    ctx->saved_data["chunk_bytes"] = options.chunk_bytes;
    ctx->saved_data["keep_bytes"] = options.keep_bytes;
    return loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    // With create_graph the gradients are made anew, by an operator that refuses a second one:
    // those that are held would pass for constants.
    if (ctx->saved_data["is_held"].toBool() && !at::GradMode::is_enabled()) {
      return {scaled(saved[6], grads[0]),
              scaled(saved[7], grads[0]),
              Tensor(),
              scaled(saved[8], grads[0]),
              Tensor(),
              Tensor()};
    }
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
                              .chunk_bytes = ctx->saved_data["chunk_bytes"].toOptional<int64_t>(),
                              .keep_bytes = ctx->saved_data["keep_bytes"].toInt()};
    // Inputs are counted without an absent bias: hidden, weight, target, bias.
    const Mask mask{ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                    options.bias.has_value() && ctx->needs_input_grad(3)};
    // Kept logits serve once.
    const bool uses_kept = (saved[9].defined() || saved[10].defined()) &&
                           !at::GradMode::is_enabled() &&
                           !torch::autograd::get_current_graph_task_keep_graph();
    const auto [grad_hidden, grad_weight, grad_bias] =
        uses_kept ? backward_from(saved[9], saved[10], grads[0], saved[0], saved[1], saved[2],
                                  saved[3], options, mask)
                  : call_backward(grads[0], saved[0], saved[1], saved[2], saved[3], options, mask);
    return {grad_hidden, grad_weight, Tensor(), grad_bias, Tensor(), Tensor()};
  }
};

Tensor flce_with_grad(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                      PB_FLCE_PARAMETERS, int64_t keep_bytes) {
  TORCH_CHECK(!class_weight || !class_weight->requires_grad(),
              "flce: class_weight must not require grad: the loss is not differentiated by it; "
              "pass class_weight.detach()");
  Mask mask{};
  if (at::GradMode::is_enabled())
    mask = {hidden.requires_grad(), weight.requires_grad(), bias && bias->requires_grad()};
  return FlceFunction::apply(hidden, weight, target, bias, keeping(PB_FLCE_OPTIONS, keep_bytes),
                             mask);
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
      "Tensor? class_weight=None, *, " PB_FLCE_SCALARS ", int keep_bytes=0) -> Tensor",
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
  m.def(
      "flce_with_gradients(Tensor hidden, Tensor weight, Tensor target, Tensor? bias=None, "
      "Tensor? class_weight=None, *, " PB_FLCE_SCALARS
      ", bool[3] output_mask) -> (Tensor loss, Tensor lse, Tensor grad_hidden, "
      "Tensor grad_weight, Tensor grad_bias)",
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
  m.impl("flce_with_gradients", joint_kernel<flce_with_gradients>);
}

TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("flce_forward", forward_kernel<flce_forward>);
  m.impl("flce_backward", backward_kernel<flce_backward>);
  m.impl("flce_with_gradients", joint_kernel<flce_with_gradients>);
}

TORCH_LIBRARY_IMPL(patchbench, Meta, m) {
  m.impl("flce_forward", forward_kernel<flce_forward_meta>);
  m.impl("flce_backward", backward_kernel<flce_backward_meta>);
  m.impl("flce_with_gradients", joint_kernel<flce_with_gradients_meta>);
}

TORCH_LIBRARY_IMPL(patchbench, Autograd, m) {
  m.impl("flce", flce_with_grad);
  m.impl("flce_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("flce_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("flce_with_gradients", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace patchbench::ops::liger_flce_none_bwd
