// The ops for C++ programs on the whole of libtorch: the judge and the tests. Each function calls
// the operator that op.cpp, rotary.cpp or gate.cpp registers.
#include <ATen/core/dispatch/Dispatcher.h>

#include "gate.h"
#include "op.h"
#include "rotary.h"

namespace patchbench::ops::mamba3_siso_bwd_cse {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;
using Seven = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

SisoGradients mamba3_siso_bwd(const SisoInputs& in, const SisoSaved& saved) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::mamba3_siso_bwd", "")
          .typed<Seven(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                       const OptionalTensor&, const OptionalTensor&, int64_t, const Tensor&,
                       const Tensor&, const OptionalTensor&)>();
  const auto [q, k, v, adt, qk_dot, d, initial_state] =
      op.call(in.q, in.k, in.v, in.adt, in.qk_dot, in.d, in.cu_seqlens, in.chunk_size,
              saved.grad_out, saved.states, saved.grad_final_state);
  return {q, k, v, adt, qk_dot, d, initial_state};
}

Triple mamba3_siso_forward(const SisoInputs& in, const OptionalTensor& initial_state) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::mamba3_siso_forward", "")
          .typed<Triple(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const OptionalTensor&, const OptionalTensor&, int64_t,
                        const OptionalTensor&)>();
  return op.call(in.q, in.k, in.v, in.adt, in.qk_dot, in.d, in.cu_seqlens, in.chunk_size,
                 initial_state);
}

std::string mamba3_siso_bwd_path(const SisoInputs& in) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::mamba3_siso_bwd_path", "")
          .typed<std::string(const Tensor&, const Tensor&, const OptionalTensor&, int64_t)>();
  return op.call(in.q, in.v, in.cu_seqlens, in.chunk_size);
}

RotaryGradients mamba3_siso_rotary_bwd(const RotaryInputs& in, const RotaryGradOutputs& grad) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::mamba3_siso_rotary_bwd", "")
          .typed<Seven(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                       const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                       const Tensor&)>();
  const auto [q, k, q_bias, k_bias, angles, dt, trap] =
      op.call(in.q, in.k, in.q_bias, in.k_bias, in.angles, in.angles_cumsum, in.dt, in.trap,
              grad.q_rotated, grad.k_scaled, grad.qk_dot);
  return {q, k, q_bias, k_bias, angles, dt, trap};
}

std::string mamba3_siso_rotary_bwd_path(const RotaryInputs& in) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_siso_rotary_bwd_path", "")
                             .typed<std::string(const Tensor&, const Tensor&, const Tensor&)>();
  return op.call(in.q, in.q_bias, in.angles);
}

GateGradients mamba3_siso_gate_bwd(const GateInputs& in, const Tensor& grad_gated) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::mamba3_siso_gate_bwd", "")
          .typed<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&)>();
  const auto [z, out] = op.call(grad_gated, in.z, in.out);
  return {z, out};
}

std::string mamba3_siso_gate_bwd_path(const GateInputs& in) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_siso_gate_bwd_path", "")
                             .typed<std::string(const Tensor&)>();
  return op.call(in.z);
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
