#pragma once
#include <set>
#include <string>

#include "harness/inputs.h"

/// What Float16Module does to a module's tensors, with the defect and without, and what an
/// optimizer then makes of dt_bias.
namespace patchbench::megatron_float16_cast {

/// What the cast asks of a tensor.
enum class Cast {
  kEvery,           ///< the defect: nothing, every floating-point tensor is cast
  kUnmarked,        ///< right: whether it is marked to stay in float32
  kEveryThenWiden,  ///< wrong: all are cast, then marked ones are float32 again
};

/// How an optimizer updates a parameter of 16 bits. One of float32 is updated as it is.
enum class Update {
  kNone,
  kInPlace,     ///< as torch.optim does: the parameter itself
  kMainParams,  ///< as Megatron does: a float32 copy, made after the cast and rounded into the
                ///< parameter after each step
};

/// A module that is wrapped, and how long it is trained.
struct Problem {
  at::ScalarType dtype = at::kBFloat16;
  std::set<std::string> kept;  ///< the tensors that have to stay in float32
  Update update = Update::kNone;
  int64_t steps = 0;
};

/// Names of the tensors of the module, in the inputs and in the outputs.
inline const std::set<std::string> kTensors = {"A_log",   "D",       "counts",
                                               "dt_bias", "running", "weight"};

/// [heads] `param` after `steps` updates of `update` each, in its dtype.
inline at::Tensor updated(const at::Tensor& param, const at::Tensor& update,
                          const Problem& problem) {
  const bool has_main = problem.update == Update::kMainParams;
  at::Tensor trained =
      has_main ? param.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true) : param.clone();
  const at::Tensor step = update.to(trained.scalar_type());
  for (int64_t i = 0; i < problem.steps; ++i) trained.add_(step);
  return trained.to(param.scalar_type());
}

/// delta = softplus(dt + dt_bias) in float32, [tokens, heads], as the mixer's scan takes it.
inline at::Tensor delta_of(const at::Tensor& dt, const at::Tensor& dt_bias) {
  return at::softplus(dt + dt_bias.to(at::kFloat));
}

/// The module's tensors after the cast and the updates, and delta. `counts`, which is int64, comes
/// in float32, which holds its values; no 16-bit type does.
inline harness::Tensors wrapped(const harness::Tensors& inputs, const Problem& problem, Cast cast) {
  harness::Tensors outputs;
  for (const std::string& name : kTensors) {
    const at::Tensor& tensor = inputs.at(name);
    const bool is_kept = problem.kept.contains(name);
    const bool is_cast = tensor.is_floating_point() && !(is_kept && cast == Cast::kUnmarked);
    at::Tensor made = is_cast ? tensor.to(problem.dtype) : tensor.clone();
    if (is_kept && cast == Cast::kEveryThenWiden) made = made.to(at::kFloat);
    outputs.emplace(name, made);
  }
  at::Tensor& dt_bias = outputs.at("dt_bias");
  if (problem.update != Update::kNone) dt_bias = updated(dt_bias, inputs.at("update"), problem);
  outputs.at("counts") = outputs.at("counts").to(at::kFloat);
  outputs.emplace("delta", delta_of(inputs.at("dt"), dt_bias));
  return outputs;
}

}  // namespace patchbench::megatron_float16_cast
