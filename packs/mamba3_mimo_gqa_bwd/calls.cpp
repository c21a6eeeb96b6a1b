// The ops for C++ programs on the whole of libtorch: the judge and the tests. Each function calls
// the operator that op.cpp registers.
#include <ATen/core/dispatch/Dispatcher.h>

#include "op.h"

namespace patchbench::ops::mamba3_mimo_gqa_bwd {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Fourteen = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                            Tensor, Tensor, Tensor, Tensor, Tensor>;

Four group_reduce_bwd(const Tensor& dq, const Tensor& dk, int64_t num_groups) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::group_reduce_bwd", "")
                             .typed<Four(const Tensor&, const Tensor&, int64_t)>();
  return op.call(dq, dk, num_groups);
}

std::string group_reduce_bwd_path(const Tensor& dq, int64_t num_groups) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::group_reduce_bwd_path", "")
                             .typed<std::string(const Tensor&, int64_t)>();
  return op.call(dq, num_groups);
}

MimoGradients mamba3_mimo_bwd(const MimoInputs& in, const Tensor& grad_out) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::mamba3_mimo_bwd", "")
          .typed<Fourteen(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const OptionalTensor&, const OptionalTensor&, const Tensor&,
                          const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                          const Tensor&)>();
  const Fourteen all =
      op.call(in.q, in.k, in.v, in.adt, in.dt, in.trap, in.q_bias, in.k_bias, in.mimo_v, in.mimo_z,
              in.mimo_o, in.angles, in.d, in.z, in.cu_seqlens, grad_out);
  return std::apply([](const auto&... each) { return MimoGradients{each...}; }, all);
}

std::string mamba3_mimo_bwd_path(const MimoInputs& in) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::mamba3_mimo_bwd_path", "")
          .typed<std::string(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&)>();
  return op.call(in.q, in.v, in.angles, in.cu_seqlens);
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
