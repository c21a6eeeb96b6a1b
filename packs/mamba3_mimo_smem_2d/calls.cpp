// The ops for C++ programs on the whole of libtorch: the judge and the tests. Each function calls
// the operator that op.cpp registers.
#include <ATen/core/dispatch/Dispatcher.h>

#include "op.h"

namespace patchbench::ops::mamba3_mimo_smem_2d {

using at::Tensor;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Tensor mamba3_mimo_qk_dot(const Tensor& q, const Tensor& k, const Tensor& q_bias,
                          const Tensor& k_bias, const QkDotStaging& staging) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_mimo_qk_dot", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const Tensor&,
                                           const Tensor&, std::string, std::string)>();
  return op.call(q, k, q_bias, k_bias, staging.layout, staging.copy);
}

Four mamba3_mimo_qk_dot_bwd(const Tensor& grad_qk_dot, const Tensor& q, const Tensor& k,
                            const Tensor& q_bias, const Tensor& k_bias,
                            const QkDotStaging& staging) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_mimo_qk_dot_bwd", "")
                             .typed<Four(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                         const Tensor&, std::string, std::string)>();
  return op.call(grad_qk_dot, q, k, q_bias, k_bias, staging.layout, staging.copy);
}

std::string mamba3_mimo_qk_dot_path(const Tensor& q, const QkDotStaging& staging) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_mimo_qk_dot_path", "")
                             .typed<std::string(const Tensor&, std::string, std::string)>();
  return op.call(q, staging.layout, staging.copy);
}

}  // namespace patchbench::ops::mamba3_mimo_smem_2d
