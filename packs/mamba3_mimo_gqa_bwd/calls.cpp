// The functions of op.h over the operators that op.cpp registers.
#include "../kernel/calls.h"
#include "op.h"

namespace patchbench::ops::mamba3_mimo_gqa_bwd {

using at::Tensor;

Tensors<4> group_reduce_bwd(const Tensor& dq, const Tensor& dk, int64_t num_groups) {
  return call_op<"group_reduce_bwd", Tensors<4>>(dq, dk, num_groups);
}

std::string group_reduce_bwd_path(const Tensor& dq, int64_t num_groups) {
  return call_op<"group_reduce_bwd_path", std::string>(dq, num_groups);
}

MimoGradients mamba3_mimo_bwd(const MimoInputs& in, const Tensor& grad_out) {
  return std::make_from_tuple<MimoGradients>(call_op<"mamba3_mimo_bwd", Tensors<14>>(
      in.q, in.k, in.v, in.adt, in.dt, in.trap, in.q_bias, in.k_bias, in.mimo_v, in.mimo_z,
      in.mimo_o, in.angles, in.d, in.z, in.cu_seqlens, grad_out));
}

std::string mamba3_mimo_bwd_path(const MimoInputs& in) {
  return call_op<"mamba3_mimo_bwd_path", std::string>(in.q, in.v, in.angles, in.cu_seqlens);
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
