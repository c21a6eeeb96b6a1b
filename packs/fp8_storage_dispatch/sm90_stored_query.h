#pragma once
#include <cstdint>

#include "../sparse_mla_dims/sm90_forward.h"
#include "sm90_forward.h"

namespace patchbench::ops::fp8_storage_dispatch {

/// A query of e4m3 for the forward of sparse_mla. It is converted, exactly, as it is loaded; the
/// scales of its rows are factors of the logits.
struct StoredQuery {
  static constexpr bool kIsScaled = true;
  const float* scale;
  int64_t stride;  ///< 0: one for all; 1: one per (batch, query, head)

  /// `p.q`: the bytes, contiguous.
  PB_DEVICE void load(const sparse_mla_dims::SparseMla& p, const sparse_mla_dims::Cta& cta,
                      const sparse_mla_dims::ForwardSmem& smem,
                      const sparse_mla_dims::KvLoader& loader) const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(p.q) + cta.first_row * kHeadDim;
    RowSlice slice(loader.thread);
    PB_ROLLED
    for (; slice.row < kRows; slice.row += sparse_mla_dims::kProducers / 4) {
      const bool is_row = slice.row < cta.num_rows;
      const uint8_t* from = bytes + (is_row ? slice.row * kHeadDim : 0) + slice.chunk * 16;
      Vec128 part[kHeadDim / kColumns];
      PB_UNROLL
      for (int block = 0; block < kHeadDim / kColumns; ++block)
        part[block] = is_row ? load_128(from + block * kColumns) : Vec128();
      PB_UNROLL
      for (int block = 0; block < kHeadDim / kColumns; ++block)
        store_as_bf16(smem.q_tile() + block * kBlockBytes, slice, part[block], 1.0f);
    }
    const int row = loader.thread;
    if (row < kRows)
      smem.query_scale()[row] = row < cta.num_rows ? scale[(cta.first_row + row) * stride] : 0.0f;
    fence_async_proxy();
    mbarrier_arrive(smem.shared().query_full);
  }
};

constexpr int64_t kStoredQueryBytes =
    sparse_mla_dims::forward_bytes(kHeadDim) + int64_t{kRows} * static_cast<int64_t>(sizeof(float));
static_assert(kStoredQueryBytes <= 227 * 1024, "a CTA of sm_90 has 227 KiB");

}  // namespace patchbench::ops::fp8_storage_dispatch
