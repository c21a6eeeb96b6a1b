#pragma once
#include <algorithm>

#include "harness/linear_cross_entropy.h"

/// The chunked algorithm with the defect and without: forward makes the gradients of mean and sum,
/// and a condition says whether it does.
namespace patchbench::liger_flce_frozen_hidden {

/// Which of the inputs want a gradient.
struct Trained {
  bool hidden = false, weight = false, bias = false;
};

/// When forward makes gradients.
enum class Condition {
  kHidden,  ///< the defect: where hidden wants one, whatever weight and bias want
  kAny,     ///< right: where any of the three wants one
};

/// Of the gradients in `outputs` those that are wanted; one that was not made has no element.
inline harness::Tensors wanted(harness::Tensors outputs, const Trained& trained, bool is_made) {
  for (const auto& [name, is_wanted] :
       {std::pair{"grad_input", trained.hidden}, std::pair{"grad_weight", trained.weight},
        std::pair{"grad_bias", trained.bias}}) {
    if (!is_wanted) {
      outputs.erase(name);
    } else if (!is_made) {
      outputs.at(name) = at::empty({0}, outputs.at(name).options());
    }
  }
  return outputs;
}

/// Loss, and the gradients that are wanted. Reduction none makes them in backward, where its
/// grad_loss is known, and asks no condition. Inputs as `inputs_of` gives them; matrix products in
/// their dtype.
inline harness::Tensors chunked(const harness::Tensors& inputs,
                                const linear_cross_entropy::Options& options,
                                const Trained& trained, Condition condition) {
  using linear_cross_entropy::optional_input;
  const at::Tensor x = inputs.at("input"), w = inputs.at("weight"), target = inputs.at("target");
  const at::Tensor b = optional_input(inputs, "bias"),
                   class_weight = optional_input(inputs, "class_weight"),
                   grad_loss = inputs.at("grad_loss");
  const at::ScalarType accumulate = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto by = linear_cross_entropy::divisors(target.ne(options.ignore_index), target,
                                                 class_weight, options, accumulate);
  at::Tensor loss = at::zeros({x.size(0)}, x.options().dtype(accumulate));
  at::Tensor grad_x = at::zeros_like(x), grad_w = at::zeros_like(w);
  at::Tensor grad_b = b.defined() ? at::zeros_like(b) : at::Tensor();
  const int64_t step = linear_cross_entropy::chunk_rows(x.size(0), x.size(1), w.size(0));
  for (int64_t begin = 0; begin < x.size(0); begin += step) {
    const int64_t end = std::min(begin + step, x.size(0));
    const at::Tensor rows = x.slice(0, begin, end);
    const at::Tensor logits = b.defined() ? at::linear(rows, w, b) : at::linear(rows, w);
    auto chunk = linear_cross_entropy::chunk_loss(logits, target.slice(0, begin, end), class_weight,
                                                  options, by);
    loss.slice(0, begin, end).copy_(chunk.loss);
    chunk.grad_logits.mul_(grad_loss.dim() == 0 ? grad_loss
                                                : grad_loss.slice(0, begin, end).unsqueeze(1));
    grad_x.slice(0, begin, end).copy_(at::matmul(chunk.grad_logits, w));
    grad_w.addmm_(chunk.grad_logits.t(), rows);
    if (b.defined()) grad_b.add_(chunk.grad_logits.sum(0));
  }
  const bool is_none = options.reduction == "none";
  harness::Tensors outputs = {
      {"loss", is_none ? loss : loss.sum()}, {"grad_input", grad_x}, {"grad_weight", grad_w}};
  if (b.defined()) outputs.emplace("grad_bias", grad_b);
  return wanted(std::move(outputs), trained,
                is_none || trained.hidden || condition == Condition::kAny);
}

}  // namespace patchbench::liger_flce_frozen_hidden
