#include "harness/attention.h"

#include <cmath>

namespace patchbench::harness {
namespace {

/// The root mean square of an element, over the rows whose sum of squares is not 0.
double element_size(const at::Tensor& squares_of_rows, int64_t width) {
  const at::Tensor kept = squares_of_rows.masked_select(squares_of_rows.gt(0));
  if (kept.numel() == 0) return 0;
  return std::sqrt(kept.mean().item<double>() / static_cast<double>(width));
}

}  // namespace

TermSizes term_sizes(const SparseAttention& operands) {
  const at::Tensor q = operands.q.to(at::kDouble), kv = operands.kv.to(at::kDouble),
                   grad_out = operands.grad_out.to(at::kDouble);
  const int64_t width = q.size(-1), num_keys = kv.size(1);
  at::Tensor of_q = at::zeros({0}, at::kDouble), of_kv = at::zeros({0}, at::kDouble);
  for (int64_t b = 0; b < q.size(0); ++b) {
    const at::Tensor index = operands.indices[b].to(at::kLong);
    const at::Tensor is_key = index.ge(0).logical_and(index.lt(num_keys));
    const at::Tensor keys = at::embedding(kv[b], index.clamp(0, num_keys - 1));
    const at::Tensor closed = is_key.logical_not().unsqueeze(1);
    const at::Tensor scores = at::einsum("shd,skd->shk", {q[b], keys}).mul(operands.softmax_scale);
    const at::Tensor p = scores.masked_fill(closed, -1e30).softmax(-1).masked_fill(closed, 0);
    const at::Tensor values = keys.narrow(-1, 0, grad_out.size(-1));
    const at::Tensor dp = at::einsum("shd,skd->shk", {grad_out[b], values});
    const at::Tensor squares_of_dp =
        dp.square() + at::einsum("shd,skd->shk", {grad_out[b].square(), values.square()});
    const at::Tensor delta = (p * dp).sum(-1, true);
    const at::Tensor num_named =
        at::zeros({q.size(1), num_keys}, at::kDouble)
            .scatter_add_(1, index.clamp(0, num_keys - 1), is_key.to(at::kDouble));
    const at::Tensor p_squares =
        p.square() * num_named.gather(1, index.clamp(0, num_keys - 1)).unsqueeze(1);
    const at::Tensor ds =
        p_squares * std::pow(operands.softmax_scale, 2) * (squares_of_dp + delta.square());
    const at::Tensor squares_of_q = q[b].square().sum(-1, true),
                     squares_of_grad = grad_out[b].square().sum(-1, true);
    of_q = at::cat({of_q, (ds * keys.square().sum(-1).unsqueeze(1)).sum(-1).flatten()});
    const at::Tensor to_keys = (ds * squares_of_q + p_squares * squares_of_grad).sum(1);
    of_kv = at::cat(
        {of_kv, at::zeros({num_keys}, at::kDouble)
                    .index_add_(0, index.masked_select(is_key), to_keys.masked_select(is_key))});
  }
  return {element_size(of_q, width), element_size(of_kv, width)};
}

}  // namespace patchbench::harness
