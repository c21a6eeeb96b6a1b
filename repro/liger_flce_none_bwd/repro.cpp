// Pack liger_flce_none_bwd: inputs, oracle, defect model and failure classes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "harness/axes.h"
#include "harness/program.h"
#include "liger_flce_none_bwd/model.h"
#include "liger_flce_none_bwd/op.h"

namespace patchbench::liger_flce_none_bwd {
namespace {

using harness::choice;
using harness::in_fp64;
using harness::Judgement;
using harness::Tensors;

/// A case's axes, checked.
struct Axes : linear_cross_entropy::Problem {
  std::string answer = "gradients";  ///< what the subject gives: one of kAnswers
};

/// Loss and gradients; the same with the loss as a consumer weighs it, sum_i grad_loss[i] loss[i];
/// what the call costs beyond the claim (one more product than "mean" in backward, not more bytes
/// in forward), which is 0 or it is not as claimed; or the largest error of grad_input against
/// eager torch, not relative to anything.
const std::vector<std::string> kAnswers = {"gradients", "consumer", "backward_products",
                                           "forward_bytes", "input_error"};
bool is_cost(const Axes& axes) {
  return axes.answer == "backward_products" || axes.answer == "forward_bytes";
}
/// Whether the answer is one number, `beyond`, of which 0 is right.
bool is_number(const Axes& axes) { return is_cost(axes) || axes.answer == "input_error"; }

/// What the proposal calls the noise of bfloat16 in grad_input, at its shape and sizes.
constexpr double kClaimedNoise = 5e-3;

Axes axes_of(const Case& item) {
  const bool has_answer = item.axes.contains("answer");
  Axes axes{linear_cross_entropy::problem_of(
      item, has_answer ? std::vector<std::string>{"answer"} : std::vector<std::string>())};
  if (has_answer) axes.answer = choice(item, "answer", kAnswers);
  return axes;
}

/// max |got - wanted| / size, infinite where the shapes differ or size is 0 and they differ.
double distance(const at::Tensor& got, const at::Tensor& wanted, double size) {
  if (got.sizes() != wanted.sizes()) return INFINITY;
  const double error = (got.to(at::kDouble) - wanted).abs().max().item<double>();
  return size > 0 ? error / size : (error > 0 ? INFINITY : 0.0);
}

double largest(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }

/// What a case asks for: `reference` of its inputs, its loss as the consumer weighs it where the
/// case says so, or the cost that is as claimed.
Tensors right_answer(const Axes& axes, const Tensors& inputs) {
  const at::Tensor x = inputs.at("input");
  const bool is_wide = x.scalar_type() == at::kDouble;
  if (is_number(axes))
    return {{"beyond", at::zeros({1}, x.options().dtype(is_wide ? at::kDouble : at::kFloat))}};
  Tensors outputs = reference(inputs, axes.options);
  if (axes.answer == "consumer") {
    at::Tensor& loss = outputs.at("loss");
    loss = (loss * inputs.at("grad_loss").to(loss.scalar_type())).sum();
  }
  return outputs;
}

/// The gradients of the summed loss, fp64: the mechanism's own prediction is a multiple of them.
Tensors sum_gradients(const Tensors& inputs, Options options) {
  Tensors wide = in_fp64(inputs);
  wide["grad_loss"] = at::ones({}, at::kDouble);
  options.reduction = "sum";
  return reference(wide, options);
}

/// Loss and gradients of our op for a given gradient of the loss. The last backward's gradients
/// count.
Tensors run_op(const Tensors& inputs, const Options& options, const at::Tensor& grad_loss,
               int64_t num_backwards = 1) {
  ops::liger_flce_none_bwd::FlceOptions arguments;
  std::vector<at::Tensor> leaves = {inputs.at("input").detach().requires_grad_(),
                                    inputs.at("weight").detach().requires_grad_()};
  if (const at::Tensor bias = optional_input(inputs, "bias"); bias.defined()) {
    leaves.push_back(bias.detach().requires_grad_());
    arguments.bias = leaves.back();
  }
  if (const at::Tensor weight = optional_input(inputs, "class_weight"); weight.defined())
    arguments.class_weight = weight;
  arguments.reduction = options.reduction;
  arguments.ignore_index = options.ignore_index;
  arguments.label_smoothing = options.label_smoothing;
  arguments.lse_square_scale = options.lse_square_scale;
  if (options.softcap > 0) arguments.softcap = options.softcap;
  const at::Tensor loss =
      ops::liger_flce_none_bwd::flce(leaves[0], leaves[1], inputs.at("target"), arguments);
  std::vector<at::Tensor> grads;
  for (int64_t i = 0; i < num_backwards; ++i)
    grads = torch::autograd::grad({loss}, leaves, {grad_loss}, /*retain_graph=*/true);
  Tensors outputs = {{"loss", loss.detach()}, {"grad_input", grads[0]}, {"grad_weight", grads[1]}};
  if (grads.size() > 2) outputs.emplace("grad_bias", grads[2]);
  return outputs;
}

Tensors op(const Case& item, const Tensors& inputs) {
  return run_op(inputs, axes_of(item).options, inputs.at("grad_loss"), harness::backwards(item));
}

/// The op as it would be with the upstream's defect, in the tensors named (all if none is).
harness::InProcessSubject first_row_mutant(const std::vector<std::string>& names) {
  return [names](const Case& item, const Tensors& inputs) {
    const at::Tensor grad_loss = inputs.at("grad_loss");
    const at::Tensor first = grad_loss.flatten()[0].expand_as(grad_loss);
    const Tensors wrong = run_op(inputs, axes_of(item).options, first);
    if (names.empty()) return wrong;
    Tensors mixed = op(item, inputs);
    for (const std::string& name : names) mixed.at(name) = wrong.at(name);
    return mixed;
  };
}

/// The op as it would be if it took "none" for "sum".
Tensors sum_for_none(const Case& item, const Tensors& inputs) {
  Options options = axes_of(item).options;
  if (options.reduction == "none") options.reduction = "sum";
  return run_op(inputs, options, inputs.at("grad_loss").sum());
}

class LigerPack final : public harness::Pack {
 public:
  std::string slug() const override { return "liger_flce_none_bwd"; }
  void check(const Case& item) const override { static_cast<void>(axes_of(item)); }
  at::ScalarType dtype(const Case& item) const override { return axes_of(item).dtype; }

  Tensors inputs(const Case& item, uint64_t seed) const override {
    return linear_cross_entropy::inputs_of(axes_of(item), item.name, seed);
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    return right_answer(axes_of(item), in_fp64(inputs));
  }

  Tensors plain(const Case& item, const Tensors& inputs) const override {
    return right_answer(axes_of(item), inputs);
  }

  double least_size(const Case& item, const Tensors& inputs, const Tensors&,
                    const std::string& tensor) const override {
    const Axes axes = axes_of(item);
    if (tensor != "grad_input" || is_number(axes)) return 0;
    return linear_cross_entropy::size_of_terms(inputs, axes.options);
  }

  std::map<std::string, int64_t> extents(const Case& item) const override {
    const Axes axes = axes_of(item);
    return {{"tokens", axes.tokens}, {"hidden", axes.hidden}, {"vocab", axes.vocab}};
  }

  harness::Tolerances tolerances(const Case& item, const std::string& tensor) const override {
    const Axes axes = axes_of(item);
    harness::Tolerances found = linear_cross_entropy::tolerances_of(axes, tensor);
    if (axes.answer == "input_error")
      // The case is float32, whose epsilon is 2^-23.
      found.element = Tolerance{0, kClaimedNoise / 0x1p-23,
                                "the claim's own figure: what is below it is called noise there"};
    return found;
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    const auto chunked_model = [](Scaling scaling) {
      return [scaling](const Case& item, const Tensors& inputs) {
        return chunked(inputs, axes_of(item).options, scaling);
      };
    };
    return {{"model", chunked_model(Scaling::kFirstElement)},
            {"model_fixed", chunked_model(Scaling::kPerRow)},
            {"op", op},
            {"op_mutant:first_row", first_row_mutant({})},
            {"op_mutant:first_row_grad_input", first_row_mutant({"grad_input"})},
            {"op_mutant:first_row_grad_weight", first_row_mutant({"grad_weight"})},
            {"op_mutant:sum_for_none", sum_for_none}};
  }

  std::string refusal(const Case& item, const std::string& device_kind) const override {
    const bool is_large = linear_cross_entropy::is_too_large_for_cpu(axes_of(item));
    const bool is_asked_for = item.role == CaseRole::kSurvey;
    return device_kind == "cpu" && is_large && !is_asked_for ? "takes minutes without a GPU" : "";
  }

  /// "reduction_ignored": the loss is the scalar sum, and each gradient is (sum of grad_loss) times
  /// the summed loss's gradient. "wrong_gradients": the loss is right, a gradient misses by 20
  /// times the error of a right one, and each gradient that is not right is grad_loss[0], to the
  /// power of the number of backwards, times the summed loss's gradient. "mean_for_each_token":
  /// what the consumer gets, loss and gradients, is (sum of grad_loss) times that of the mean.
  /// "cost_beyond_claim": the case asks for the cost, and it is above the claimed one. A case that
  /// asks for the error alone is "wrong_gradients" above the claim's noise.
  std::string classify(const Case& item, const Judgement& judgement) const override {
    const Axes axes = axes_of(item);
    if (is_cost(axes))
      return judgement.got.at("beyond").item<double>() > 0 ? "cost_beyond_claim" : "";
    if (axes.answer == "input_error")
      return judgement.got.at("beyond").item<double>() > kClaimedNoise ? "wrong_gradients" : "";
    const Options& options = axes.options;
    if (options.reduction != "none") return "";
    const Tensors sums = sum_gradients(judgement.inputs, options);
    if (axes.answer == "consumer") {
      if (is_mean_for_each_token(judgement, sums, item)) return "mean_for_each_token";
      return is_first_element(judgement, sums, item) ? "wrong_gradients" : "";
    }
    if (judgement.got.at("loss").dim() == 0)
      return is_reduction_ignored(judgement, sums, item) ? "reduction_ignored" : "";
    return is_first_element(judgement, sums, item) ? "wrong_gradients" : "";
  }

 private:
  /// The largest element error that a right computation of `tensor` may have.
  double allowed(const Case& item, const Judgement& judgement, const std::string& tensor) const {
    const Tolerance tolerance = tolerances(item, tensor).element;
    const double plain =
        harness::errors_of(judgement.plain.at(tensor), judgement.oracle.at(tensor)).element;
    return tolerance.k * plain + tolerance.floor_ulp * harness::epsilon_of(dtype(item));
  }

  bool is_reduction_ignored(const Judgement& judgement, const Tensors& sums,
                            const Case& item) const {
    const at::Tensor grad_loss = judgement.inputs.at("grad_loss").to(at::kDouble);
    // Scaled in place, as below.
    const auto times = static_cast<double>(harness::backwards(item));
    const at::Tensor factor = grad_loss.sum().pow(times);
    const double size = std::pow(grad_loss.abs().sum().item<double>(), times);
    for (const auto& [name, sum] : sums) {
      const bool is_loss = name == "loss";
      const at::Tensor predicted = is_loss ? sum : sum * factor;
      const double scale = largest(sum) * (is_loss ? 1.0 : size);
      if (!(distance(judgement.got.at(name), predicted, scale) <=
            2 * allowed(item, judgement, name)))
        return false;
    }
    return true;
  }

  bool is_mean_for_each_token(const Judgement& judgement, const Tensors& sums,
                              const Case& item) const {
    const at::Tensor valid = judgement.inputs.at("target").ne(axes_of(item).options.ignore_index);
    const at::Tensor factor =
        judgement.inputs.at("grad_loss").to(at::kDouble).sum() / valid.sum().to(at::kDouble);
    return std::all_of(sums.begin(), sums.end(), [&](const auto& sum) {
      const at::Tensor predicted = sum.second * factor;
      return distance(judgement.got.at(sum.first), predicted, largest(predicted)) <=
             2 * allowed(item, judgement, sum.first);
    });
  }

  bool is_first_element(const Judgement& judgement, const Tensors& sums, const Case& item) const {
    constexpr double kFarOff =
        10;  // times the limit, which is twice the error of a right computation
    // The release scales what it saved in place, so that each backward multiplies once more.
    const double first = std::pow(judgement.inputs.at("grad_loss").flatten()[0].item<double>(),
                                  static_cast<double>(harness::backwards(item)));
    bool is_far_off = false;
    for (const auto& [name, got] : judgement.got) {
      const bool is_right =
          std::all_of(judgement.measures.begin(), judgement.measures.end(),
                      [&](const Measure& m) { return m.tensor != name || m.pass; });
      if (is_right) continue;
      const at::Tensor& right = judgement.oracle.at(name);
      const double bound = allowed(item, judgement, name);
      if (name == "loss" || !(distance(got, sums.at(name) * first, largest(right)) <= 2 * bound))
        return false;
      is_far_off |= distance(got, right, largest(right)) >= kFarOff * bound;
    }
    return is_far_off;
  }
};

}  // namespace
}  // namespace patchbench::liger_flce_none_bwd

int main(int argc, char** argv) {
  return patchbench::harness::run_reproducer(argc, argv,
                                             patchbench::liger_flce_none_bwd::LigerPack());
}
