#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace patchbench::ops::mamba3_siso_bwd_cse {

/// What mamba-ssm's Mamba-3 SISO layer makes of the scan's output (op.h): gated = out silu(z).
/// Tensors of one shape and one dtype, float32, bfloat16, float16 or float64. Others than
/// contiguous are copied first.
struct GateInputs {
  at::Tensor z, out;
};
struct GateGradients {
  at::Tensor z, out;  ///< as the inputs
};

/// The gradients. With s = sigmoid(z):
///   grad_z = grad_gated out s (1 + z (1 - s))     grad_out = grad_gated z s
/// In float32 (float64 with float64), each rounded once. On CUDA one kernel (bfloat16, a multiple
/// of 8 elements, compute capability 8.0), which takes the sigmoid to about 2^-20. Elsewhere, and
/// where PATCHBENCH_OP_FALLBACK=mamba3_siso_bwd_cse forces it, plain torch. Bitwise deterministic
/// on one path; no host synchronisation; capturable. Not differentiable: it is a backward.
///
/// Throws std::runtime_error, one line: `mamba3_siso_gate_bwd: out must have shape [2, 64, 4, 64],
/// got [2, 64, 4, 32]`. Source: derived here by differentiating the formula; mamba-ssm's
/// mamba3_siso_bwd.py at 2.3.2.post1 takes the same gradients in its kernel dzdo.
GateGradients mamba3_siso_gate_bwd(const GateInputs& inputs, const at::Tensor& grad_gated);

/// The path taken for inputs like these: "cuda" or "plain".
std::string mamba3_siso_gate_bwd_path(const GateInputs& inputs);

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
