#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_backward.h"

/// The backward of bfloat16 values that have scales.
namespace patchbench::ops::sparse_mla_dims {

/// Lies behind BackwardShared.
struct SharedScales {
  float query[kRows];
  float key[2][kRows], inverse[2][kRows];  ///< of the keys, by tile
};

constexpr int64_t kScaledBytes =
    backward_bytes(kMaxBlocks * kColumns, (kMaxBlocks - 1) * kColumns) +
    static_cast<int64_t>(sizeof(SharedScales));

/// Operands whose values are bfloat16 times a scale, at 576/512. P is multiplied by the scale of
/// the key and dS by both scales; sums over keys are divided by the scale of the query, sums over
/// heads by the scale of the key. dS is formed with P as it is, not as the forward rounded it.
template <int kHeadSteps_>
struct ScaledOperands : Operands<kMaxBlocks, kHeadSteps_> {
  static constexpr bool kIsScaled = true;
  const SparseMlaScales& scale;

  PB_DEVICE ScaledOperands(const SparseMla& problem, const SparseMlaGrads& grads,
                           const SparseMlaScales& scales, const Cta& heads, unsigned char* storage)
      : Operands<kMaxBlocks, kHeadSteps_>(problem, grads, heads, storage), scale(scales) {}

  PB_DEVICE SharedScales& scales() const {
    return *reinterpret_cast<SharedScales*>(&this->smem.shared() + 1);
  }
  /// As a divisor: a magnitude below 2^-60 becomes 2^-60.
  PB_DEVICE static float read(const float* scales, int64_t stride, int64_t row, bool is_row) {
    const float value = scales != nullptr && is_row ? scales[row * stride] : 1.0f;
    return fabsf(value) < 0x1p-60f ? 0x1p-60f : value;
  }
  PB_DEVICE void load_q_tile() const {
    Operands<kMaxBlocks, kHeadSteps_>::load_q_tile();
    const int row = thread_index();
    if (row < kRows)
      scales().query[row] =
          read(scale.q, scale.q_stride, this->cta.first_row + row, row < this->cta.num_rows);
  }
  PB_DEVICE void load_k_tile(const TileSlots& slots, int buffer) const {
    Operands<kMaxBlocks, kHeadSteps_>::load_k_tile(slots, buffer);
    const KeyLoader loader;
    int32_t index[KeyLoader::kEach];
    slots.indices(this->p, loader, index);
    if (loader.thread % 8 != 0) return;
    PB_UNROLL
    for (int i = 0; i < KeyLoader::kEach; ++i) {
      const float value = read(scale.kv, scale.kv_stride,
                               this->cta.batch * this->p.seqlen_k + index[i], index[i] >= 0);
      scales().key[buffer][loader.row(i)] = value;
      scales().inverse[buffer][loader.row(i)] = 1.0f / value;
    }
  }
  PB_DEVICE float query_scale(int row) const { return scales().query[row]; }
  PB_DEVICE float key_scale(int64_t tile, int row) const { return scales().key[tile % 2][row]; }
  PB_DEVICE float inverse_key_scale(int64_t tile, int row) const {
    return scales().inverse[tile % 2][row];
  }
};

}  // namespace patchbench::ops::sparse_mla_dims
