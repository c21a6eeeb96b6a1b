#pragma once
#include <torch/torch.h>

#include <limits>

/// The defective scatter of top-k indices into an additive index mask, and forms of it that are
/// right, in libtorch. All write into index_mask [batch, seqlen_q, seqlen_k] from topk_indices
/// [batch, seqlen_q, topk]; negative indices are not keys.
namespace patchbench::dsa_graph_capture {

/// Chunks of 256 query rows; each asks the host whether it holds a negative index (one scalar
/// read), and if so whether it holds any other (a second one) and where (nonzero). Megatron-LM did
/// so between 2026-06-25 and 2026-07-08 (dsa_masking.py, scatter_topk_into_index_mask).
inline void branching_scatter(const at::Tensor& index_mask, const at::Tensor& topk_indices) {
  constexpr int64_t kChunk = 256;
  for (int64_t first = 0; first < index_mask.size(1); first += kChunk) {
    const int64_t rows = std::min(kChunk, index_mask.size(1) - first);
    const at::Tensor chunk = topk_indices.narrow(1, first, rows).to(at::kLong);
    at::Tensor mask = index_mask.narrow(1, first, rows);
    if (!chunk.lt(0).any().item<bool>()) {
      mask.scatter_(-1, chunk, 0.0);
      continue;
    }
    const at::Tensor is_key = chunk.ge(0);
    if (!is_key.any().item<bool>()) continue;
    const std::vector<at::Tensor> at = torch::where(is_key);
    mask.index_put_({at[0], at[1], chunk.index({at[0], at[1], at[2]})}, torch::zeros({}));
  }
}

/// One scatter-reduce: the maximum of the old value and 0 (a key) or -inf (none).
inline void amax_scatter(const at::Tensor& index_mask, const at::Tensor& topk_indices) {
  const at::Tensor chunk = topk_indices.to(at::kLong);
  const at::Tensor source =
      torch::where(chunk.ge(0), 0.0, -std::numeric_limits<double>::infinity());
  index_mask.scatter_reduce_(-1, chunk.clamp_min(0), source.to(index_mask.scalar_type()), "amax");
}

/// Wrong: -1 becomes key 0, which opens column 0 of every row with a sentinel.
inline void clamped_scatter(const at::Tensor& index_mask, const at::Tensor& topk_indices) {
  index_mask.scatter_(-1, topk_indices.to(at::kLong).clamp_min(0), 0.0);
}

/// Wrong: the fix-up closes column 0 where it was open before.
inline void scatter_closing_column_zero(const at::Tensor& index_mask,
                                        const at::Tensor& topk_indices) {
  const at::Tensor chunk = topk_indices.to(at::kLong);
  clamped_scatter(index_mask, topk_indices);
  const at::Tensor is_open = chunk.eq(0).any(-1);
  const at::Tensor column = index_mask.select(-1, 0);
  column.masked_fill_(chunk.lt(0).any(-1).logical_and(is_open.logical_not()),
                      -std::numeric_limits<double>::infinity());
}

}  // namespace patchbench::dsa_graph_capture
