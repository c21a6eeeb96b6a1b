#pragma once
#include <cstdint>

#include "sm90_forward.h"

// Stored operands as rows of 576 bfloat16, for kernels that read those. A thread makes 16 columns,
// or 8 of the rope of a key of 656 bytes.
namespace patchbench::ops::fp8_storage_dispatch {

constexpr int kWidenThreads = 320;
constexpr int kRowParts = kHeadDim / 16;
constexpr int kLatentParts = kHeadDimV / 16;
constexpr int kBlockParts = kLatentParts + (kHeadDim - kHeadDimV) / 8;

PB_DEVICE void store_widened(const uint8_t* from, float scale, uint16_t* to) {
  Vec128 wide[2];
  e4m3_to_bf16(load_128(from), scale, wide);
  PB_UNROLL
  for (int i = 0; i < 2; ++i) store_128(to + 8 * i, wide[i]);
}

/// 16 bytes of e4m3, without a scale: exact.
PB_DEVICE void widen_part(const uint8_t* from, int64_t part, uint16_t* to) {
  store_widened(from + part * 16, 1.0f, to + part * 16);
}

/// Part `part` of keys of 656 bytes, with their scales. A latent value is rounded unless its scale
/// is a power of two.
PB_DEVICE void widen_block_part(const uint8_t* keys, int64_t part, uint16_t* to) {
  const int64_t key = part / kBlockParts;
  const int column = static_cast<int>(part % kBlockParts);
  const uint8_t* from = keys + key * kBlockRowBytes;
  uint16_t* row = to + key * kHeadDim;
  if (column >= kLatentParts) {
    const int at = (column - kLatentParts) * 8;
    store_128(row + kHeadDimV + at, load_128(from + kBlockRowBytes - 128 + 2 * at));
    return;
  }
  const auto* scales = reinterpret_cast<const float*>(from + kHeadDimV);
  store_widened(from + column * 16, scales[column * 16 / kScaleBlock], row + column * 16);
}

}  // namespace patchbench::ops::fp8_storage_dispatch
