#include "gate.cuh"

#include "../kernel/sm90/ptx.cuh"

// Grid: a thread for each word of 16 bytes, 256 a CTA. No shared memory. Rounded to bfloat16: the
// results. All else is float32.
namespace patchbench::ops::mamba3_siso_bwd_cse {
namespace {

using namespace sm90;  // NOLINT: the names of the primitives

constexpr int kGateThreads = 256;

struct GateGradients {
  float z, out;
};
__device__ GateGradients gate_gradients(float grad_gated, float z, float out) {
  const float share = rcp_approx(1.0f + exp2_of(-1.4426950408889634f * z));
  const float scaled = grad_gated * share;
  return {scaled * out * (1.0f + z * (1.0f - share)), scaled * z};
}

__global__ void __launch_bounds__(kGateThreads) gate_kernel(GateBackward problem) {
  const int64_t word = static_cast<int64_t>(blockIdx.x) * kGateThreads + threadIdx.x;
  if (word >= problem.num_words) return;
  const auto load = [&](const void* tensor) {
    return load_128(static_cast<const Vec128*>(tensor) + word);
  };
  const Vec128 grad_gated = load(problem.grad_gated), z = load(problem.z), out = load(problem.out);
  Vec128 grad_z, grad_out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto low =
        gate_gradients(bf16_low(grad_gated.words[i]), bf16_low(z.words[i]), bf16_low(out.words[i]));
    const auto high = gate_gradients(bf16_high(grad_gated.words[i]), bf16_high(z.words[i]),
                                     bf16_high(out.words[i]));
    grad_z.words[i] = pack_bf16(low.z, high.z);
    grad_out.words[i] = pack_bf16(low.out, high.out);
  }
  store_128(static_cast<Vec128*>(problem.grad_z) + word, grad_z);
  store_128(static_cast<Vec128*>(problem.grad_out) + word, grad_out);
}

}  // namespace

cudaError_t launch_gate_backward(const GateBackward& problem, cudaStream_t stream) {
  const int64_t ctas = (problem.num_words + kGateThreads - 1) / kGateThreads;
  if (ctas == 0) return cudaSuccess;
  gate_kernel<<<static_cast<unsigned>(ctas), kGateThreads, 0, stream>>>(problem);
  return cudaGetLastError();
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
