#pragma once
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "op.h"

/// The checks of the op's arguments, written on symbolic sizes, so that Meta and the real devices
/// share them. For op.cpp alone.
namespace patchbench::ops::liger_flce_none_bwd {

using at::Tensor;

inline constexpr int64_t kMaxTokens = (int64_t{1} << 31) - 1;  // grid.x of the kernels
inline constexpr int64_t kMaxVocab = int64_t{1} << 28;         // 65535 segments of grid.y

inline std::string dtype_name(at::ScalarType type) { return c10::getDtypeNames(type).first; }

inline void check_rank(const char* name, const Tensor& tensor, int64_t rank, const char* axes) {
  TORCH_CHECK(tensor.dim() == rank, "flce: ", name, " must have ", rank, " axes ", axes, ", got ",
              tensor.dim());
}

inline void check_shape(const char* name, const Tensor& tensor,
                        const std::vector<c10::SymInt>& wanted) {
  const c10::SymIntArrayRef sizes = tensor.sym_sizes();
  const bool fits = sizes.size() == wanted.size() &&
                    std::equal(sizes.begin(), sizes.end(), wanted.begin(),
                               [](const c10::SymInt& a, const c10::SymInt& b) { return a == b; });
  TORCH_CHECK(fits, "flce: ", name, " must have shape ", c10::SymIntArrayRef(wanted), ", got ",
              sizes);
}

inline void check_options(const FlceOptions& options) {
  TORCH_CHECK(
      options.reduction == "none" || options.reduction == "mean" || options.reduction == "sum",
      "flce: reduction must be none, mean or sum, got ", options.reduction);
  TORCH_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1,
              "flce: label_smoothing must lie in [0, 1], got ", options.label_smoothing);
  TORCH_CHECK(std::isfinite(options.lse_square_scale),
              "flce: lse_square_scale must be finite, got ", options.lse_square_scale);
  TORCH_CHECK(!options.softcap || (*options.softcap > 0 && std::isfinite(*options.softcap)),
              "flce: softcap must be finite and > 0, got ", options.softcap.value_or(0));
  TORCH_CHECK(!options.chunk_bytes || *options.chunk_bytes > 0,
              "flce: chunk_bytes must be > 0, got ", options.chunk_bytes.value_or(0));
}

struct NamedTensor {
  const char* name;
  const Tensor& tensor;
};

inline void check_kinds(const std::vector<NamedTensor>& tensors, const Tensor& hidden) {
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK(tensor.device() == hidden.device(), "flce: ", name, " must be on ", hidden.device(),
                ", got ", tensor.device());
  }
  const auto type = hidden.scalar_type();
  TORCH_CHECK(
      type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kDouble,
      "flce: hidden must have dtype float32, bfloat16, float16 or float64, got ", dtype_name(type));
  for (const auto& [name, tensor] : tensors) {
    const std::string_view which = name;
    if (which == "target") {
      TORCH_CHECK(tensor.scalar_type() == at::kLong, "flce: target must have dtype int64, got ",
                  dtype_name(tensor.scalar_type()));
    } else if (which == "class_weight" || which == "grad_output" || which == "lse") {
      TORCH_CHECK(tensor.is_floating_point(), "flce: ", name, " must have a floating dtype, got ",
                  dtype_name(tensor.scalar_type()));
    } else {
      TORCH_CHECK(tensor.scalar_type() == type, "flce: ", name, " must have hidden's dtype ",
                  dtype_name(type), ", got ", dtype_name(tensor.scalar_type()));
    }
  }
}

inline void check_inputs(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                         const FlceOptions& options) {
  check_options(options);
  check_rank("hidden", hidden, 2, "[tokens, hidden]");
  check_rank("weight", weight, 2, "[vocab, hidden]");
  check_rank("target", target, 1, "[tokens]");
  std::vector<NamedTensor> tensors{{"hidden", hidden}, {"weight", weight}, {"target", target}};
  if (options.bias) tensors.push_back({"bias", *options.bias});
  if (options.class_weight) tensors.push_back({"class_weight", *options.class_weight});
  const c10::SymInt tokens = hidden.sym_size(0), vocab = weight.sym_size(0);
  TORCH_CHECK(weight.sym_size(0) > 0 && weight.sym_size(1) > 0,
              "flce: weight must have at least one class and one feature, got ",
              weight.sym_sizes());
  TORCH_CHECK(tokens <= kMaxTokens, "flce: tokens must be at most ", kMaxTokens, ", got ", tokens);
  TORCH_CHECK(vocab <= kMaxVocab, "flce: vocab must be at most ", kMaxVocab, ", got ", vocab);
  check_kinds(tensors, hidden);
  TORCH_CHECK(weight.sym_size(1) == hidden.sym_size(1), "flce: weight must have shape [vocab, ",
              hidden.sym_size(1), "], got ", weight.sym_sizes());
  check_shape("target", target, {tokens});
  if (options.bias) check_shape("bias", *options.bias, {vocab});
  if (options.class_weight) check_shape("class_weight", *options.class_weight, {vocab});
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK(tensor.layout() == at::kStrided, "flce: ", name, " must be strided, got ",
                tensor.layout());
  }
}

inline void check_backward(const Tensor& grad_output, const Tensor& lse, const Tensor& hidden,
                           const Tensor& weight, const Tensor& target, const FlceOptions& options) {
  check_inputs(hidden, weight, target, options);
  check_kinds({{"grad_output", grad_output}, {"lse", lse}}, hidden);
  std::vector<c10::SymInt> loss_shape;
  if (options.reduction == "none") loss_shape.push_back(hidden.sym_size(0));
  check_shape("grad_output", grad_output, loss_shape);
  check_shape("lse", lse, {2, hidden.sym_size(0)});
}

}  // namespace patchbench::ops::liger_flce_none_bwd
