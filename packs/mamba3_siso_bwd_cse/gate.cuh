#pragma once
#include <cstdint>
#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
#include <cuda_runtime_api.h>
#endif

/// The backward of the gate after the scan. No framework header: raw pointers and a stream.
/// Formulas: gate.h.
namespace patchbench::ops::mamba3_siso_bwd_cse {

/// One call. All tensors are of one device, contiguous, 16-byte aligned and of 8 num_words bfloat16
/// elements; nothing is owned.
struct GateBackward {
  const void *grad_gated = nullptr, *z = nullptr, *out = nullptr;
  void *grad_z = nullptr, *grad_out = nullptr;
  int64_t num_words = 0;
};

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// Bitwise deterministic; capturable. Returns the launch's status.
cudaError_t launch_gate_backward(const GateBackward& problem, cudaStream_t stream);
#endif

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
