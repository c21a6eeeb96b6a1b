#pragma once
#include <cmath>
#include <cstdint>

/// Tiles of 64 rows as two warpgroups multiply them, and the softmax that runs along. Include the
/// primitives first: kernel/sm90/wgmma.cuh, or a host's own.
namespace patchbench::ops::sm90 {

constexpr int kThreads = 256;  // two warpgroups
/// Of each of 384 threads that may have all of an SM's 65536, a multiple of 8.
constexpr int kLaunchRegisters = 65536 / 384 / 8 * 8;
constexpr int kRows = 64;  // of a tile: heads of a CTA, or keys
constexpr float kLog2e = 1.4426950408889634f;

// A tile is cut into blocks of 128 bytes a row, in wgmma's 128-byte swizzle: 64 bfloat16 or 128
// e4m3. Blocks start at multiples of 1024 bytes, for the swizzle is taken of the address. The same
// bfloat16 serve as an operand that is dense along its columns and, transposed, as one that is
// dense along the other axis.
constexpr uint32_t kRowBytes = 128, kBlockBytes = kRows * kRowBytes;
constexpr int kColumns = kRowBytes / 2;  // of a block of bfloat16
PB_CONSTEXPR int num_blocks(int columns) { return (columns + kColumns - 1) / kColumns; }
/// Of what one product sums along its rows; of 16 rows, summed across.
constexpr uint32_t kStepColumns = 32, kStepRows = 16 * kRowBytes;

/// Where a block has byte `byte`, 0 to 127, of a row.
PB_CONSTEXPR uint32_t in_block(uint32_t row, uint32_t byte) {
  return (row * kRowBytes + byte) ^ (row % 8 << 4);
}

/// wgmma's descriptor of an operand that starts at `address`: 128-byte swizzle, eight rows 1024
/// bytes after the last eight, and what lies across a row one block after the last.
PB_CONSTEXPR uint64_t smem_desc(uint32_t address) {
  return (address & 0x3ffff) >> 4 | uint64_t{kBlockBytes >> 4} << 16 |
         uint64_t{8 * kRowBytes >> 4} << 32 | uint64_t{1} << 62;
}

/// Where a thread's accumulators lie in their [64, ...] result.
struct Fragment {
  int warpgroup, row, quad;  // row of elements 0 and 1; the others are 8 below
  PB_DEVICE Fragment()
      : warpgroup(warp_broadcast(thread_index() / 128)),
        row(thread_index() / 32 % 4 * 16 + thread_index() % 32 / 4),
        quad(thread_index() % 4) {}
  /// What is made of it is made anew from here on, not held in registers since before: a compiler
  /// does not see through the trade.
  PB_DEVICE void renew() {
    const auto both = static_cast<uint32_t>(shuffle_xor(row * 4 + quad, 0));
    row = static_cast<int>(both / 4);
    quad = static_cast<int>(both % 4);
  }
  PB_DEVICE int column(int i) const { return i / 4 * 8 + quad * 2 + i % 2; }
  /// Of 32 keys a warpgroup.
  PB_DEVICE int key(int i) const { return warpgroup * 32 + column(i); }
};

/// The descriptor of what lies `bytes` on. It is a sum of 32 bits with a constant: those of 64 come
/// one after the other between two products, which wait for them.
PB_CONSTEXPR uint64_t descriptor_after(uint32_t low, uint32_t bytes) {
  return smem_desc(0) >> 32 << 32 | (low + (bytes >> 4));
}

/// d (+)= a b^T over a block of bfloat16, for 2 kCount rows of b; a and b: the low halves of their
/// descriptors.
template <int kCount>
PB_DEVICE void dot_block(float (&d)[kCount], uint32_t a, uint32_t b, bool accumulates) {
  PB_UNROLL
  for (uint32_t step = 0; step < kRowBytes; step += kStepColumns)
    wgmma<2 * kCount, Major::kK, Major::kK>(d, descriptor_after(a, step), descriptor_after(b, step),
                                            accumulates || step > 0);
}

/// The same over `blocks` blocks from the addresses a and b on.
template <int kCount>
PB_DEVICE void dot_rows(float (&d)[kCount], uint32_t a, uint32_t b, int blocks, bool accumulates) {
  auto from_a = static_cast<uint32_t>(smem_desc(a)), from_b = static_cast<uint32_t>(smem_desc(b));
  PB_ROLLED
  for (int block = 0; block < blocks; ++block) {
    dot_block(d, from_a, from_b, accumulates || block > 0);
    from_a += kBlockBytes >> 4;
    from_b += kBlockBytes >> 4;
  }
}

/// The same of kBlocks blocks, without a loop: beside many other accumulators that spills less.
template <int kBlocks, int kCount>
PB_DEVICE void dot_all_rows(float (&d)[kCount], uint32_t a, uint32_t b) {
  const auto from_a = static_cast<uint32_t>(smem_desc(a)),
             from_b = static_cast<uint32_t>(smem_desc(b));
  PB_UNROLL
  for (int block = 0; block < kBlocks; ++block)
    dot_block(d, from_a + block * (kBlockBytes >> 4), from_b + block * (kBlockBytes >> 4),
              block > 0);
}

/// d (+)= a b over the 64 rows of b: a [64, 64] bfloat16, dense along its columns, or its
/// transpose.
template <Major kA, int kN>
PB_DEVICE void multiply_rows(float (&d)[kN / 2], uint32_t a, uint32_t b, bool accumulates) {
  PB_UNROLL
  for (int step = 0; step < kRows / 16; ++step) {
    const uint32_t offset = step * (kA == Major::kK ? kStepColumns : kStepRows);
    wgmma<kN, kA, Major::kMn>(d, smem_desc(a + offset), smem_desc(b + step * kStepRows),
                              accumulates || step > 0);
  }
}

PB_DEVICE float quad_sum(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}
PB_DEVICE float quad_max(float value) {
  value = fmaxf(value, shuffle_xor(value, 1));
  return fmaxf(value, shuffle_xor(value, 2));
}

/// What a thread keeps of its two rows.
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};     ///< of P, over the thread's own columns
  float weight[2] = {0, 0};  ///< the same of P as it is multiplied, rounded
};
/// The same of all, by warpgroup.
struct SoftmaxShared {
  float top[2][kRows], sum[2][kRows], weight[2][kRows];
};

/// Raises the maxima to those of a tile's logits, half of which are in the warpgroup's `s`: P is
/// exp2(s - base), and `alpha` is what earlier sums are worth. Maxima are rounded up to whole
/// numbers: P before its rounding is then the same but for powers of two whatever the maximum was
/// when its key came by, and who rounds P again gets these weights.
PB_DEVICE void raise_top(const float (&s)[16], const Fragment& f, SoftmaxShared& shared,
                         Softmax& state, float (&base)[2], float (&alpha)[2]) {
  float top[2] = {-INFINITY, -INFINITY};
  PB_UNROLL
  for (int i = 0; i < 16; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    top[half] = quad_max(top[half]);
    if (f.quad == 0) shared.top[f.warpgroup][f.row + 8 * half] = top[half];
  }
  // Both warpgroups' maxima are read, and both are done with the P before.
  sync_threads();
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    const float highest = fmaxf(state.top[half], fmaxf(shared.top[0][row], shared.top[1][row]));
    // Before the first key the maximum is -inf, and -inf - -inf is no number.
    base[half] = highest == -INFINITY ? 0.0f : ceilf(highest);
    alpha[half] = exp2_of(state.top[half] - base[half]);
    state.top[half] = highest == -INFINITY ? highest : base[half];
    state.sum[half] *= alpha[half];
    state.weight[half] *= alpha[half];
  }
}

/// After the last key: lse of the thread's rows, base 2, and what makes their sums of values means.
/// A mean is taken with the weights that the values were multiplied by: else what rounding does to
/// the weight of a key that holds most of the mass would stay in out, and so in Delta.
PB_DEVICE void finish(const Fragment& f, const Softmax& state, SoftmaxShared& shared,
                      float (&lse)[2], float (&inverse)[2]) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    const float sum = quad_sum(state.sum[half]), weight = quad_sum(state.weight[half]);
    if (f.quad != 0) continue;
    shared.sum[f.warpgroup][row] = sum;
    shared.weight[f.warpgroup][row] = weight;
  }
  // Both warpgroups' sums are read next.
  sync_threads();
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    const float sum = shared.sum[0][row] + shared.sum[1][row];
    const float weight = shared.weight[0][row] + shared.weight[1][row];
    lse[half] = sum == 0.0f ? 0.0f : log2_of(sum) + state.top[half];
    inverse[half] = sum == 0.0f ? 0.0f : 1.0f / weight;
  }
}

}  // namespace patchbench::ops::sm90
