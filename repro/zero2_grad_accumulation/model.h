#pragma once
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "harness/inputs.h"

/// Data-parallel training of a small net with gradient accumulation, right and with the defect.
///
///   y_hat = W2 tanh(W1 x + b1) + b2,  L = times * mean((y_hat - y)^2) over a micro-batch
///   gradient of a step = mean over ranks and micro-batches of grad L
///   parameters after a step = parameters - (kRate / times) * gradient
namespace patchbench::zero2_grad_accumulation {

inline constexpr double kRate = 0.25;

/// Which micro-batches of a step reach the gradient. The divisor is their number in each.
enum class Kept {
  kAll,        ///< right
  kLast,       ///< the defect: what came before the last micro-batch is overwritten
  kFirst,      ///< wrong in another way: what comes after the first is dropped
  kEveryStep,  ///< wrong in another way: what earlier steps gave is not cleared
};

inline const std::vector<std::string> kParameters = {"w1", "b1", "w2", "b2"};

/// The gradients of one micro-batch: x [rows, features], y [rows, outputs], in the dtype of the
/// parameters; the loss itself in fp32 (fp64 for fp64). Derived by autograd.
inline std::vector<at::Tensor> micro_gradients(const std::vector<at::Tensor>& parameters,
                                               const at::Tensor& x, const at::Tensor& y,
                                               double factor) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& one : parameters) leaves.push_back(one.detach().requires_grad_());
  const at::Tensor out =
      at::linear(at::tanh(at::linear(x, leaves[0], leaves[1])), leaves[2], leaves[3]);
  const at::Tensor loss = (out.to(y.scalar_type()) - y).square().mean() * factor;
  return torch::autograd::grad({loss}, leaves);
}

/// The inputs of one rank, as if it were the only one: what it computes alone.
inline harness::Tensors of_rank(harness::Tensors inputs, int64_t rank) {
  for (const char* name : {"x", "y"}) inputs.at(name) = inputs.at(name).narrow(0, rank, 1);
  return inputs;
}

/// Inputs x [ranks, steps, micro_batches, rows, features], y alike, w1, b1, w2, b2.
///   returns grad_<parameter> of the last step and, but in bf16, after_<parameter> after it
/// The loss of the micro-batch `silent` of each step is times 0; -1: of none.
/// Each rank adds up its micro-batches in the dtype of the parameters. Parameters in fp32 (fp64 for
/// fp64) are what is updated; a copy rounded to the dtype of x is what computes. `largest`, if
/// given, gets the greatest root mean square of a rank's sum in the last step, for each gradient.
inline harness::Tensors trained(const harness::Tensors& inputs, double times, Kept kept,
                                int64_t silent = -1,
                                std::map<std::string, double>* largest = nullptr) {
  const at::Tensor x = inputs.at("x"), y = inputs.at("y");
  const auto num_ranks = x.size(0), num_steps = x.size(1), num_micro = x.size(2);
  std::vector<at::Tensor> parameters, gradients;
  for (const std::string& name : kParameters) parameters.push_back(inputs.at(name).clone());
  for (int64_t step = 0; step < num_steps; ++step) {
    std::vector<at::Tensor> rounded;
    for (const at::Tensor& one : parameters) rounded.push_back(one.to(x.scalar_type()));
    std::vector<at::Tensor> sums;
    for (const at::Tensor& one : parameters) sums.push_back(at::zeros_like(one));
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      std::vector<at::Tensor> rank_sums;
      for (const at::Tensor& one : rounded) rank_sums.push_back(at::zeros_like(one));
      for (int64_t micro = 0; micro < num_micro; ++micro) {
        if (kept == Kept::kLast && micro + 1 < num_micro) continue;
        if (kept == Kept::kFirst && micro > 0) continue;
        const auto grads =
            micro_gradients(rounded, x[rank][step][micro], y[rank][step][micro],
                            micro == silent ? 0.0 : times / static_cast<double>(num_micro));
        for (std::size_t i = 0; i < grads.size(); ++i) {
          rank_sums[i] += grads[i];
          if (largest == nullptr || step + 1 < num_steps) continue;
          double& most = (*largest)["grad_" + kParameters[i]];
          most = std::max(most, rank_sums[i].square().mean().sqrt().item<double>());
        }
      }
      for (std::size_t i = 0; i < sums.size(); ++i)
        sums[i] += rank_sums[i].to(sums[i].scalar_type()) / static_cast<double>(num_ranks);
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (kept == Kept::kEveryStep && step > 0) sums[i] += gradients[i];
      parameters[i] = parameters[i] - sums[i] * (kRate / times);
    }
    gradients = sums;
  }
  harness::Tensors outputs;
  for (std::size_t i = 0; i < kParameters.size(); ++i) {
    outputs.emplace("grad_" + kParameters[i], gradients[i].contiguous());
    if (x.scalar_type() != at::kBFloat16)
      outputs.emplace("after_" + kParameters[i], parameters[i].contiguous());
  }
  return outputs;
}

}  // namespace patchbench::zero2_grad_accumulation
