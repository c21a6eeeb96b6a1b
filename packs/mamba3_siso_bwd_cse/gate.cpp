// patchbench::mamba3_siso_gate_bwd on torch's stable ABI. What it does: gate.h.
#include <string>
#include <tuple>

#include "../kernel/checks.h"
#include "../kernel/fallback.h"
#include "../kernel/launch.h"
#include "../kernel/library.h"
#include "gate.cuh"

namespace patchbench::ops::mamba3_siso_bwd_cse {
namespace {

using Pair = std::tuple<Tensor, Tensor>;

constexpr const char* kSlug = "mamba3_siso_bwd_cse";
constexpr const char* kOp = "mamba3_siso_gate_bwd";
constexpr const char* kNeeds = "bfloat16, a multiple of 8 elements, and compute capability 8.0";
constexpr int64_t kElements = 8;  // of a word of the kernel

bool has_kernel(const Tensor& z) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  return z.is_cuda() && z.scalar_type() == kBFloat16 && z.numel() % kElements == 0 &&
         gpu_of(z).major >= 8;
#else
  static_cast<void>(z);
  return false;
#endif
}

void check(const Tensor& grad_gated, const Tensor& z, const Tensor& out) {
  const auto type = z.scalar_type();
  PB_CHECK(type == kFloat || type == kBFloat16 || type == kHalf || type == kDouble, kOp,
           ": z must have dtype float32, bfloat16, float16 or float64, got ", text_of(type));
  const auto shape = z.shape();
  check_tensor(kOp, "out", out, shape, type, z);
  check_tensor(kOp, "grad_gated", grad_gated, shape, type, z);
}

Pair backward_plain(const Tensor& grad_gated, const Tensor& z, const Tensor& out) {
  const auto low = z.scalar_type(), wide = low == kDouble ? kDouble : kFloat;
  const Tensor gate = z.to(wide), share = gate.sigmoid(), scaled = grad_gated.to(wide) * share;
  return {(scaled * out.to(wide) * (1 + gate * (1 - share))).to(low).contiguous(),
          (scaled * gate).to(low).contiguous()};
}

#ifdef PATCHBENCH_CUDA
Pair launch(const Tensor& grad_gated, const Tensor& z, const Tensor& out) {
  const Pair gradients = {empty_like(z), empty_like(out)};
  GateBackward problem;
  problem.grad_gated = grad_gated.data();
  problem.z = z.data();
  problem.out = out.data();
  problem.grad_z = std::get<0>(gradients).mutable_data();
  problem.grad_out = std::get<1>(gradients).mutable_data();
  problem.num_words = z.numel() / kElements;
  check_cuda(kOp, launch_gate_backward(problem, current_stream(z)));
  return gradients;
}
#endif

Pair backward(const Tensor& grad_gated, const Tensor& z, const Tensor& out) {
  check(grad_gated, z, out);
  const DeviceScope device(z);
#ifdef PATCHBENCH_CUDA
  if (has_kernel(z)) return launch(in_words(grad_gated), in_words(z), in_words(out));
#endif
  warn_of_plain_form(kSlug, kOp, z, kNeeds);
  return backward_plain(grad_gated, z, out);
}

std::string path_of(const Tensor& z) { return has_kernel(z) ? "cuda" : "plain"; }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def(
      "mamba3_siso_gate_bwd(Tensor grad_gated, Tensor z, Tensor out) -> (Tensor grad_z, Tensor "
      "grad_out)");
  m.def("mamba3_siso_gate_bwd_path(Tensor z) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("mamba3_siso_gate_bwd_path", &boxed<path_of>);
}
STABLE_TORCH_LIBRARY_IMPL(patchbench, CPU, m) { m.impl("mamba3_siso_gate_bwd", &boxed<backward>); }
STABLE_TORCH_LIBRARY_IMPL(patchbench, CUDA, m) { m.impl("mamba3_siso_gate_bwd", &boxed<backward>); }

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
