#pragma once
#include <cstdint>
#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
#include <cuda_runtime_api.h>
#endif

/// Top-k indices to an additive index mask. No framework header: raw pointers and a stream.
///
///   mask[r, t] = 0 if some k has indices[r, k] = t, else -inf      (fresh)
///   mask[r, indices[r, k]] = 0, all else as it was                 (in place)
///
/// r runs over batch x query rows. Negative indices are not keys and are skipped; an index that
/// occurs twice counts once; an index >= seqlen_k is skipped and sets *out_of_range, which nothing
/// here ever clears.
namespace patchbench::ops::dsa_graph_capture {

enum class MaskType { kFloat32, kBFloat16 };

/// One problem. All pointers are of one device and contiguous; nothing is owned.
template <typename index_t>
struct MaskPass {
  const index_t* indices = nullptr;  ///< [rows, topk]
  void* mask = nullptr;              ///< [rows, seqlen_k] of the MaskType
  int32_t* out_of_range = nullptr;   ///< [1], or null: not reported
  int64_t rows = 0, topk = 0, seqlen_k = 0;
};

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// Writes every element of the mask once, each row's hits gathered in a shared bitmap first.
/// Bitwise deterministic; capturable: one launch, no memory of its own, no host read. Returns the
/// launch's status; an empty problem launches nothing.
template <typename index_t>
cudaError_t launch_mask_fill(const MaskPass<index_t>& pass, MaskType type, cudaStream_t stream);
/// Stores 0 at every index. Threads that meet at one element store the same value.
template <typename index_t>
cudaError_t launch_mask_open(const MaskPass<index_t>& pass, MaskType type, cudaStream_t stream);
#endif

}  // namespace patchbench::ops::dsa_graph_capture
