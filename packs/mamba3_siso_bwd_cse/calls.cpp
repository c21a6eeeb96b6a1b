// The functions of op.h, rotary.h and gate.h over the operators that op.cpp, rotary.cpp and
// gate.cpp register.
#include "../kernel/calls.h"
#include "gate.h"
#include "op.h"
#include "rotary.h"

namespace patchbench::ops::mamba3_siso_bwd_cse {

using at::Tensor;

SisoGradients mamba3_siso_bwd(const SisoInputs& in, const SisoSaved& saved) {
  return std::make_from_tuple<SisoGradients>(call_op<"mamba3_siso_bwd", Tensors<7>>(
      in.q, in.k, in.v, in.adt, in.qk_dot, in.d, in.cu_seqlens, in.chunk_size, saved.grad_out,
      saved.states, saved.grad_final_state));
}

Tensors<3> mamba3_siso_forward(const SisoInputs& in, const std::optional<Tensor>& initial_state) {
  return call_op<"mamba3_siso_forward", Tensors<3>>(in.q, in.k, in.v, in.adt, in.qk_dot, in.d,
                                                    in.cu_seqlens, in.chunk_size, initial_state);
}

std::string mamba3_siso_bwd_path(const SisoInputs& in) {
  return call_op<"mamba3_siso_bwd_path", std::string>(in.q, in.v, in.cu_seqlens, in.chunk_size);
}

RotaryGradients mamba3_siso_rotary_bwd(const RotaryInputs& in, const RotaryGradOutputs& grad) {
  return std::make_from_tuple<RotaryGradients>(call_op<"mamba3_siso_rotary_bwd", Tensors<7>>(
      in.q, in.k, in.q_bias, in.k_bias, in.angles, in.angles_cumsum, in.dt, in.trap, grad.q_rotated,
      grad.k_scaled, grad.qk_dot));
}

std::string mamba3_siso_rotary_bwd_path(const RotaryInputs& in) {
  return call_op<"mamba3_siso_rotary_bwd_path", std::string>(in.q, in.q_bias, in.angles);
}

GateGradients mamba3_siso_gate_bwd(const GateInputs& in, const Tensor& grad_gated) {
  return std::make_from_tuple<GateGradients>(
      call_op<"mamba3_siso_gate_bwd", Tensors<2>>(grad_gated, in.z, in.out));
}

std::string mamba3_siso_gate_bwd_path(const GateInputs& in) {
  return call_op<"mamba3_siso_gate_bwd_path", std::string>(in.z);
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
