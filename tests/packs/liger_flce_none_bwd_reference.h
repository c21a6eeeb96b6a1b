#pragma once
#include <torch/torch.h>

#include <string>
#include <vector>

#include "harness/compare.h"
#include "harness/inputs.h"
#include "liger_flce_none_bwd/op.h"

/// Cases, inputs and an independent composition for the tests of patchbench::flce.
namespace patchbench::flce_test {

using harness::Draw;
using harness::Tensors;
using ops::liger_flce_none_bwd::FlceOptions;

/// One named point: sizes, features, the pattern of grad_output, layout, tile size.
struct FlceCase {
  std::string name, reduction = "none";
  at::ScalarType dtype = at::kFloat;
  int64_t tokens = 33, hidden = 16, vocab = 67;
  bool has_bias = false, has_class_weight = false;
  double label_smoothing = 0, lse_square_scale = 0, softcap = 0;
  int64_t ignore_index = -100;
  std::string grad_output = "signed";  ///< signed, one_hot, uniform (stride 0), strided
  std::string ignored = "some";        ///< some (row 0 among them), none, all
  std::string layout = "row_major";    ///< row_major, transposed, offset
  int64_t chunk_bytes = 0;             ///< 0: the op's default
  int64_t keep_bytes = 0;              ///< the op's option
};

/// Lets gtest print a case by its name.
inline void PrintTo(const FlceCase& c, std::ostream* out) { *out << c.name; }

/// Devices of this machine on which the op can be tested.
inline std::vector<std::string> devices() {
  std::vector<std::string> found = {"cpu"};
  if (torch::cuda::is_available()) found.push_back("cuda:0");
  return found;
}

/// The same values behind other strides: "transposed" column-major, "offset" one element into a
/// wider matrix, so that no row starts at a 16-byte boundary.
inline at::Tensor laid_out(const at::Tensor& matrix, const std::string& layout) {
  if (layout == "transposed") return matrix.t().contiguous().t();
  if (layout == "offset") {
    const at::Tensor wide = torch::zeros({matrix.size(0), matrix.size(1) + 3}, matrix.options());
    return wide.narrow(1, 1, matrix.size(1)).copy_(matrix);
  }
  return matrix;
}

inline at::Tensor targets(const FlceCase& c, const Draw& draw) {
  at::Tensor target = draw.integers({c.tokens}, 0, c.vocab);
  if (c.ignored == "all") return target.fill_(c.ignore_index);
  if (c.ignored == "some" && c.tokens > 1) {
    const at::Tensor off = Draw(7, c.name + "/ignored").mask({c.tokens}, 0.2);
    off[0] = true;  // the first row's gradient is the one that a scalar load would spread
    off[1] = false;
    target.masked_fill_(off, c.ignore_index);
  }
  return target;
}

/// What backward is fed: rows differ in sign and size, so that a mixed-up row shows.
inline at::Tensor upstream_gradient(const FlceCase& c) {
  const Draw draw(11, c.name + "/grad_output");
  if (c.reduction != "none") return draw.uniform({}, 0.3, 0.9);
  if (c.grad_output == "uniform") return draw.uniform({1}, 0.3, 0.9).expand({c.tokens});
  if (c.grad_output == "one_hot") {
    at::Tensor grad = torch::zeros({c.tokens}, torch::kDouble);
    grad[c.tokens - 1] = 0.75;
    return grad;
  }
  const at::Tensor grad = draw.uniform({c.tokens * 2}, -1.0, 1.0);
  return c.grad_output == "strided" ? grad.slice(0, 0, c.tokens * 2, 2)
                                    : grad.slice(0, 0, c.tokens);
}

/// Inputs on the CPU in the case's dtype: hidden, weight, target, grad_output (fp32, fp64 for fp64)
/// and, where the case has them, bias and class_weight.
inline Tensors inputs_of(const FlceCase& c) {
  const uint64_t seed = 20090;
  const auto acc = c.dtype == at::kDouble ? at::kDouble : at::kFloat;
  Tensors inputs;
  inputs["hidden"] = Draw(seed, c.name + "/hidden").normal({c.tokens, c.hidden}).to(c.dtype);
  inputs["weight"] =
      Draw(seed, c.name + "/weight").normal({c.vocab, c.hidden}).mul(0.3).to(c.dtype);
  inputs["hidden"] = laid_out(inputs["hidden"], c.layout);
  inputs["weight"] = laid_out(inputs["weight"], c.layout);
  inputs["target"] = targets(c, Draw(seed, c.name + "/target"));
  inputs["grad_output"] = upstream_gradient(c).to(acc);
  if (c.grad_output == "uniform" && c.reduction == "none") {
    inputs["grad_output"] = inputs["grad_output"].slice(0, 0, 1).contiguous().expand({c.tokens});
  }
  if (c.has_bias)
    inputs["bias"] = Draw(seed, c.name + "/bias").normal({c.vocab}).mul(0.5).to(c.dtype);
  if (c.has_class_weight) {
    inputs["class_weight"] =
        Draw(seed, c.name + "/class_weight").uniform({c.vocab}, 0.2, 1.7).to(acc);
  }
  return inputs;
}

inline FlceOptions options_of(const FlceCase& c, const Tensors& inputs) {
  FlceOptions options{.reduction = c.reduction,
                      .ignore_index = c.ignore_index,
                      .label_smoothing = c.label_smoothing,
                      .lse_square_scale = c.lse_square_scale};
  if (inputs.count("bias")) options.bias = inputs.at("bias");
  if (inputs.count("class_weight")) options.class_weight = inputs.at("class_weight");
  if (c.softcap > 0) options.softcap = c.softcap;
  if (c.chunk_bytes > 0) options.chunk_bytes = c.chunk_bytes;
  options.keep_bytes = c.keep_bytes;
  return options;
}

/// The loss as torch composes it: linear, tanh, cross_entropy, logsumexp. [tokens] or [].
inline at::Tensor composed_loss(const FlceCase& c, const Tensors& inputs) {
  namespace F = torch::nn::functional;
  const at::Tensor bias = inputs.count("bias") ? inputs.at("bias") : at::Tensor();
  at::Tensor y = F::linear(inputs.at("hidden"), inputs.at("weight"), bias);
  if (c.softcap > 0) y = (y / c.softcap).tanh() * c.softcap;
  const at::Tensor target = inputs.at("target");
  auto options =
      F::CrossEntropyFuncOptions().ignore_index(c.ignore_index).label_smoothing(c.label_smoothing);
  if (inputs.count("class_weight")) options.weight(inputs.at("class_weight").to(y.scalar_type()));
  if (c.reduction == "mean") options.reduction(torch::kMean);
  if (c.reduction == "sum") options.reduction(torch::kSum);
  if (c.reduction == "none") options.reduction(torch::kNone);
  const at::Tensor ce = F::cross_entropy(y, target, options);
  if (c.lse_square_scale == 0) return ce;
  const at::Tensor valid = target.ne(c.ignore_index);
  const at::Tensor z = torch::where(valid, y.logsumexp(1).square() * c.lse_square_scale, 0.0);
  if (c.reduction == "none") return ce + z;
  return ce + (c.reduction == "sum" ? z.sum() : z.sum() / valid.sum());
}

/// Leaves of one computation: copies of the float inputs in `dtype` that require grad.
inline Tensors leaves_of(const Tensors& inputs, at::ScalarType dtype) {
  Tensors leaves = inputs;
  for (const char* name : {"hidden", "weight", "bias"}) {
    if (leaves.count(name)) leaves[name] = leaves[name].detach().to(dtype).requires_grad_(true);
  }
  if (leaves.count("class_weight") && dtype == at::kDouble) {
    leaves["class_weight"] = leaves["class_weight"].to(dtype);
  }
  return leaves;
}

/// loss and gradients by autograd, named loss, grad_hidden, grad_weight, grad_bias. The loss has
/// grad_output's dtype.
inline Tensors gradients_of(const at::Tensor& loss, const Tensors& leaves,
                            const at::Tensor& grad_output) {
  std::vector<at::Tensor> wanted = {leaves.at("hidden"), leaves.at("weight")};
  if (leaves.count("bias")) wanted.push_back(leaves.at("bias"));
  const auto grads = torch::autograd::grad({loss}, wanted, {grad_output.to(loss.scalar_type())});
  Tensors outputs{{"loss", loss.detach()}, {"grad_hidden", grads[0]}, {"grad_weight", grads[1]}};
  if (grads.size() > 2) outputs["grad_bias"] = grads[2];
  return outputs;
}

inline Tensors oracle_of(const FlceCase& c, const Tensors& inputs) {
  Tensors leaves = leaves_of(inputs, at::kDouble);
  return gradients_of(composed_loss(c, leaves), leaves, inputs.at("grad_output").to(at::kDouble));
}

inline Tensors plain_of(const FlceCase& c, const Tensors& inputs) {
  const Tensors leaves = leaves_of(inputs, c.dtype);
  Tensors plain = gradients_of(composed_loss(c, leaves), leaves, inputs.at("grad_output"));
  plain["loss"] = plain["loss"].to(inputs.at("grad_output").scalar_type());
  return plain;
}

inline Tensors op_of(const FlceCase& c, const Tensors& inputs) {
  const Tensors leaves = leaves_of(inputs, c.dtype);
  const at::Tensor loss = ops::liger_flce_none_bwd::flce(
      leaves.at("hidden"), leaves.at("weight"), leaves.at("target"), options_of(c, leaves));
  return gradients_of(loss, leaves, inputs.at("grad_output"));
}

inline Tensors moved(const Tensors& tensors, const std::string& device) {
  Tensors result;
  for (const auto& [name, tensor] : tensors)
    result[name] = harness::view_on(tensor, at::Device(device));
  return result;
}

/// What every output must meet, besides k = 2 times the plain computation's error.
inline harness::Tolerances tolerances(const FlceCase& c) {
  if (c.dtype == at::kDouble) {
    return {
        .element =
            {2, 32,
             "the oracle is of the same dtype, so the plain computation's own error reads as 0"},
        .row = {2, 32, "as for the element; measured <= 6 ulp"},
        .cosine = {2, 16, "fp64 sums of the measure itself"},
        .scale = {2, 16, "fp64 sums of the measure itself"}};
  }
  if (c.hidden == 1 || c.vocab == 1) {
    return {
        .element = {2, 4, "measured: <= 1.5 ulp of the largest element"},
        .row = {2, 64,
                "a row is one number whose terms cancel to 1e-3 of the largest row: measured 60 "
                "ulp in fp32"},
        .cosine = {2, 0.01, "quadratic in the error"},
        .scale = {2, 4, "one number that is a cancelling sum over the tokens: measured 3.5 ulp"}};
  }
  return {
      .element = {2, 4,
                  "measured: <= 1.5 ulp of the largest element where the plain computation is "
                  "nearly exact"},
      .row = {2, 4, "measured: <= 2 ulp per row norm; a row of one valid token has no averaging"},
      .cosine = {2, 0.01, "quadratic in the error: far below 1e-2 ulp unless a direction is wrong"},
      .scale = {2, 1, "a common factor has no excuse beyond one rounding"}};
}

/// The first layer of any output that fails, as one line, or "".
inline std::string failure(const FlceCase& c, const Tensors& got, const Tensors& oracle,
                           const Tensors& plain) {
  for (const auto& [name, reference] : oracle) {
    if (!got.count(name)) return name + " is missing";
    const auto layers = harness::compare(name, got.at(name), reference, plain.at(name),
                                         tolerances(c), harness::epsilon_of(c.dtype));
    for (const auto& m : layers) {
      if (!m.pass) {
        return name + " " + m.layer + " " + m.where + ": " +
               std::to_string(m.got / harness::epsilon_of(c.dtype)) + " ulp, plain " +
               std::to_string(m.plain / harness::epsilon_of(c.dtype)) + ", limit " +
               std::to_string(m.limit / harness::epsilon_of(c.dtype));
      }
    }
  }
  return "";
}

}  // namespace patchbench::flce_test
