// The functions of op.h over the operators that op.cpp registers.
#include "../kernel/calls.h"
#include "op.h"

namespace patchbench::ops::mamba3_mimo_smem_2d {

using at::Tensor;

Tensor mamba3_mimo_qk_dot(const Tensor& q, const Tensor& k, const Tensor& q_bias,
                          const Tensor& k_bias, const QkDotStaging& staging) {
  return call_op<"mamba3_mimo_qk_dot", Tensor>(q, k, q_bias, k_bias, staging.layout, staging.copy);
}

Tensors<4> mamba3_mimo_qk_dot_bwd(const Tensor& grad_qk_dot, const Tensor& q, const Tensor& k,
                                  const Tensor& q_bias, const Tensor& k_bias,
                                  const QkDotStaging& staging) {
  return call_op<"mamba3_mimo_qk_dot_bwd", Tensors<4>>(grad_qk_dot, q, k, q_bias, k_bias,
                                                       staging.layout, staging.copy);
}

std::string mamba3_mimo_qk_dot_path(const Tensor& q, const QkDotStaging& staging) {
  return call_op<"mamba3_mimo_qk_dot_path", std::string>(q, staging.layout, staging.copy);
}

}  // namespace patchbench::ops::mamba3_mimo_smem_2d
