// Pack liger_flce_frozen_hidden: oracle, defect model, op and failure classes; the problem is
// harness/linear_cross_entropy.h's.
#include "harness/axes.h"
#include "harness/program.h"
#include "liger_flce_frozen_hidden/model.h"
#include "liger_flce_none_bwd/op.h"

namespace patchbench::liger_flce_frozen_hidden {
namespace {

using harness::Judgement;
using harness::Tensors;
using linear_cross_entropy::Options;

/// A case's axes, checked.
struct Axes : linear_cross_entropy::Problem {
  Trained trained;
};

const std::vector<std::string> kTrained = {"weight", "bias",          "weight+bias",
                                           "hidden", "hidden+weight", "hidden+weight+bias"};

Axes axes_of(const Case& item) {
  Axes axes{linear_cross_entropy::problem_of(item, {"trained"}), {}};
  const std::string trained = harness::choice(item, "trained", kTrained);
  const auto has = [&](const char* name) { return trained.find(name) != std::string::npos; };
  axes.trained = {has("hidden"), has("weight"), has("bias")};
  if (axes.trained.bias && !axes.has_bias)
    harness::refuse(item, "a bias that is trained wants the axis 'bias' true");
  return axes;
}

/// The reference's loss and the gradients that are wanted.
Tensors right_answer(const Axes& axes, const Tensors& inputs) {
  return wanted(linear_cross_entropy::reference(inputs, axes.options), axes.trained, true);
}

/// The op of pack liger_flce_none_bwd, which makes the gradients that are wanted and no others.
Tensors run_op(const Case& item, const Tensors& inputs) {
  const Axes axes = axes_of(item);
  ops::liger_flce_none_bwd::FlceOptions arguments;
  const auto leaf = [&](const char* name, bool is_wanted) {
    return inputs.at(name).detach().requires_grad_(is_wanted);
  };
  const at::Tensor hidden = leaf("input", axes.trained.hidden),
                   weight = leaf("weight", axes.trained.weight);
  if (axes.has_bias) arguments.bias = leaf("bias", axes.trained.bias);
  if (axes.has_class_weight) arguments.class_weight = inputs.at("class_weight");
  arguments.reduction = axes.options.reduction;
  arguments.ignore_index = axes.options.ignore_index;
  arguments.label_smoothing = axes.options.label_smoothing;
  arguments.lse_square_scale = axes.options.lse_square_scale;
  if (axes.options.softcap > 0) arguments.softcap = axes.options.softcap;
  const at::Tensor loss =
      ops::liger_flce_none_bwd::flce(hidden, weight, inputs.at("target"), arguments);
  std::vector<std::pair<std::string, at::Tensor>> leaves;
  if (axes.trained.hidden) leaves.emplace_back("grad_input", hidden);
  if (axes.trained.weight) leaves.emplace_back("grad_weight", weight);
  if (axes.trained.bias) leaves.emplace_back("grad_bias", *arguments.bias);
  std::vector<at::Tensor> sources;
  for (const auto& [name, source] : leaves) sources.push_back(source);
  std::vector<at::Tensor> grads;
  for (int64_t i = 0; i < harness::backwards(item); ++i)
    grads = torch::autograd::grad({loss}, sources, {inputs.at("grad_loss")}, /*retain_graph=*/true);
  Tensors outputs = {{"loss", loss.detach()}};
  for (std::size_t i = 0; i < leaves.size(); ++i) outputs.emplace(leaves[i].first, grads[i]);
  return outputs;
}

/// The op as it would be with the upstream's condition.
Tensors op_by_hidden(const Case& item, const Tensors& inputs) {
  const Trained trained = axes_of(item).trained;
  return wanted(run_op(item, inputs), trained, trained.hidden);
}

/// The op as it would be if weight alone decided: a bias that is trained alone has no gradient.
Tensors op_by_weight(const Case& item, const Tensors& inputs) {
  const Trained trained = axes_of(item).trained;
  return wanted(run_op(item, inputs), trained, trained.hidden || trained.weight);
}

class FrozenHiddenPack final : public harness::Pack {
 public:
  std::string slug() const override { return "liger_flce_frozen_hidden"; }
  void check(const Case& item) const override { static_cast<void>(axes_of(item)); }
  at::ScalarType dtype(const Case& item) const override { return axes_of(item).dtype; }

  Tensors inputs(const Case& item, uint64_t seed) const override {
    return linear_cross_entropy::inputs_of(axes_of(item), item.name, seed);
  }
  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    return right_answer(axes_of(item), harness::in_fp64(inputs));
  }
  Tensors plain(const Case& item, const Tensors& inputs) const override {
    return right_answer(axes_of(item), inputs);
  }
  double least_size(const Case& item, const Tensors& inputs, const Tensors&,
                    const std::string& tensor) const override {
    const linear_cross_entropy::Options options = axes_of(item).options;
    if (tensor == "loss") return linear_cross_entropy::size_of_loss_terms(inputs, options);
    return tensor == "grad_input" ? linear_cross_entropy::size_of_terms(inputs, options) : 0;
  }
  std::map<std::string, int64_t> extents(const Case& item) const override {
    const Axes axes = axes_of(item);
    return {{"tokens", axes.tokens}, {"hidden", axes.hidden}, {"vocab", axes.vocab}};
  }
  harness::Tolerances tolerances(const Case& item, const std::string& tensor) const override {
    return linear_cross_entropy::tolerances_of(axes_of(item), tensor);
  }
  std::string refusal(const Case& item, const std::string& device_kind) const override {
    const bool is_large = linear_cross_entropy::is_too_large_for_cpu(axes_of(item));
    return device_kind == "cpu" && is_large ? "takes minutes without a GPU" : "";
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    const auto model = [](Condition condition) {
      return [condition](const Case& item, const Tensors& inputs) {
        const Axes axes = axes_of(item);
        return chunked(inputs, axes.options, axes.trained, condition);
      };
    };
    return {{"model", model(Condition::kHidden)},
            {"model_fixed", model(Condition::kAny)},
            {"op", run_op},
            {"op_mutant:by_hidden", op_by_hidden},
            {"op_mutant:by_weight", op_by_weight}};
  }

  /// "gradient_missing": hidden is frozen, the loss is right, and each gradient that is not right
  /// is not there at all.
  std::string classify(const Case& item, const Judgement& judgement) const override {
    if (axes_of(item).trained.hidden || !judgement.is_right("loss")) return "";
    bool is_missing = false;
    for (const auto& [name, got] : judgement.got) {
      if (judgement.is_right(name)) continue;
      if (got.numel() > 0) return "";
      is_missing = true;
    }
    return is_missing ? "gradient_missing" : "";
  }

  /// "forward_raises": hidden is frozen, and forward reads a gradient that was never made: a local
  /// variable that was never set, or, where a bias is given, None.
  std::string classify_error(const Case& item, const Json& exception) const override {
    const Axes axes = axes_of(item);
    const Json frames = exception.value("frames", Json::array());
    if (axes.trained.hidden || frames.empty()) return "";
    const Json& last = frames.back();
    if (!last.value("file", "").ends_with("liger_kernel/ops/fused_linear_cross_entropy.py"))
      return "";
    const std::string type = exception.value("type", ""), function = last.value("function", "");
    const bool is_unset =
        type == "UnboundLocalError" && function == "fused_linear_cross_entropy_forward";
    const bool is_none = type == "AttributeError" && function == "forward" && axes.has_bias;
    return is_unset || is_none ? "forward_raises" : "";
  }
};

}  // namespace
}  // namespace patchbench::liger_flce_frozen_hidden

int main(int argc, char** argv) {
  return patchbench::harness::run_reproducer(
      argc, argv, patchbench::liger_flce_frozen_hidden::FrozenHiddenPack());
}
