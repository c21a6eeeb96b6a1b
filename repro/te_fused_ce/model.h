#pragma once
#include <torch/torch.h>

#include <algorithm>
#include <string>

#include "harness/inputs.h"

/// Cross entropy of given logits, written from its formulas: the fp64 oracle, and a model of the
/// fused algorithm that forms the gradient in forward, with each of the defects that releases have.
namespace patchbench::te_fused_ce {

/// The scalar arguments of one call.
struct Options {
  std::string reduction = "none";  ///< "none" or "mean"
  int64_t ignore_index = -100;
  double label_smoothing = 0;
};

/// What is wrong with the model. With none of them it is right.
struct Defects {
  bool is_first_gradient = false;        ///< every row takes the first row's grad_loss
  bool is_unreduced_by_rows = false;     ///< "none": the gradient is divided by the number of rows
  bool is_gradient_by_storage = false;   ///< row i takes the i-th element of grad_loss's storage
  bool is_mean_over_all_rows = false;    ///< "mean": ignored rows are counted, too
  bool is_rows_by_one_stride = false;    ///< row i of the logits lies at i * stride(1)
  bool is_labels_by_one_stride = false;  ///< label i lies at i * stride(1)
  /// The softmax is rounded to the logits' dtype before 1 is taken from the target's element.
  bool is_target_rounded = false;
  bool is_in_place = false;  ///< the gradient takes the logits' place in forward
};

/// Loss and gradient by plain torch autograd, the loss in fp32 (fp64 for fp64): with fp64 inputs
/// the oracle, with others the plain computation.
///   inputs: logits [b, s, v], labels [b, s] int64, grad_loss [b, s] or []
///   returns loss [b, s] or [], grad_logits [b, s, v]; without a label the mean is 0
inline harness::Tensors reference(const harness::Tensors& inputs, const Options& options) {
  const at::Tensor x = inputs.at("logits").detach().requires_grad_();
  const at::Tensor labels = inputs.at("labels");
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const bool is_mean = options.reduction == "mean";
  at::Tensor loss =
      at::cross_entropy_loss(x.to(wide).reshape({-1, x.size(2)}), labels.reshape({-1}), {},
                             is_mean ? at::Reduction::Sum : at::Reduction::None,
                             options.ignore_index, options.label_smoothing);
  if (is_mean)
    loss = loss / labels.ne(options.ignore_index).sum().clamp_min(1).to(wide);
  else
    loss = loss.view({x.size(0), x.size(1)});
  const auto grads = torch::autograd::grad({loss}, {x}, {inputs.at("grad_loss").to(wide)});
  return {{"loss", loss.detach()}, {"grad_logits", grads[0]}};
}

/// The values that a row-major reader takes from a tensor of [b, s] with one stride.
inline at::Tensor by_one_stride(const at::Tensor& tensor, int64_t stride) {
  return at::as_strided(tensor, {tensor.numel()}, {stride}, tensor.storage_offset());
}

/// Loss and unscaled gradient of rows [n, v], in fp32 (fp64 for fp64). With p = softmax(x), l =
/// lse(x), e = label smoothing, D the divisor:
///   L = (1-e) (l - x_t) + (e/v) sum_j (l - x_j)     dx_j = (p_j - e/v - (1-e) [j = t]) / D
/// Ignored rows give 0. Source: derived here.
struct RowTerms {
  at::Tensor loss, grad;
};
inline RowTerms row_terms(const at::Tensor& rows, const at::Tensor& labels, const at::Tensor& by,
                          const Options& options, const Defects& defects) {
  const at::ScalarType dtype = rows.scalar_type();
  const at::Tensor x = rows.to(dtype == at::kDouble ? at::kDouble : at::kFloat);
  const double smooth = options.label_smoothing, share = smooth / static_cast<double>(x.size(1));
  const at::Tensor valid = labels.ne(options.ignore_index).unsqueeze(1);
  const at::Tensor target = at::where(valid, labels.unsqueeze(1), 0);
  const at::Tensor lse = at::logsumexp(x, {1}, true);
  const at::Tensor loss =
      (1 - smooth) * (lse - x.gather(1, target)) + share * (lse - x).sum(1, true);
  at::Tensor grad = ((x - lse).exp() - share) / by;
  if (defects.is_target_rounded) grad = grad.to(dtype).to(x.scalar_type());
  const at::Tensor taken = ((1 - smooth) / by).expand_as(target);
  grad = grad.scatter_add(1, target, -taken.to(grad.scalar_type()));
  if (defects.is_in_place) grad = grad.to(dtype).to(x.scalar_type());
  return {at::where(valid, loss, 0.0).squeeze(1), at::where(valid, grad, 0.0)};
}

/// The fused algorithm. Inputs and outputs as `reference`, and logits_after [b, s, v]: the logits
/// as forward leaves them; with `is_in_place` it writes to the given ones, as the releases do.
/// Throws c10::Error where a defect reaches past a storage (and its bands).
inline harness::Tensors fused(const harness::Tensors& inputs, const Options& options,
                              const Defects& defects) {
  const at::Tensor x = inputs.at("logits"), labels = inputs.at("labels");
  const at::Tensor grad_loss = inputs.at("grad_loss");
  const int64_t vocab = x.size(2), num_rows = x.size(0) * x.size(1);
  const bool has_one_stride = defects.is_rows_by_one_stride && x.stride(2) == 1;
  const at::Tensor held = has_one_stride ? x : x.contiguous();
  const at::Tensor rows =
      at::as_strided(held, {num_rows, vocab}, {held.stride(1), 1}, held.storage_offset());
  const at::Tensor y = defects.is_labels_by_one_stride && labels.stride(1) == 1
                           ? by_one_stride(labels, 1)
                           : labels.reshape({-1});
  const bool is_mean = options.reduction == "mean";
  const bool is_over_rows = is_mean ? defects.is_mean_over_all_rows : defects.is_unreduced_by_rows;
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor by = at::ones({}, x.options().dtype(wide));
  if (is_mean) by = y.ne(options.ignore_index).sum().clamp_min(1).to(wide);
  if (is_over_rows) by = at::full({}, num_rows, x.options().dtype(wide));
  const RowTerms terms = row_terms(rows, y, by, options, defects);
  if (defects.is_in_place) rows.copy_(terms.grad);
  const at::Tensor after = x.clone();
  at::Tensor scale = grad_loss.reshape({-1}).to(wide);
  if (!is_mean && defects.is_first_gradient) scale = scale[0].expand({num_rows});
  if (!is_mean && defects.is_gradient_by_storage) scale = by_one_stride(grad_loss, 1).to(wide);
  const at::Tensor scaled = (terms.grad * scale.unsqueeze(1)).to(x.scalar_type());
  at::Tensor grad = scaled.view({x.size(0), x.size(1), vocab});
  if (defects.is_in_place) {
    rows.copy_(scaled);
    grad = held;
  }
  const at::Tensor loss = is_mean ? terms.loss.sum() / by : terms.loss.view({x.size(0), x.size(1)});
  return {{"loss", loss}, {"grad_logits", grad}, {"logits_after", after}};
}

}  // namespace patchbench::te_fused_ce
