#pragma once
#include <torch/torch.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "harness/inputs.h"

/// Fused linear cross entropy, written from its formulas: the fp64 oracle, and a chunked model that
/// carries gradients out of the forward pass with and without the defect.
namespace patchbench::liger_flce_none_bwd {

/// The scalar arguments of one call.
struct Options {
  std::string reduction = "none";  ///< "none", "mean", "sum"
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  double lse_square_scale = 0;
  double softcap = 0;  ///< 0: none
};

/// How the model applies the gradient of the loss.
enum class Scaling {
  kFirstElement,  ///< the defect: gradients are summed unscaled, then all multiplied by
                  ///< grad_loss[0]
  kPerRow,  ///< right: each row of the logits' gradient is multiplied by its own grad_loss before
            ///< it is projected
};

/// The input of a name, or an undefined tensor.
inline at::Tensor optional_input(const harness::Tensors& inputs, const std::string& name) {
  const auto found = inputs.find(name);
  return found == inputs.end() ? at::Tensor() : found->second;
}

/// The divisors of reduction "mean": cross entropy terms by sum of class weights over valid rows, z
/// term by their number.
struct Divisors {
  at::Tensor entropy, z;  ///< [] each
};
inline Divisors divisors(const at::Tensor& valid, const at::Tensor& target,
                         const at::Tensor& class_weight, const Options& options,
                         at::ScalarType accumulate) {
  const at::Tensor one = at::ones({}, valid.options().dtype(accumulate));
  if (options.reduction != "mean") return {one, one};
  const at::Tensor count = valid.sum().to(accumulate);
  if (!class_weight.defined()) return {count, count};
  const at::Tensor safe = at::where(valid, target, 0);
  return {(class_weight.index_select(0, safe).to(accumulate) * valid).sum(), count};
}

/// Loss and gradients by plain torch autograd on whole logits, in the dtype of the inputs (matrix
/// products rounded to it, the loss itself in fp32 or, for fp64, in fp64): with fp64 inputs the
/// oracle, with others the plain computation.
///   inputs: input [tokens, hidden], weight [vocab, hidden], bias [vocab]?, target [tokens] int64,
///   class_weight [vocab]?, grad_loss [tokens] or []
///   returns loss [tokens] or [], grad_input, grad_weight, grad_bias?
/// Source: derived here from y = x W^T + b, L = CE(y) + lambda lse(y)^2.
inline harness::Tensors reference(const harness::Tensors& inputs, const Options& options) {
  const at::Tensor x = inputs.at("input").detach().requires_grad_();
  const at::Tensor w = inputs.at("weight").detach().requires_grad_();
  at::Tensor b = optional_input(inputs, "bias");
  if (b.defined()) b = b.detach().requires_grad_();
  const at::Tensor target = inputs.at("target");
  const at::ScalarType accumulate = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor class_weight = optional_input(inputs, "class_weight");
  if (class_weight.defined()) class_weight = class_weight.to(accumulate);
  at::Tensor y = (b.defined() ? at::linear(x, w, b) : at::linear(x, w)).to(accumulate);
  if (options.softcap > 0) y = options.softcap * at::tanh(y / options.softcap);
  const at::Tensor valid = target.ne(options.ignore_index);
  const Divisors by = divisors(valid, target, class_weight, options, accumulate);
  at::Tensor loss = at::cross_entropy_loss(y, target, class_weight, at::Reduction::None,
                                           options.ignore_index, options.label_smoothing) /
                    by.entropy;
  if (options.lse_square_scale > 0) {
    loss = loss +
           at::where(valid, options.lse_square_scale * at::logsumexp(y, {1}).square(), 0.0) / by.z;
  }
  if (options.reduction != "none") loss = loss.sum();
  std::vector<at::Tensor> leaves = {x, w};
  if (b.defined()) leaves.push_back(b);
  const auto grads = torch::autograd::grad({loss}, leaves, {inputs.at("grad_loss").to(accumulate)});
  harness::Tensors outputs = {
      {"loss", loss.detach()}, {"grad_input", grads[0]}, {"grad_weight", grads[1]}};
  if (b.defined()) outputs.emplace("grad_bias", grads[2]);
  return outputs;
}

/// The smallest power of two that is not below `value`.
inline int64_t power_of_two_above(int64_t value) {
  int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

/// Rows per chunk: the number of chunks grows with vocab / hidden, whatever the number of tokens.
inline int64_t chunk_rows(int64_t tokens, int64_t hidden, int64_t vocab) {
  const int64_t num_wanted = (vocab + hidden - 1) / hidden;
  return power_of_two_above((tokens + num_wanted - 1) / num_wanted);
}

/// Loss and logits' gradient of one chunk of rows.
struct ChunkResult {
  at::Tensor loss;         ///< [rows] fp32 (fp64 for fp64)
  at::Tensor grad_logits;  ///< [rows, vocab], the inputs' dtype
};

/// With p = softmax(y), l = lse(y), e = label smoothing, lambda = lse_square_scale, S = sum of
/// class weights c:
///   no class weights: L = l - (1-e) y_t - (e/V) sum_j y_j + lambda l^2
///                     dy_j = p_j (1 + 2 lambda l) - e/V - (1-e) [j = t]
///   class weights:    L = (1-e) c_t (l - y_t) + (e/V) (S l - sum_j c_j y_j) + lambda l^2
///                     dy_j = (1-e) c_t (p_j - [j = t]) + (e/V) (S p_j - c_j) + 2 lambda l p_j
///   softcap:          y = cap tanh(z / cap), dz_j = dy_j (1 - (y_j / cap)^2)
/// Ignored rows give 0. All in fp32 (fp64 for fp64), one rounding at the end. Source: derived here.
inline ChunkResult chunk_loss(const at::Tensor& z, const at::Tensor& target,
                              const at::Tensor& class_weight, const Options& options,
                              const Divisors& by) {
  const at::ScalarType accumulate = z.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor y = z.to(accumulate);
  if (options.softcap > 0) y = options.softcap * at::tanh(y / options.softcap);
  const auto vocab = static_cast<double>(y.size(1));
  const double smooth = options.label_smoothing;
  const at::Tensor valid = target.ne(options.ignore_index).unsqueeze(1);
  const at::Tensor safe = at::where(valid, target.unsqueeze(1), 0);
  const at::Tensor lse = at::logsumexp(y, {1}, true);
  const at::Tensor p = at::exp(y - lse);
  const at::Tensor hot = at::zeros_like(y).scatter_(1, safe, 1.0);
  const at::Tensor c =
      class_weight.defined() ? class_weight.to(accumulate) : at::ones({y.size(1)}, y.options());
  const at::Tensor c_target = c.index_select(0, safe.flatten()).unsqueeze(1);
  const at::Tensor entropy = (1 - smooth) * c_target * (lse - y.gather(1, safe)) +
                             smooth / vocab * (c.sum() * lse - (c * y).sum(1, true));
  const at::Tensor z_term = options.lse_square_scale * lse.square();
  at::Tensor grad =
      ((1 - smooth) * c_target * (p - hot) + smooth / vocab * (c.sum() * p - c)) / by.entropy +
      2 * options.lse_square_scale * lse * p / by.z;
  if (options.softcap > 0) grad = grad * (1 - (y / options.softcap).square());
  const at::Tensor loss = at::where(valid, entropy / by.entropy + z_term / by.z, 0.0);
  return {loss.squeeze(1), at::where(valid, grad, 0.0).to(z.scalar_type())};
}

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
