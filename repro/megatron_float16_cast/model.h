#pragma once
#include <set>
#include <string>

#include "harness/inputs.h"

/// What Float16Module does to a module's tensors, with the defect and without, and what an
/// optimizer then makes of dt_bias.
namespace patchbench::megatron_float16_cast {

/// What the cast asks of a tensor.
enum class Cast {
  kEvery,            ///< the defect: nothing, every floating-point tensor is cast
  kAllButKept,       ///< right: whether it has to stay in float32, and its gradient with it
  kEveryThenWiden,   ///< wrong: all are cast, then what has to stay is float32 again
  kGradientsOfKept,  ///< wrong: what has to stay does, its gradient is cast
  kMarkedAlone,      ///< wrong: what is marked stays, what a mixer makes in float32 does not
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
  std::set<std::string> tensors;  ///< the module's, by their names in the inputs and the outputs
  std::set<std::string> marked;   ///< those that are marked to stay in float32
  std::set<std::string> own;      ///< those that a mixer itself makes in float32
  bool is_frozen = false;         ///< no parameter requires a gradient
  Update update = Update::kNone;
  int64_t steps = 0;

  bool keeps(const std::string& name) const { return marked.contains(name) || own.contains(name); }
};

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

/// What the wrap leaves of the mixers' parameters as objects, [layers, tensors]: 4 for the first
/// name, 8 for the second and so on; of a parameter 2 more if it is the object of before, and 1
/// more if it requires a gradient.
inline at::Tensor objects(const Problem& problem, int64_t layers) {
  at::Tensor row = at::empty({static_cast<int64_t>(problem.tensors.size())}, at::kFloat);
  int64_t i = 0;
  for (const std::string& name : problem.tensors) {
    const bool is_parameter = name != "counts" && name != "running";
    row[i] = static_cast<double>(4 * (i + 1) + (is_parameter ? 3 - problem.is_frozen : 0));
    ++i;
  }
  return row.expand({layers, -1}).contiguous();
}

/// The module's tensors and gradients after the cast and the updates, with delta where the inputs
/// have a dt and `objects` where they have none. `counts`, which is int64, comes in float32, which
/// holds its values; no 16-bit type does.
inline harness::Tensors wrapped(const harness::Tensors& inputs, const Problem& problem, Cast cast) {
  harness::Tensors outputs;
  const auto cast_one = [&](const at::Tensor& tensor, bool is_kept) {
    const bool is_cast = tensor.is_floating_point() && (!is_kept || cast == Cast::kEveryThenWiden);
    at::Tensor made = is_cast ? tensor.to(problem.dtype) : tensor.clone();
    return is_kept ? made.to(at::kFloat) : made;
  };
  for (const std::string& name : problem.tensors) {
    const bool is_kept =
        cast == Cast::kMarkedAlone ? problem.marked.contains(name) : problem.keeps(name);
    const bool stays = is_kept && cast != Cast::kEvery;
    outputs.emplace(name, cast_one(inputs.at(name), stays));
    if (!inputs.contains(name + ".grad")) continue;
    const bool grad_stays = stays && cast != Cast::kGradientsOfKept;
    outputs.emplace(name + ".grad", cast_one(inputs.at(name + ".grad"), grad_stays));
  }
  outputs.at("counts") = outputs.at("counts").to(at::kFloat);
  if (!inputs.contains("dt")) {
    const at::Tensor& counts = inputs.at("counts");
    outputs.emplace("objects", objects(problem, counts.size(0)).to(counts.device()));
    return outputs;
  }
  at::Tensor& dt_bias = outputs.at("dt_bias");
  if (problem.update != Update::kNone) dt_bias = updated(dt_bias, inputs.at("update"), problem);
  outputs.emplace("delta", delta_of(inputs.at("dt"), dt_bias));
  return outputs;
}

}  // namespace patchbench::megatron_float16_cast
