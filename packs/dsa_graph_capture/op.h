#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace patchbench::ops::dsa_graph_capture {

/// The additive index mask of sparse attention:
///   mask[b, s, t] = 0 if some k has topk_indices[b, s, k] = t, else -inf
///
/// topk_indices [batch, seqlen_q, topk] int32 or int64, any strides (others than contiguous are
/// copied first). Returns [batch, seqlen_q, seqlen_k], contiguous, float32 or bfloat16. Negative
/// indices are not keys; a duplicate counts once; a row without a key is -inf throughout.
///
/// An index >= seqlen_k is skipped and sets `out_of_range`, an int32 tensor [1] of the same device
/// that the caller cleared and reads when it suits, after a graph replay too: nothing here clears
/// it. Without one it throws std::out_of_range on the CPU and is skipped silently on CUDA.
///
/// On CUDA one launch on the current stream, each element written once, no prefill, no int64 copy,
/// no host read: capturable. Bitwise deterministic. Not differentiable: the mask needs no gradient.
///
/// Throws std::runtime_error, one line: `topk_to_index_mask: topk_indices must have 3 axes [batch,
/// seqlen_q, topk], got 2`.
///
/// The dispatcher holds `patchbench::topk_to_index_mask` (CPU, CUDA),
/// `patchbench::topk_to_index_mask_` and `patchbench::topk_to_index_mask_path` -> "cpu", "cuda" or
/// "plain". "plain" is a scatter-reduce amax of 0 and -inf in torch; it serves devices below
/// compute capability 8.0, libraries built without CUDA, and whatever
/// PATCHBENCH_OP_FALLBACK=dsa_graph_capture forces.
/// Source: derived here; the semantics equal the index mask in Megatron-LM's
/// experimental_attention_variant/dsa_masking.py at 0.19.2.
at::Tensor topk_to_index_mask(const at::Tensor& topk_indices, int64_t seqlen_k,
                              std::optional<at::ScalarType> dtype = std::nullopt,
                              const std::optional<at::Tensor>& out_of_range = std::nullopt);

/// The same into a mask that exists: mask[b, s, topk_indices[b, s, k]] = 0, all else stays, so a
/// column that was open before stays open. index_mask [batch, seqlen_q, seqlen_k] float32 or
/// bfloat16, contiguous. Returns index_mask.
at::Tensor& topk_to_index_mask_(at::Tensor& index_mask, const at::Tensor& topk_indices,
                                const std::optional<at::Tensor>& out_of_range = std::nullopt);

/// The path taken for indices like these: "cpu", "cuda" or "plain".
std::string topk_to_index_mask_path(const at::Tensor& topk_indices);

}  // namespace patchbench::ops::dsa_graph_capture
