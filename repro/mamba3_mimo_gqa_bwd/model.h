#pragma once
#include <fmt/format.h>
#include <torch/torch.h>

#include "harness/pack.h"

/// From the gradient of each head to the gradients of the groups and of the bias, in libtorch: with
/// the branch that the release lacks, and in forms that are right or wrong. All take raw [batch,
/// seqlen, num_ranks, num_heads, head_dim_qk].
namespace patchbench::mamba3_mimo_gqa_bwd {

struct GroupGradients {
  at::Tensor rows;  ///< [batch, seqlen, num_ranks, num_groups, head_dim_qk], the dtype of raw
  at::Tensor bias;  ///< [num_heads, num_ranks, head_dim_qk]
};
using GroupReduction = GroupGradients (*)(const at::Tensor& raw, int64_t num_groups);

/// Heads in blocks: head h is of group h / (num_heads / num_groups).
inline at::Tensor by_group(const at::Tensor& raw, int64_t num_groups) {
  return raw.unflatten(3, {num_groups, raw.size(3) / num_groups});
}

/// The sum over batch and tokens, in `type`.
inline at::Tensor bias_of(const at::Tensor& raw, at::ScalarType type) {
  return raw.sum(at::IntArrayRef{0, 1}, false, type).transpose(0, 1).contiguous();
}

/// The defect: a branch for one group and one for as many groups as heads; every sum keeps the
/// dtype of raw. Source: mamba-ssm 2.3.2.post1, mamba3_mimo_bwd.py, the end of the host function.
inline GroupGradients two_branches(const at::Tensor& raw, int64_t num_groups) {
  const at::Tensor bias = bias_of(raw, raw.scalar_type());
  if (num_groups == 1) return {raw.sum(3, true), bias};
  if (num_groups == raw.size(3)) return {raw, bias};
  throw harness::ModelRaised(
      fmt::format("no branch for {} groups of {} heads", num_groups, raw.size(3)));
}

/// Right: the bias first and in float32, then the heads of each group.
inline GroupGradients every_group(const at::Tensor& raw, int64_t num_groups) {
  return {by_group(raw, num_groups).sum(4), bias_of(raw, at::kFloat)};
}

/// Wrong: the third branch alone; the bias is summed in the dtype of raw.
inline GroupGradients bias_in_input_dtype(const at::Tensor& raw, int64_t num_groups) {
  return {by_group(raw, num_groups).sum(4), bias_of(raw, raw.scalar_type())};
}

/// Wrong: the bias is summed after the groups, so that each head has its group's.
inline GroupGradients bias_of_groups(const at::Tensor& raw, int64_t num_groups) {
  const GroupGradients right = every_group(raw, num_groups);
  const int64_t per_group = raw.size(3) / num_groups;
  return {right.rows, bias_of(right.rows, at::kFloat).repeat_interleave(per_group, 0)};
}

/// Wrong: head h is taken for one of group h % num_groups.
inline GroupGradients groups_strided(const at::Tensor& raw, int64_t num_groups) {
  return {by_group(raw, raw.size(3) / num_groups).sum(3), bias_of(raw, at::kFloat)};
}

/// Wrong: the mean over the heads of a group.
inline GroupGradients groups_averaged(const at::Tensor& raw, int64_t num_groups) {
  return {by_group(raw, num_groups).mean(4), bias_of(raw, at::kFloat)};
}

}  // namespace patchbench::mamba3_mimo_gqa_bwd
