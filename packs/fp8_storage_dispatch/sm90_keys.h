#pragma once
#include <cstdint>

#include "sm90_forward.h"

// Keys of 656 bytes as bfloat16 rows of 576, for kernels that read those. A thread makes 16 columns
// of the latent part, or 8 of the rope: 40 threads a key.
namespace patchbench::ops::fp8_storage_dispatch {

constexpr int kLatentParts = kHeadDimV / 16;
constexpr int kKeyParts = kLatentParts + (kHeadDim - kHeadDimV) / 8;
constexpr int kDequantizeThreads = 8 * kKeyParts;

/// Part `part` of all keys; `to` [batch * seqlen_k, 576]. A latent value is rounded unless its
/// scale is a power of two.
PB_DEVICE void dequantize_part(const SparseMla& p, int64_t part, uint16_t* to) {
  const int64_t key = part / kKeyParts;
  if (key >= p.batch * p.seqlen_k) return;
  const int column = static_cast<int>(part % kKeyParts);
  const uint8_t* from = p.kv + key * kBlockRowBytes;
  uint16_t* row = to + key * kHeadDim;
  if (column >= kLatentParts) {
    const int at = (column - kLatentParts) * 8;
    store_128(row + kHeadDimV + at, load_128(from + kBlockRowBytes - 128 + 2 * at));
    return;
  }
  const auto* scales = reinterpret_cast<const float*>(from + kHeadDimV);
  Vec128 wide[2];
  e4m3_to_bf16(load_128(from + column * 16), scales[column * 16 / kScaleBlock], wide);
  PB_UNROLL
  for (int i = 0; i < 2; ++i) store_128(row + column * 16 + 8 * i, wide[i]);
}

}  // namespace patchbench::ops::fp8_storage_dispatch
