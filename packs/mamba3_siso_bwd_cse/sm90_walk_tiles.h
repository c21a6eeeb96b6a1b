#pragma once
#include <cmath>
#include <cstdint>

#include "../kernel/sm90/layout.h"
#include "kernel.cuh"

// What the walk of sm90_walk.h consists of: where the tiles of a CTA lie, its loads and stores, and
// what lies between its products.
namespace patchbench::ops::mamba3_siso_bwd_cse {

// The names of the primitives and of the tiles.
using namespace sm90;  // NOLINT: all of it

/// Where the tiles of a CTA lie. A state is p / 64 times n / 64 blocks.
template <int kN, int kP>
struct WalkTiles {
  static_assert(kN % kColumns == 0 && kP % kColumns == 0, "whole blocks");
  static constexpr uint32_t kTileN = kN / kColumns * kBlockBytes;
  static constexpr uint32_t kTileP = kP / kColumns * kBlockBytes;
  static constexpr uint32_t kState = kP / kColumns * kTileN;
  static constexpr uint32_t kGradOut = 0, kV = 2 * kTileP, kQ = kV + kTileP, kK = kQ + kTileN;
  static constexpr uint32_t kStates = kK + kTileN, kGradState = kStates + kState;
  static constexpr uint32_t kMaskedE = kGradState + kState, kMaskedT = kMaskedE + kBlockBytes;
  static constexpr uint32_t kScaled = kMaskedT + kBlockBytes, kEnd = kScaled + kTileP;
};

/// What a CTA works for: chunks [begin, end) of a row's.
struct Walk {
  int head, batch;
  int begin, end;
  PB_DEVICE Walk(const SisoBackward& p, int x, int y, int64_t z) : head(x), batch(y) {
    const int64_t last = (z + 1) * p.chunks_per_cta;
    begin = static_cast<int>(z * p.chunks_per_cta);
    end = static_cast<int>(last < p.num_chunks ? last : p.num_chunks);
    // Packed, those behind the last sequence's are empty.
    while (p.chunk_spans != nullptr && end > begin && p.chunk_spans[3 * (end - 1) + 1] == 0) --end;
    end = warp_broadcast(end);
  }
};

/// The tokens of a chunk.
struct ChunkSpan {
  int first, length;  // of its tokens, in the row
  int index;          // in its sequence
  PB_DEVICE ChunkSpan(const SisoBackward& p, int chunk) {
    if (p.chunk_spans == nullptr) {
      first = chunk * kRows;
      const int rest = static_cast<int>(p.seqlen) - first;
      length = rest < kRows ? rest : kRows;
      index = chunk;
    } else {
      first = p.chunk_spans[3 * chunk];
      length = p.chunk_spans[3 * chunk + 1];
      index = p.chunk_spans[3 * chunk + 2];
    }
  }
  /// Its first element in [b, h, s]: fewer than 2^32, for memory holds no more rows of 128 bytes.
  PB_DEVICE uint32_t scalar(const SisoBackward& p, const Walk& walk) const {
    const uint32_t row = walk.batch * static_cast<uint32_t>(p.num_heads) + walk.head;
    return row * static_cast<uint32_t>(p.seqlen) + first;
  }
};

struct WalkShared {
  float cs[kRows];      // in units of log2
  float qk_dot[kRows];  // 0 behind the chunk's end; right behind cs
  float totals[kThreads / 32];
  float d;             // of the head
  ChunkSpan spans[2];  // of even and of odd chunks
};

template <int kN, int kP>
PB_CONSTEXPR int64_t walk_bytes() {
  return WalkTiles<kN, kP>::kEnd + static_cast<int64_t>(sizeof(WalkShared));
}

/// Bytes from a tile's start to a column, for an operand that is summed across its rows.
PB_CONSTEXPR uint32_t at_column(uint32_t column) {
  return column / kColumns * kBlockBytes + column % kColumns * 2;
}
/// The thread's index. The compiler cannot see through the shuffle: it computes again what follows
/// from the index instead of keeping it in registers. Without this the walk spills registers, and
/// each spilled value comes back from L2, because the tiles leave no room in L1.
PB_DEVICE uint32_t opaque_thread_index() {
  return static_cast<uint32_t>(shfl_xor_sync(thread_index(), 0));
}

/// Where a tile in shared memory has a warp's accumulators of the columns from `column`, a multiple
/// of 32, on: for ldmatrix and stmatrix, which take 16 rows of 16 columns.
struct Pieces {
  uint32_t first;
  PB_DEVICE explicit Pieces(uint32_t column) {
    const uint32_t thread = opaque_thread_index(), row = thread / 32 % 4 * 16 + thread % 16;
    first = (row * kRowBytes + column / kColumns * kBlockBytes) |
            ((row % 8 << 4) ^ (thread / 16 % 2 << 4) ^ column % kColumns * 2);
  }
  /// Elements i to i + 7, i a multiple of 8. Word j has elements i + 2 j and i + 2 j + 1.
  PB_DEVICE uint32_t of(uint32_t tile, uint32_t i) const { return (tile + first) ^ (i * 4); }
};
template <int kCount>
PB_DEVICE void store_rounded(const float (&d)[kCount], uint32_t tile, int column) {
  const Pieces pieces(column);
  PB_UNROLL
  for (int i = 0; i < kCount; i += 8) {
    const uint32_t words[4] = {pack_bf16(d[i], d[i + 1]), pack_bf16(d[i + 2], d[i + 3]),
                               pack_bf16(d[i + 4], d[i + 5]), pack_bf16(d[i + 6], d[i + 7])};
    stmatrix(pieces.of(tile, i), words);
  }
}

// ---- loads ----

/// Bytes from the start of a tensor [b, s, h, kWidth] to a head's row, at a column of it. There are
/// fewer than 2^32 rows, for memory holds no more of 128 bytes.
template <int kWidth>
PB_DEVICE int64_t bytes_to(const SisoBackward& p, const Walk& walk, const ChunkSpan& span,
                           uint32_t row, uint32_t column) {
  const uint32_t token = static_cast<uint32_t>(walk.batch) * static_cast<uint32_t>(p.seqlen) +
                         static_cast<uint32_t>(span.first) + row;
  const uint32_t head_row = token * static_cast<uint32_t>(p.num_heads) + walk.head;
  return static_cast<int64_t>(head_row) * (2 * kWidth) + 2 * column;
}

/// Starts the copy of a head's rows of a tensor [b s, h, kWidth]; those behind the chunk's end
/// become zeros.
template <int kWidth>
PB_DEVICE void load_tokens(uint32_t to, const void* tensor, const SisoBackward& p, const Walk& walk,
                           const ChunkSpan& span) {
  const uint32_t thread = opaque_thread_index();
  const uint32_t first = thread / 8, column = thread % 8 * 8;
  const uint32_t at = to + swizzled_offset(first, 2 * column);
  const auto* from =
      static_cast<const unsigned char*>(tensor) + bytes_to<kWidth>(p, walk, span, first, column);
  const uint32_t further = 32 * 2 * kWidth * static_cast<uint32_t>(p.num_heads);
  const int num_valid = span.length - static_cast<int>(first);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    PB_UNROLL
    for (int block = 0; block < kWidth / kColumns; ++block)
      cp_async<16>(at + 32 * half * kRowBytes + block * kBlockBytes,
                   from + half * further + block * kRowBytes, 32 * half < num_valid);
  }
}

PB_DEVICE int64_t state_of(const SisoBackward& p, const Walk& walk, int chunk) {
  return (walk.batch * p.num_heads + walk.head) * p.num_chunks + chunk;
}

/// The part of a [64, kWidth] tile that a warp has the accumulators of, 16 rows of half the
/// columns, as its lanes copy it: 16 bytes each, of a row kStep rows further each time.
template <int kWidth>
struct WarpPart {
  static constexpr uint32_t kLanes = kWidth / 16, kStep = 32 / kLanes, kTimes = 16 / kStep;
  uint32_t row, column, start;
  PB_DEVICE explicit WarpPart(const Fragment& f) {
    const uint32_t thread = opaque_thread_index();
    // With four lanes a row, eight neighbouring lanes take two rows that are four apart: all banks.
    const uint32_t part = thread % 32 / kLanes;
    row = thread / 32 % 4 * 16 + (kLanes == 4 ? part / 2 + part % 2 * 4 : part);
    column = f.warpgroup * (kWidth / 2) + thread % kLanes * 8;
    start = column / kColumns * kBlockBytes + swizzled_offset(row, column % kColumns * 2);
  }
  /// Of row + time * kStep. The swizzle changes with the row's low three bits.
  PB_DEVICE uint32_t of(uint32_t tile, uint32_t time) const {
    return tile + (start ^ time * kStep % 8 << 4) + time * kStep * kRowBytes;
  }
};

/// Each warp its parts of the state.
template <int kN, int kP>
PB_DEVICE void load_state(uint32_t to, const SisoBackward& p, const Walk& walk, int chunk,
                          const Fragment& f) {
  using part_t = WarpPart<kN>;
  const part_t part(f);
  const int64_t first = state_of(p, walk, 0) * kP * kN + chunk * p.state_chunk + part.column;
  const auto* from = static_cast<const unsigned char*>(p.states) + 2 * first;
  const auto row_bytes = 2 * static_cast<uint32_t>(p.state_row);
  from += static_cast<int64_t>(part.row) * row_bytes;
  PB_UNROLL
  for (int block = 0; block < kP / kRows; ++block) {
    PB_UNROLL
    for (uint32_t time = 0; time < part_t::kTimes; ++time)
      cp_async<16>(part.of(to + block * WalkTiles<kN, kP>::kTileN, time),
                   from + (block * kRows + time * part_t::kStep) * row_bytes, true);
  }
}

/// adt where cs will be, by warp 0, which makes it so; qk_dot by warp 1. 0 behind the chunk's end.
PB_DEVICE void load_scalars(uint32_t to, const SisoBackward& p, const Walk& walk,
                            const ChunkSpan& span) {
  const uint32_t warp = thread_index() / 32;
  if (warp > 1) return;
  const float* const from = (warp == 0 ? p.adt : p.qk_dot) + span.scalar(p, walk);
  PB_UNROLL
  for (uint32_t half = 0; half < kRows; half += 32) {
    const uint32_t token = thread_index() % 32 + half;
    cp_async<4>(to + 4 * (warp * kRows + token), from + token,
                static_cast<int>(token) < span.length);
  }
}

/// dS at the end of a chunk: what the scan left, or what comes after the last.
template <int kN, int kP>
PB_DEVICE void load_grad_state(float (&ds)[kP / kRows][kN / 4], const SisoBackward& p,
                               const Walk& walk, int chunk, const Fragment& f) {
  const int64_t state = state_of(p, walk, chunk) * kP * kN;
  const int64_t final_state = (walk.batch * p.num_heads + walk.head) * kP * kN;
  PB_UNROLL
  for (int block = 0; block < kP / kRows; ++block) {
    PB_UNROLL
    for (int i = 0; i < kN / 4; i += 2) {
      const int row = block * kRows + f.row + i / 2 % 2 * 8;
      const int64_t at = row * kN + f.warpgroup * (kN / 2) + f.column(i);
      float* pair = &ds[block][i];
      if (p.has_scan) {
        const uint32_t rounded = *reinterpret_cast<const uint32_t*>(
            static_cast<const uint16_t*>(p.grad_states) + state + at);
        pair[0] = bf16_low(rounded);
        pair[1] = bf16_high(rounded);
      } else {
        pair[0] = p.grad_final_state == nullptr ? 0.0f : p.grad_final_state[final_state + at];
        pair[1] = p.grad_final_state == nullptr ? 0.0f : p.grad_final_state[final_state + at + 1];
      }
    }
  }
}

template <int kN, int kP>
PB_DEVICE void store_grad_initial_state(const float (&ds)[kP / kRows][kN / 4],
                                        const SisoBackward& p, const Walk& walk,
                                        const Fragment& f) {
  float* const to = p.grad_initial_state + (walk.batch * p.num_heads + walk.head) * kP * kN;
  PB_UNROLL
  for (int block = 0; block < kP / kRows; ++block) {
    PB_UNROLL
    for (int i = 0; i < kN / 4; ++i) {
      const int row = block * kRows + f.row + i / 2 % 2 * 8;
      to[row * kN + f.warpgroup * (kN / 2) + f.column(i)] = ds[block][i];
    }
  }
}

// ---- what lies between the products ----

/// Warp 0: the sums of adt, in its place, once its copies are complete. Tokens behind the chunk's
/// end have 0, so that cs stays.
PB_DEVICE void sum_decays(float (&cs)[kRows]) {
  const int lane = thread_index();
  // What the other lanes have copied.
  sync_warp();
  const float adt[2] = {cs[2 * lane], cs[2 * lane + 1]};
  float prefix = adt[0] + adt[1], all = prefix;
  PB_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const float other = shfl_xor_sync(all, step);
    if (lane & step) prefix += other;
    all += other;
  }
  cs[2 * lane] = (prefix - adt[1]) * kLog2e;
  cs[2 * lane + 1] = prefix * kLog2e;
}

template <int kN, int kP>
PB_DEVICE void store_ds_operand(const float (&ds)[kP / kRows][kN / 4], const Fragment& f,
                                uint32_t tile) {
  PB_UNROLL
  for (int block = 0; block < kP / kRows; ++block)
    store_rounded(ds[block], tile + block * WalkTiles<kN, kP>::kTileN, f.warpgroup * (kN / 2));
}

/// to[i, :] = e^{cs_i} from[i, :]
template <int kP>
PB_DEVICE void scale_tokens(uint32_t from, const float (&cs)[kRows], uint32_t to) {
  const uint32_t thread = opaque_thread_index();
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const uint32_t row = thread / 8 + 32 * half;
    const float factor = exp2_ftz(cs[row]);
    PB_UNROLL
    for (int block = 0; block < kP / kColumns; ++block) {
      const uint32_t at = block * kBlockBytes + swizzled_offset(row, thread % 8 * 16);
      Vec128 words = load_shared_128(from + at);
      PB_UNROLL
      for (uint32_t& word : words.words)
        word = pack_bf16(bf16_low(word) * factor, bf16_high(word) * factor);
      store_128(to + at, words);
    }
  }
}

/// M E, and M T with `direct` on its diagonal, rounded; E's diagonal is grad_qk_dot.
PB_DEVICE void mask(const float (&e)[16], const float (&t)[16], const WalkShared& shared,
                    Fragment f, int length, float* grad_qk_dot, uint32_t masked_e,
                    unsigned char* masked_t) {
  f.rematerialize();
  // The diagonal of 64 rows is in the pairs of one lane in two of each row's four.
  const bool has_diagonal = f.row / 32 == f.warpgroup && f.row % 8 / 2 == f.quad;
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int at = 6 * half;
    const bool is_low = f.row % 32 < 16;
    const float first = is_low ? e[at] : e[at + 8], second = is_low ? e[at + 1] : e[at + 9];
    const int row = f.row + 8 * half;
    if (has_diagonal && row < length) grad_qk_dot[row] = row % 2 == 0 ? first : second;
  }
  const Pieces pieces(f.warpgroup * 32);
  const float own[2] = {shared.cs[f.row], shared.cs[f.row + 8]};
  PB_UNROLL
  for (int i = 0; i < 16; i += 8) {
    uint32_t words_e[4], words_t[4];
    PB_UNROLL
    for (int j = 0; j < 4; ++j) {
      float factor[2];
      PB_UNROLL
      for (int x = 0; x < 2; ++x) {
        const int key = f.key(i + 2 * j + x);
        // Below the diagonal the exponent is not positive. A choice of exponents, not of powers:
        // the compiler makes branches of the other.
        const float exponent = own[j % 2] - shared.cs[key];
        factor[x] = exp2_ftz(f.row + 8 * (j % 2) > key ? exponent : -INFINITY);
      }
      words_e[j] = pack_bf16(e[i + 2 * j] * factor[0], e[i + 2 * j + 1] * factor[1]);
      words_t[j] = pack_bf16(t[i + 2 * j] * factor[0], t[i + 2 * j + 1] * factor[1]);
    }
    stmatrix(pieces.of(masked_e, i), words_e);
    stmatrix(pieces.of(shared_address(masked_t), i), words_t);
  }
  // The diagonal overwrites what other lanes have stored.
  sync_warp();
  if (!has_diagonal) return;
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    *reinterpret_cast<uint16_t*>(masked_t + swizzled_offset(row, row * 2)) =
        static_cast<uint16_t>(pack_bf16(row < length ? shared.d + shared.qk_dot[row] : 0.0f, 0.0f));
  }
}

/// Of the thread's two rows.
struct RowPair {
  float of[2] = {0, 0};
};
template <int kCount>
PB_DEVICE void scale_rows(float (&d)[kCount], const RowPair& factor) {
  PB_UNROLL
  for (int i = 0; i < kCount; ++i) d[i] *= factor.of[i / 2 % 2];
}

/// <d_i, tile_i> over the columns of the thread and its neighbour; `column`: the first column of
/// the tile. The exchange is made here: the compiler delays a sum that is not used yet and keeps
/// its terms in registers.
template <int kCount>
PB_DEVICE RowPair dot(const float (&d)[kCount], uint32_t tile, int column) {
  const Pieces pieces(column);
  RowPair sums;
  PB_UNROLL
  for (int i = 0; i < kCount; i += 8) {
    uint32_t words[4];
    ldmatrix(words, pieces.of(tile, i));
    PB_UNROLL
    for (int j = 0; j < 4; ++j) {
      sums.of[j % 2] += d[i + 2 * j] * bf16_low(words[j]);
      sums.of[j % 2] += d[i + 2 * j + 1] * bf16_high(words[j]);
    }
  }
  PB_UNROLL
  for (float& sum : sums.of) sum += shfl_xor_sync(sum, 1);
  return sums;
}

/// Stores the rows of the chunk, rounded in `tile` by store_rounded, where no other warp reads or
/// writes this one's part. There they change lanes: each now stores 16 consecutive bytes.
template <int kWidth>
PB_DEVICE void store_tokens(uint32_t tile, void* tensor, const SisoBackward& p, const Walk& walk,
                            const ChunkSpan& span, const Fragment& f) {
  using part_t = WarpPart<kWidth>;
  // Without it, a lane reads what another has not stored.
  sync_warp();
  const part_t part(f);
  auto* to =
      static_cast<unsigned char*>(tensor) + bytes_to<kWidth>(p, walk, span, part.row, part.column);
  const uint32_t further = part_t::kStep * 2 * kWidth * static_cast<uint32_t>(p.num_heads);
  const int num_valid = span.length - static_cast<int>(part.row);
  PB_UNROLL
  for (uint32_t time = 0; time < part_t::kTimes; ++time) {
    const Vec128 words = load_shared_128(part.of(tile, time));
    if (static_cast<int>(time * part_t::kStep) < num_valid) store_128(to, words);
    to += further;
  }
}

/// One warp: grad_adt_t = X + sum_{i >= t} R_i.
PB_DEVICE void store_grad_adt(const WalkShared& shared, const float (&rows)[2][kRows],
                              float* grad_adt, int length) {
  const int lane = thread_index() % 32;
  float total = 0.0f;
  PB_UNROLL
  for (const float part : shared.totals) total += part;
  float own[2];
  PB_UNROLL
  for (int i = 0; i < 2; ++i) own[i] = rows[0][2 * lane + i] + rows[1][2 * lane + i];
  float suffix = own[0] + own[1], all = suffix;
  PB_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const float other = shfl_xor_sync(all, step);
    if (!(lane & step)) suffix += other;
    all += other;
  }
  if (2 * lane < length) grad_adt[2 * lane] = total + suffix;
  if (2 * lane + 1 < length) grad_adt[2 * lane + 1] = total + (suffix - own[0]);
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
