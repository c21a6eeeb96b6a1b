#pragma once
#include <cmath>

#include "layout.h"

/// The online softmax of two warpgroups over tiles of 64 rows, and sums over the four threads that
/// hold one row. Include the primitives first, as for layout.h.
namespace patchbench::ops::sm90 {

PB_DEVICE float quad_sum(float value) {
  value += shfl_xor_sync(value, 1);
  return value + shfl_xor_sync(value, 2);
}
PB_DEVICE float quad_max(float value) {
  value = fmaxf(value, shfl_xor_sync(value, 1));
  return fmaxf(value, shfl_xor_sync(value, 2));
}

/// Softmax state of the two rows of a thread.
struct Softmax {
  float row_max[2] = {-INFINITY, -INFINITY};
  float row_sum[2] = {0, 0};      ///< sum of P over this thread's columns
  float rounded_sum[2] = {0, 0};  ///< the same sum of the rounded P
};
/// State that the two warpgroups exchange.
struct SoftmaxSmem {
  float row_max[2][kRows], row_sum[2][kRows], rounded_sum[2][kRows];
};

/// Updates row_max with a tile's logits, half of which are in this warpgroup's `s`. P is exp2(s -
/// base). `alpha` rescales earlier sums. row_max is rounded up to a whole number: then a new
/// row_max only changes P by a power of two, and the backward, which rounds P again, gets the same
/// bits.
PB_DEVICE void update_row_max(const float (&s)[16], const Fragment& f, SoftmaxSmem& shared,
                              Softmax& state, float (&base)[2], float (&alpha)[2]) {
  float row_max[2] = {-INFINITY, -INFINITY};
  PB_UNROLL
  for (int i = 0; i < 16; ++i) row_max[i / 2 % 2] = fmaxf(row_max[i / 2 % 2], s[i]);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    row_max[half] = quad_max(row_max[half]);
    if (f.quad == 0) shared.row_max[f.warpgroup][f.row + 8 * half] = row_max[half];
  }
  // Both warpgroups have written their row_max, and no one reads the previous P any more.
  sync_threads();
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    const float new_max =
        fmaxf(state.row_max[half], fmaxf(shared.row_max[0][row], shared.row_max[1][row]));
    // Before the first valid key row_max is -inf, and -inf - -inf is NaN.
    base[half] = new_max == -INFINITY ? 0.0f : ceilf(new_max);
    alpha[half] = exp2_of(state.row_max[half] - base[half]);
    state.row_max[half] = new_max == -INFINITY ? new_max : base[half];
    state.row_sum[half] *= alpha[half];
    state.rounded_sum[half] *= alpha[half];
  }
}

/// After the last tile: lse (base 2) of the thread's rows, and the factor that turns their sums of
/// values into out. out is divided by the sum of the rounded P, because the values were multiplied
/// by the rounded P. Otherwise the rounding error of a dominant key stays in out, and so in Delta.
PB_DEVICE void finalize(const Fragment& f, const Softmax& state, SoftmaxSmem& shared,
                        float (&lse)[2], float (&inverse)[2]) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    const float sum = quad_sum(state.row_sum[half]), rounded = quad_sum(state.rounded_sum[half]);
    if (f.quad != 0) continue;
    shared.row_sum[f.warpgroup][row] = sum;
    shared.rounded_sum[f.warpgroup][row] = rounded;
  }
  // The sums of both warpgroups are read next.
  sync_threads();
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    const float sum = shared.row_sum[0][row] + shared.row_sum[1][row];
    const float rounded = shared.rounded_sum[0][row] + shared.rounded_sum[1][row];
    lse[half] = sum == 0.0f ? 0.0f : log2_of(sum) + state.row_max[half];
    inverse[half] = sum == 0.0f ? 0.0f : 1.0f / rounded;
  }
}

}  // namespace patchbench::ops::sm90
