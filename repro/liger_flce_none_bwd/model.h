#pragma once
#include <algorithm>

#include "harness/linear_cross_entropy.h"

/// A chunked model that carries gradients out of the forward pass with and without the defect.
namespace patchbench::liger_flce_none_bwd {

using linear_cross_entropy::chunk_loss;
using linear_cross_entropy::chunk_rows;
using linear_cross_entropy::ChunkResult;
using linear_cross_entropy::Divisors;
using linear_cross_entropy::divisors;
using linear_cross_entropy::optional_input;
using linear_cross_entropy::Options;
using linear_cross_entropy::reference;

/// How the model applies the gradient of the loss.
enum class Scaling {
  kFirstElement,  ///< the defect: gradients are summed unscaled, then all multiplied by
                  ///< grad_loss[0]
  kPerRow,  ///< right: each row of the logits' gradient is multiplied by its own grad_loss before
            ///< it is projected
};

/// The chunked algorithm: each chunk's logits exist once, their gradient replaces them, and is
/// projected at once. Inputs and outputs as `reference`; matrix products in the inputs' dtype.
inline harness::Tensors chunked(const harness::Tensors& inputs, const Options& options,
                                Scaling scaling) {
  const at::Tensor x = inputs.at("input"), w = inputs.at("weight"), target = inputs.at("target");
  const at::Tensor b = optional_input(inputs, "bias"),
                   class_weight = optional_input(inputs, "class_weight");
  const at::Tensor grad_loss = inputs.at("grad_loss");
  const at::ScalarType accumulate = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Divisors by =
      divisors(target.ne(options.ignore_index), target, class_weight, options, accumulate);
  const bool is_per_row = scaling == Scaling::kPerRow && grad_loss.dim() == 1;
  at::Tensor loss = at::zeros({x.size(0)}, x.options().dtype(accumulate));
  at::Tensor grad_x = at::zeros_like(x), grad_w = at::zeros_like(w);
  at::Tensor grad_b = b.defined() ? at::zeros_like(b) : at::Tensor();
  const int64_t step = chunk_rows(x.size(0), x.size(1), w.size(0));
  for (int64_t begin = 0; begin < x.size(0); begin += step) {
    const int64_t end = std::min(begin + step, x.size(0));
    const at::Tensor rows = x.slice(0, begin, end);
    const at::Tensor logits = b.defined() ? at::linear(rows, w, b) : at::linear(rows, w);
    ChunkResult chunk = chunk_loss(logits, target.slice(0, begin, end), class_weight, options, by);
    if (is_per_row) chunk.grad_logits.mul_(grad_loss.slice(0, begin, end).unsqueeze(1));
    loss.slice(0, begin, end).copy_(chunk.loss);
    grad_x.slice(0, begin, end).copy_(at::matmul(chunk.grad_logits, w));
    grad_w.addmm_(chunk.grad_logits.t(), rows);
    if (b.defined()) grad_b.add_(chunk.grad_logits.sum(0));
  }
  if (!is_per_row) {
    const at::Tensor first = grad_loss.flatten()[0];
    for (at::Tensor* grad : {&grad_x, &grad_w, &grad_b}) {
      if (grad->defined()) grad->mul_(first);
    }
  }
  harness::Tensors outputs = {{"loss", options.reduction == "none" ? loss : loss.sum()},
                              {"grad_input", grad_x},
                              {"grad_weight", grad_w}};
  if (b.defined()) outputs.emplace("grad_bias", grad_b);
  return outputs;
}

}  // namespace patchbench::liger_flce_none_bwd
