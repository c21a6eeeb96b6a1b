// Pack te_fused_ce: inputs, oracle, defect model and failure classes.
#include <algorithm>
#include <cmath>
#include <optional>

#include "harness/axes.h"
#include "harness/program.h"
#include "te_fused_ce/model.h"
#include "te_fused_ce/op.h"

namespace patchbench::te_fused_ce {
namespace {

using harness::amount;
using harness::axis;
using harness::choice;
using harness::Draw;
using harness::extent;
using harness::in_fp64;
using harness::Judgement;
using harness::refuse;
using harness::Tensors;

/// A case's axes, checked.
struct Axes {
  int64_t batch = 0, seqlen = 0, vocab = 0;
  at::ScalarType dtype = at::kFloat;
  std::string grad_output, ignored, logits, labels, confidence;
  Options options;
  bool wants_logits_after = false;  ///< axis `answer`: the logits after forward, no gradient
};

const std::vector<std::string> kPatterns = {"weights", "mask_row0_off", "constant", "sum"};
const std::vector<std::string> kIgnored = {"none", "scattered", "all"};
/// Views of a larger or differently ordered tensor, as callers make them: [s, b, v] transposed, all
/// positions but the last of each sequence, the vocabulary without its padding.
const std::vector<std::string> kLogits = {"row_major", "transposed", "sliced_sequence",
                                          "padded_vocab"};
const std::vector<std::string> kLabels = {"row_major", "sliced_sequence", "transposed"};
const std::vector<std::string> kReductions = {"none", "mean"};

Axes axes_of(const Case& item) {
  std::vector<std::string> known = {"batch",           "seqlen",      "vocab",   "dtype",
                                    "reduction",       "grad_output", "ignored", "ignore_index",
                                    "label_smoothing", "logits",      "labels",  "confidence"};
  const bool has_answer = item.axes.contains("answer");
  if (has_answer) known.emplace_back("answer");
  for (const char* name : {"logits_times", "is_cg_capturable", "ranks"})
    known = harness::with_optional(item, known, name);
  harness::check_axes(item, known);
  Axes axes;
  axes.batch = extent(item, "batch");
  axes.seqlen = extent(item, "seqlen");
  axes.vocab = extent(item, "vocab");
  const std::string dtype = choice(item, "dtype", {"float32", "float16", "bfloat16"});
  axes.dtype = dtype == "float32" ? at::kFloat : dtype == "float16" ? at::kHalf : at::kBFloat16;
  axes.grad_output = choice(item, "grad_output", kPatterns);
  axes.ignored = choice(item, "ignored", kIgnored);
  axes.logits = choice(item, "logits", kLogits);
  axes.labels = choice(item, "labels", kLabels);
  axes.confidence = choice(item, "confidence", {"usual", "high"});
  axes.options.reduction = choice(item, "reduction", kReductions);
  if (!axis(item, "ignore_index").is_number_integer())
    refuse(item, "axis 'ignore_index' wants a whole number");
  axes.options.ignore_index = axis(item, "ignore_index").get<int64_t>();
  axes.options.label_smoothing = amount(item, "label_smoothing");
  if (axes.options.label_smoothing > 1) refuse(item, "axis 'label_smoothing' wants at most 1");
  if (axes.options.reduction == "mean" && axes.grad_output != "constant")
    refuse(item, "the mean has one gradient: grad_output wants 'constant'");
  if (axes.vocab < 2) refuse(item, "axis 'vocab' wants at least 2");
  if (item.axes.contains("ranks") && axes.vocab % extent(item, "ranks") != 0)
    refuse(item, "axis 'ranks' wants to divide 'vocab': each rank has a part of each row");
  axes.wants_logits_after = has_answer && choice(item, "answer", {"logits_after"}) != "";
  return axes;
}

/// The row whose label and gradient are there in every pattern.
int64_t kept_row(const Axes& axes) { return 2 * axes.batch * axes.seqlen / 3; }

/// Labels [b, s]: uniform, one in four ignored where asked, none ignored by accident.
at::Tensor make_labels(const Axes& axes, uint64_t seed, const std::string& name) {
  const std::vector<int64_t> shape = {axes.batch, axes.seqlen};
  const int64_t ignore = axes.options.ignore_index;
  at::Tensor labels = Draw(seed, name + "/labels").integers(shape, 0, axes.vocab);
  labels = at::where(labels.eq(ignore), (labels + 1).remainder(axes.vocab), labels);
  if (axes.ignored == "none") return labels;
  if (axes.ignored == "all") return at::full_like(labels, ignore);
  at::Tensor ignored = Draw(seed, name + "/ignored").mask(shape, 0.25);
  ignored.view(-1)[kept_row(axes)] = false;
  if (axes.batch * axes.seqlen > 1) ignored.view(-1)[kept_row(axes) == 0 ? 1 : 0] = true;
  return at::where(ignored, ignore, labels);
}

/// The gradient of the loss, [b, s] or [] for the mean. Row 0 has a value of its own in what
/// differs by row, for that is the row that a release may read.
at::Tensor make_grad_loss(const Axes& axes, uint64_t seed, const std::string& name) {
  const std::vector<int64_t> shape = {axes.batch, axes.seqlen};
  if (axes.options.reduction == "mean") return at::full({}, 0.75, at::kFloat);
  if (axes.grad_output == "constant") return at::full(shape, 0.375, at::kFloat);
  if (axes.grad_output == "sum") return at::ones({}, at::kFloat).expand(shape);
  const Draw draw(seed, name + "/grad_loss");
  at::Tensor values = draw.uniform(shape, 0.5, 1.0).to(at::kFloat);
  if (axes.grad_output == "mask_row0_off") {
    values = draw.mask(shape, 0.6).to(at::kFloat);
    values.view(-1)[kept_row(axes)] = 1.0;
  }
  values.view(-1)[0] = axes.grad_output == "mask_row0_off" ? 0.0 : 0.25;
  return values;
}

/// A tensor of which `values` is a part along `dim`: what lies past it is drawn like it.
at::Tensor as_part(const at::Tensor& values, int64_t dim, int64_t begin, const at::Tensor& more) {
  const at::Tensor whole = begin == 0 ? at::cat({values, more}, dim) : at::cat({more, values}, dim);
  return whole.narrow(dim, begin, values.size(dim));
}

at::Tensor laid_logits(const Axes& axes, const at::Tensor& x, const Draw& more) {
  const auto rest = [&](const std::vector<int64_t>& shape) {
    return more.normal(shape).to(x.scalar_type());
  };
  if (axes.logits == "transposed") return x.transpose(0, 1).contiguous().transpose(0, 1);
  if (axes.logits == "sliced_sequence") return as_part(x, 1, 0, rest({axes.batch, 1, axes.vocab}));
  if (axes.logits == "padded_vocab") return as_part(x, 2, 0, rest({axes.batch, axes.seqlen, 3}));
  return x;
}

at::Tensor laid_labels(const Axes& axes, const at::Tensor& labels) {
  if (axes.labels == "transposed") return labels.t().contiguous().t();
  if (axes.labels == "sliced_sequence")
    return as_part(labels, 1, 1, at::zeros({axes.batch, 1}, at::kLong));
  return labels;
}

/// What a case asks for, of right outputs.
Tensors right_answer(const Axes& axes, const Tensors& inputs) {
  Tensors outputs = reference(inputs, axes.options);
  if (!axes.wants_logits_after) return outputs;
  return {{"loss", outputs.at("loss")}, {"logits_after", inputs.at("logits").contiguous()}};
}

/// max |got - wanted| / size, infinite where the shapes differ or size is 0 and they differ.
double distance(const at::Tensor& got, const at::Tensor& wanted, double size) {
  if (got.sizes() != wanted.sizes()) return INFINITY;
  const double error = (got.to(at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>();
  return size > 0 ? error / size : (error > 0 ? INFINITY : 0.0);
}

double largest(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).abs().max().item<double>();
}

/// The model with its defects; the last of several backwards scales what the one before it left.
harness::InProcessSubject model(const Defects& defects) {
  return [defects](const Case& item, const Tensors& inputs) {
    const Axes axes = axes_of(item);
    Tensors outputs = fused(inputs, axes.options, defects);
    outputs.erase(axes.wants_logits_after ? "grad_logits" : "logits_after");
    return outputs;
  };
}

/// transformer-engine 2.10.0, the red pin.
constexpr Defects kRedPin = {.is_gradient_by_storage = true,
                             .is_mean_over_all_rows = true,
                             .is_rows_by_one_stride = true,
                             .is_labels_by_one_stride = true,
                             .is_target_rounded = true,
                             .is_in_place = true};

/// One way to be wrong, by the class that it is.
struct Guess {
  const char* failure_class;
  Defects defects;
};

/// In the order in which they are tried. What a release does besides is tried with each of them.
std::vector<Guess> guesses_for(const at::Tensor& grad_loss) {
  bool is_expanded = false;
  for (int64_t dim = 0; dim < grad_loss.dim(); ++dim)
    is_expanded |= grad_loss.size(dim) > 1 && grad_loss.stride(dim) == 0;
  return {{"row_zero_gradient", {.is_first_gradient = true}},
          {"sum_scaled", {.is_unreduced_by_rows = true}},
          {is_expanded ? "out_of_bounds_read" : "storage_order_gradient",
           {.is_gradient_by_storage = true}},
          {"ignored_labels", {.is_mean_over_all_rows = true}},
          {"target_gradient_rounded", {.is_target_rounded = true, .is_in_place = true}},
          {"sliced_sequence", {.is_rows_by_one_stride = true}},
          {"sliced_labels", {.is_labels_by_one_stride = true}}};
}

/// Every set of further defects of the same releases.
std::vector<Defects> companions() {
  std::vector<Defects> sets;
  for (int bits = 0; bits < 16; ++bits)
    sets.push_back({.is_first_gradient = (bits & 1) != 0,
                    .is_unreduced_by_rows = (bits & 2) != 0,
                    .is_mean_over_all_rows = (bits & 4) != 0,
                    .is_target_rounded = (bits & 8) != 0,
                    .is_in_place = (bits & 8) != 0});
  return sets;
}

Defects both(const Defects& one, const Defects& other) {
  return {.is_first_gradient = one.is_first_gradient || other.is_first_gradient,
          .is_unreduced_by_rows = one.is_unreduced_by_rows || other.is_unreduced_by_rows,
          .is_gradient_by_storage = one.is_gradient_by_storage || other.is_gradient_by_storage,
          .is_mean_over_all_rows = one.is_mean_over_all_rows || other.is_mean_over_all_rows,
          .is_rows_by_one_stride = one.is_rows_by_one_stride || other.is_rows_by_one_stride,
          .is_labels_by_one_stride = one.is_labels_by_one_stride || other.is_labels_by_one_stride,
          .is_target_rounded = one.is_target_rounded || other.is_target_rounded,
          .is_in_place = one.is_in_place || other.is_in_place};
}

/// Loss and gradient of our op. The last of several backwards counts.
Tensors op(const Case& item, const Tensors& inputs) {
  const Axes axes = axes_of(item);
  const at::Tensor &logits = inputs.at("logits"), &labels = inputs.at("labels");
  const ops::te_fused_ce::CrossEntropyOptions options = {
      .reduction = axes.options.reduction,
      .ignore_index = axes.options.ignore_index,
      .label_smoothing = axes.options.label_smoothing};
  const auto [loss, statistics] = ops::te_fused_ce::cross_entropy_forward(logits, labels, options);
  if (axes.wants_logits_after) return {{"loss", loss}, {"logits_after", logits.clone()}};
  at::Tensor grad;
  for (int64_t i = 0; i < harness::backwards(item); ++i)
    grad = ops::te_fused_ce::cross_entropy_backward(inputs.at("grad_loss"), statistics, logits,
                                                    labels, 0, axes.vocab, options);
  return {{"loss", loss}, {"grad_logits", grad}};
}

/// The op given inputs that one defect makes of the right ones.
harness::InProcessSubject op_given(void (*spoil)(Tensors&)) {
  return [spoil](const Case& item, const Tensors& inputs) {
    Tensors spoiled = inputs;
    spoil(spoiled);
    return op(item, spoiled);
  };
}

void first_gradient(Tensors& inputs) {
  at::Tensor& grad = inputs.at("grad_loss");
  if (grad.dim() > 0) grad = grad.flatten()[0].expand_as(grad);
}

void divided_gradient(Tensors& inputs) {
  at::Tensor& grad = inputs.at("grad_loss");
  if (grad.dim() > 0) grad = grad / static_cast<double>(grad.numel());
}

void labels_in_storage_order(Tensors& inputs) {
  at::Tensor& labels = inputs.at("labels");
  if (!labels.is_contiguous()) labels = by_one_stride(labels, 1).view(labels.sizes());
}

class TeFusedCePack final : public harness::Pack {
 public:
  std::string slug() const override { return "te_fused_ce"; }
  void check(const Case& item) const override { static_cast<void>(axes_of(item)); }
  at::ScalarType dtype(const Case& item) const override { return axes_of(item).dtype; }

  Tensors inputs(const Case& item, uint64_t seed) const override {
    const Axes axes = axes_of(item);
    const at::Tensor labels = make_labels(axes, seed, item.name);
    at::Tensor x = Draw(seed, item.name + "/logits").normal({axes.batch, axes.seqlen, axes.vocab}) *
                   harness::factor(item, "logits_times");
    // The target's probability is then about 1 - vocab / 13000.
    if (axes.confidence == "high")
      x.scatter_add_(2, labels.clamp_min(0).unsqueeze(2),
                     at::full({axes.batch, axes.seqlen, 1}, 10.0, x.options()));
    x = x.to(axes.dtype);
    return {{"logits", laid_logits(axes, x, Draw(seed, item.name + "/more"))},
            {"labels", laid_labels(axes, labels)},
            {"grad_loss", make_grad_loss(axes, seed, item.name)}};
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    return right_answer(axes_of(item), in_fp64(inputs));
  }

  Tensors plain(const Case& item, const Tensors& inputs) const override {
    return right_answer(axes_of(item), inputs);
  }

  std::map<std::string, int64_t> extents(const Case& item) const override {
    const Axes axes = axes_of(item);
    return {{"batch", axes.batch}, {"seqlen", axes.seqlen}, {"vocab", axes.vocab}};
  }

  /// In fp32. The loss is what lse leaves of the label's logit: its error is one of the logits. A
  /// release takes 1 from a softmax that was rounded: the error is one of 1 times the row's factor,
  /// however little of it the difference leaves. In 16 bits that is the defect.
  double least_size(const Case& item, const Tensors& inputs, const Tensors&,
                    const std::string& tensor) const override {
    const Axes axes = axes_of(item);
    if (axes.dtype != at::kFloat) return 0;
    if (tensor == "loss") return largest(inputs.at("logits"));
    if (tensor != "grad_logits") return 0;
    const at::Tensor valid = inputs.at("labels").ne(axes.options.ignore_index);
    const at::Tensor grad_loss = inputs.at("grad_loss");
    if (axes.options.reduction == "none")
      return largest(grad_loss.masked_fill(valid.logical_not(), 0));
    return largest(grad_loss) / valid.sum().clamp_min(1).item<double>();
  }

  harness::Tolerances tolerances(const Case&, const std::string&) const override {
    return {Tolerance{2, 4, "sums of exponentials in another order than the plain one's"},
            Tolerance{2, 4, "sums of exponentials in another order than the plain one's"},
            Tolerance{2, 1e-3, "of second order in the relative error"},
            Tolerance{2, 2, "a scalar loss whose plain value happens to be exact"}};
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    return {
        {"op", op},
        {"op_mutant:first_gradient", op_given(first_gradient)},
        {"op_mutant:divided_gradient", op_given(divided_gradient)},
        {"op_mutant:labels_in_storage_order", op_given(labels_in_storage_order)},
        {"model", model(kRedPin)},
        {"model_fixed", model({})},
        {"model_mutant:first_gradient", model({.is_first_gradient = true})},
        {"model_mutant:unreduced_by_rows", model({.is_unreduced_by_rows = true})},
        {"model_mutant:gradient_by_storage", model({.is_gradient_by_storage = true})},
        {"model_mutant:mean_over_all_rows", model({.is_mean_over_all_rows = true})},
        {"model_mutant:labels_by_one_stride", model({.is_labels_by_one_stride = true})},
        {"model_mutant:target_rounded", model({.is_target_rounded = true})},
    };
  }

  /// A damaged guard band is "transposed_view". Else the first guess (`guesses_for`) whose outputs
  /// these are, with some further defects of the same releases, where that alone does not give
  /// them.
  std::string classify(const Case& item, const Judgement& judgement) const override {
    if (judgement.has_damaged_band()) return "transposed_view";
    const Defects in_place = {.is_target_rounded = true, .is_in_place = true};
    if (axes_of(item).wants_logits_after)
      return is_as(item, judgement, predicted(item, judgement, in_place), 2) &&
                     judgement.is_right("loss")
                 ? "logits_overwritten"
                 : "";
    // Each rank adds the smoothing of its own part of the vocabulary: no two have the same loss.
    if (item.axes.contains("ranks") && axes_of(item).options.label_smoothing > 0 &&
        judgement.is_right("grad_logits") && judgement.got.at("loss").isnan().any().item<bool>())
      return "smoothed_by_rank";
    for (const auto& [failure_class, defects] : guesses_for(judgement.inputs.at("grad_loss"))) {
      for (const Defects& besides : companions()) {
        const Tensors with = predicted(item, judgement, both(defects, besides)),
                      without = predicted(item, judgement, besides);
        // A defect that changes nothing in this case explains nothing. Without the defect the limit
        // is the judge's own: an answer just beyond it is wrong.
        if (!are_equal(with, without) && is_as(item, judgement, with, 2) &&
            !is_as(item, judgement, without, 1))
          return failure_class;
      }
    }
    return "";
  }

  /// The release passes no gradient back for an argument that it takes: autograd's engine raises,
  /// below no frame of the release's own.
  std::string classify_error(const Case& item, const Json& exception) const override {
    const Axes axes = axes_of(item);
    const Json frames = exception.value("frames", Json::array());
    const bool is_engine = !frames.empty() && exception.value("type", "") == "RuntimeError" &&
                           frames.back().value("function", "") == "_engine_run_backward";
    return is_engine && axes.options.ignore_index != -100 ? "ignore_index_raises" : "";
  }

 private:
  /// What the model gives with these defects; nothing where it would reach past a storage.
  static Tensors predicted(const Case& item, const Judgement& judgement, const Defects& defects) {
    Tensors inputs = judgement.inputs;
    inputs.at("logits") = harness::view_on(inputs.at("logits"), at::kCPU);  // it may be written to
    try {
      return fused(inputs, axes_of(item).options, defects);
    } catch (const c10::Error&) {
      return {};
    }
  }

  static bool are_equal(const Tensors& one, const Tensors& other) {
    return one.size() == other.size() &&
           std::all_of(one.begin(), one.end(), [&](const auto& output) {
             return at::equal(output.second, other.at(output.first));
           });
  }

  /// Whether the outputs equal what the model gives, within so many limits.
  bool is_as(const Case& item, const Judgement& judgement, const Tensors& model,
             double limits) const {
    return !model.empty() &&
           std::all_of(judgement.got.begin(), judgement.got.end(), [&](const auto& output) {
             const at::Tensor& wanted = model.at(output.first);
             const double size =
                 std::max(largest(wanted), largest(judgement.oracle.at(output.first)));
             return distance(output.second, wanted, size) <=
                    limits * allowed(item, judgement, output.first);
           });
  }

  /// The largest element error that a right computation of `tensor` may have.
  double allowed(const Case& item, const Judgement& judgement, const std::string& tensor) const {
    const Tolerance tolerance = tolerances(item, tensor).element;
    const double plain =
        harness::errors_of(judgement.plain.at(tensor), judgement.oracle.at(tensor)).element;
    return tolerance.k * plain + tolerance.floor_ulp * harness::epsilon_of(dtype(item));
  }
};

}  // namespace
}  // namespace patchbench::te_fused_ce

int main(int argc, char** argv) {
  return patchbench::harness::run_reproducer(argc, argv, patchbench::te_fused_ce::TeFusedCePack());
}
