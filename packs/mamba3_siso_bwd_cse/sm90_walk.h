#pragma once
#include <cmath>
#include <cstdint>

#include "../kernel/sm90/layout.h"
#include "kernel.cuh"

// A walk over the chunks of one head, backwards, with the state gradient dS at hand.
// Grid (num_heads, batch, segments of chunks_per_cta chunks), 256 threads.
//   dS [p, n]: each warpgroup half of its columns, in float32 registers, and rounded as an operand.
//   E = grad_out v^T and T = q k^T are formed and masked once: each warpgroup 32 of their columns.
//   grad_q, grad_k, grad_v: each warpgroup half of the columns.
//   T has d + qk_dot on its diagonal where grad_v takes it.
// With R_i = <q_i, grad_q_i> - <k_i, grad_k_i> and X = <S1, dS>, S1 the chunk's last state,
//   grad_adt_t = X + sum_{i >= t} R_i     X = e^{cs_end} <S0, dS> + sum_j e^{rev_j} <v_j, dS k_j>
// for <q_i, grad_q_i> holds the sum of W's row i, <k_i, grad_k_i> that of its column and w_i.
// Loads of the next chunk overlap the work on this one: grad_out has two buffers; each other tensor
// has one, which is loaded as soon as its last reader is done.
// Shared memory: 113 KiB at n = 128, p = 64, where an SM holds two CTAs; 177 KiB at 128, 128.
// Rounded to bfloat16: masked E and T, the diagonal, dS as an operand, e^{cs} grad_out, grad_q,
// grad_k, grad_v. All else is float32.
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

struct WalkShared {
  float cs[kRows];       // in units of log2
  float rows[2][kRows];  // R, by warpgroup
  float totals[kThreads / 32];
};

template <int kN, int kP>
PB_CONSTEXPR int64_t walk_bytes() {
  return WalkTiles<kN, kP>::kEnd + static_cast<int64_t>(sizeof(WalkShared));
}

/// What a CTA works for: chunks [begin, end) of a row's.
struct Walk {
  int64_t head, batch;
  int begin, end;
  PB_DEVICE Walk(const SisoBackward& p, int64_t x, int64_t y, int64_t z) : head(x), batch(y) {
    const int64_t last = (z + 1) * p.chunks_per_cta;
    begin = static_cast<int>(z * p.chunks_per_cta);
    end = static_cast<int>(last < p.num_chunks ? last : p.num_chunks);
    // Packed, those behind the last sequence's are empty.
    while (p.chunk_spans != nullptr && end > begin && p.chunk_spans[3 * (end - 1) + 1] == 0) --end;
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
  /// Its first element in [b, h, s].
  PB_DEVICE int64_t scalar(const SisoBackward& p, const Walk& walk) const {
    return (walk.batch * p.num_heads + walk.head) * p.seqlen + first;
  }
};

/// Bytes from a tile's start to a column, for an operand that is summed across its rows.
PB_CONSTEXPR uint32_t at_column(uint32_t column) {
  return column / kColumns * kBlockBytes + column % kColumns * 2;
}
/// Where a tile has a thread's accumulators of the columns from `column`, a multiple of 32, on.
struct Pairs {
  uint32_t lane, turn;
  PB_DEVICE Pairs(const Fragment& f, uint32_t column)
      : lane(f.row * kRowBytes + f.quad * 4 + column / kColumns * kBlockBytes),
        turn(f.row % 8 << 4 ^ column % kColumns * 2) {}
  /// Elements i, even, and i + 1.
  PB_DEVICE uint32_t& in(unsigned char* tile, uint32_t i) const {
    const uint32_t at = lane + i / 2 % 2 * 8 * kRowBytes + (i / 4 * 16 ^ turn);
    return *reinterpret_cast<uint32_t*>(tile + at);
  }
};

// ---- loads ----

/// A head's token in [b s h]: fewer than 2^32, for memory holds no more rows of 128 bytes.
PB_DEVICE uint32_t token_of(const SisoBackward& p, const Walk& walk, const ChunkSpan& span,
                            int row) {
  const auto token = static_cast<uint32_t>(walk.batch * p.seqlen) + span.first + row;
  return token * static_cast<uint32_t>(p.num_heads) + static_cast<uint32_t>(walk.head);
}

/// Starts the copy of a head's rows of a tensor [b s, h, kWidth]; those behind the chunk's end
/// become zeros.
template <int kWidth>
PB_DEVICE void load_tokens(uint32_t to, const void* tensor, const SisoBackward& p, const Walk& walk,
                           const ChunkSpan& span) {
  const int first = thread_index() / 8, column = thread_index() % 8 * 8;
  const uint32_t at = to + swizzled_offset(first, 2 * column);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const bool is_valid = first + 32 * half < span.length;
    const int64_t token = token_of(p, walk, span, is_valid ? first + 32 * half : 0);
    const auto* from = static_cast<const uint16_t*>(tensor) + token * kWidth + column;
    PB_UNROLL
    for (int block = 0; block < kWidth / kColumns; ++block)
      cp_async(at + 32 * half * kRowBytes + block * kBlockBytes, from + block * kColumns, is_valid);
  }
}

PB_DEVICE int64_t state_of(const SisoBackward& p, const Walk& walk, int chunk) {
  return (walk.batch * p.num_heads + walk.head) * p.num_chunks + chunk;
}

template <int kN, int kP>
PB_DEVICE void load_state(uint32_t to, const SisoBackward& p, const Walk& walk, int chunk) {
  const int first = thread_index() / 8, column = thread_index() % 8 * 8;
  const auto* from = static_cast<const uint16_t*>(p.states) + state_of(p, walk, 0) * kP * kN +
                     chunk * p.state_chunk + first * p.state_row + column;
  const uint32_t at = to + swizzled_offset(first, 2 * column);
  PB_UNROLL
  for (int row = 0; row < kP; row += 32) {
    PB_UNROLL
    for (int block = 0; block < kN / kColumns; ++block)
      cp_async(at + row / kRows * WalkTiles<kN, kP>::kTileN + row % kRows * kRowBytes +
                   block * kBlockBytes,
               from + row * p.state_row + block * kColumns, true);
  }
}

/// Two values a lane of warp 0, one a row of all.
struct Scalars {
  float adt[2], direct[2];
  PB_DEVICE void load(const SisoBackward& p, const Walk& walk, const ChunkSpan& span,
                      const Fragment& f) {
    const int64_t scalar = span.scalar(p, walk);
    PB_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int token = 2 * thread_index() + i, row = f.row + 8 * i;
      adt[i] = token < span.length ? p.adt[scalar + token] : 0.0f;
      direct[i] = row < span.length
                      ? p.qk_dot[scalar + row] + (p.d == nullptr ? 0.0f : p.d[walk.head])
                      : 0.0f;
    }
  }
};

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

/// Warp 0: the sums of adt. Tokens behind the chunk's end have 0, so that cs stays.
PB_DEVICE void store_decay_sums(const float (&adt)[2], float (&cs)[kRows]) {
  const int lane = thread_index();
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
PB_DEVICE void store_ds_operand(const float (&ds)[kP / kRows][kN / 4], Fragment f,
                                unsigned char* tile) {
  f.rematerialize();
  const Pairs pairs(f, f.warpgroup * (kN / 2));
  PB_UNROLL
  for (int block = 0; block < kP / kRows; ++block) {
    PB_UNROLL
    for (int i = 0; i < kN / 4; i += 2)
      pairs.in(tile + block * WalkTiles<kN, kP>::kTileN, i) =
          pack_bf16(ds[block][i], ds[block][i + 1]);
  }
}

/// to[i, :] = e^{cs_i} from[i, :]
template <int kP>
PB_DEVICE void scale_tokens(const unsigned char* from, const float (&cs)[kRows],
                            unsigned char* to) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = thread_index() / 8 + 32 * half;
    const float factor = exp2_ftz(cs[row]);
    PB_UNROLL
    for (int block = 0; block < kP / kColumns; ++block) {
      const uint32_t at = block * kBlockBytes + swizzled_offset(row, thread_index() % 8 * 16);
      Vec128 words = *reinterpret_cast<const Vec128*>(from + at);
      PB_UNROLL
      for (uint32_t& word : words.words)
        word = pack_bf16(bf16_low(word) * factor, bf16_high(word) * factor);
      *reinterpret_cast<Vec128*>(to + at) = words;
    }
  }
}

/// M E, and M T with `direct` on its diagonal, rounded; E's diagonal is grad_qk_dot.
PB_DEVICE void mask(const float (&e)[16], const float (&t)[16], const float (&direct)[2],
                    const float (&cs)[kRows], Fragment f, int length, float* grad_qk_dot,
                    unsigned char* masked_e, unsigned char* masked_t) {
  f.rematerialize();
  const Pairs pairs(f, f.warpgroup * 32);
  const float own[2] = {cs[f.row], cs[f.row + 8]};
  PB_UNROLL
  for (int i = 0; i < 16; i += 2) {
    const int half = i / 2 % 2, row = f.row + 8 * half, column = f.key(i);
    float factor[2];
    PB_UNROLL
    for (int x = 0; x < 2; ++x)
      // Below the diagonal the exponent is not positive.
      factor[x] = row > column + x ? exp2_ftz(own[half] - cs[column + x]) : 0.0f;
    pairs.in(masked_e, i) = pack_bf16(e[i] * factor[0], e[i + 1] * factor[1]);
    pairs.in(masked_t, i) = pack_bf16(t[i] * factor[0], t[i + 1] * factor[1]);
  }
  // The diagonal of 64 rows is in the pairs of one lane in two of each row's four.
  if (f.row / 32 != f.warpgroup || f.row % 8 / 2 != f.quad) return;
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half, at = 6 * half;
    const bool is_low = row % 32 < 16;
    const float first = is_low ? e[at] : e[at + 8], second = is_low ? e[at + 1] : e[at + 9];
    if (row < length) grad_qk_dot[row] = row % 2 == 0 ? first : second;
    *reinterpret_cast<uint16_t*>(masked_t + swizzled_offset(row, row * 2)) =
        static_cast<uint16_t>(pack_bf16(direct[half], 0.0f));
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
PB_DEVICE RowPair dot(const float (&d)[kCount], unsigned char* tile, int column, Fragment f) {
  f.rematerialize();
  const Pairs pairs(f, column);
  RowPair sums;
  PB_UNROLL
  for (int i = 0; i < kCount; i += 2) {
    const int half = i / 2 % 2;
    const uint32_t pair = pairs.in(tile, i);
    sums.of[half] += d[i] * bf16_low(pair);
    sums.of[half] += d[i + 1] * bf16_high(pair);
  }
  PB_UNROLL
  for (float& sum : sums.of) sum += shfl_xor_sync(sum, 1);
  return sums;
}

/// Rounds and stores the rows of the chunk. Four lanes hold pairs of four tiles of 8 columns. They
/// exchange them, so that each stores 16 consecutive bytes.
template <int kWidth, int kCount>
PB_DEVICE void store_tokens(const float (&d)[kCount], void* tensor, const SisoBackward& p,
                            const Walk& walk, const ChunkSpan& span, Fragment f) {
  f.rematerialize();
  const int column = f.warpgroup * (kWidth / 2) + 8 * f.quad;
  PB_UNROLL
  for (int first = 0; first < kCount; first += 16) {
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      Vec128 stored;
      auto& words = stored.words;
      PB_UNROLL
      for (int t = 0; t < 4; ++t) {
        const float* pair = &d[first + 4 * t + 2 * half];
        words[t] = pack_bf16(pair[0], pair[1]);
      }
      PB_UNROLL
      for (int bit = 1; bit < 4; bit *= 2) {
        PB_UNROLL
        for (int t = 0; t < 4; ++t) {
          if (t & bit) continue;
          const bool is_upper = f.quad & bit;
          const uint32_t got = shfl_xor_sync(is_upper ? words[t] : words[t | bit], bit);
          words[t] = is_upper ? got : words[t];
          words[t | bit] = is_upper ? words[t | bit] : got;
        }
      }
      const int row = f.row + 8 * half;
      const int64_t token = token_of(p, walk, span, row);
      if (row < span.length)
        store_128(static_cast<uint16_t*>(tensor) + token * kWidth + column + 2 * first, stored);
    }
  }
}

/// Warp 0: grad_adt_t = X + sum_{i >= t} R_i.
PB_DEVICE void store_grad_adt(const WalkShared& shared, float* grad_adt, int length) {
  const int lane = thread_index();
  float total = 0.0f;
  PB_UNROLL
  for (const float part : shared.totals) total += part;
  float own[2];
  PB_UNROLL
  for (int i = 0; i < 2; ++i) own[i] = shared.rows[0][2 * lane + i] + shared.rows[1][2 * lane + i];
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

// ---- the walk ----

template <int kN, int kP>
struct Walker {
  using Tiles = WalkTiles<kN, kP>;
  static constexpr int kBlocks = kP / kRows;  // of dS's rows
  static constexpr int kHalfN = kN / 2, kHalfP = kP / 2;

  const SisoBackward& p;
  const Walk& walk;
  const Fragment& f;
  unsigned char* storage;
  uint32_t base;  // of the storage
  WalkShared& shared;
  int column_n, column_p;  // the warpgroup's first
  float ds[kBlocks][kN / 4];
  RowPair rows;  // R
  float total;   // X

  PB_DEVICE Walker(const SisoBackward& problem, const Walk& w, const Fragment& fragment,
                   unsigned char* at)
      : p(problem),
        walk(w),
        f(fragment),
        storage(at),
        base(shared_address(at)),
        shared(*reinterpret_cast<WalkShared*>(at + Tiles::kEnd)),
        column_n(fragment.warpgroup * kHalfN),
        column_p(fragment.warpgroup * kHalfP) {}

  PB_DEVICE void load_operands(const ChunkSpan& span) {
    load_tokens<kP>(base + Tiles::kV, p.v, p, walk, span);
    load_tokens<kN>(base + Tiles::kQ, p.q, p, walk, span);
    load_tokens<kN>(base + Tiles::kK, p.k, p, walk, span);
  }
  PB_DEVICE void subtract(const RowPair& sums) {
    rows.of[0] -= sums.of[0];
    rows.of[1] -= sums.of[1];
  }

  /// e^{cs_i} and e^{rev_i} of the thread's rows, and e^{cs_end}: decays from the start of the
  /// chunk, to its end, and over the whole chunk.
  PB_DEVICE RowPair decay_from_start() const {
    return {{exp2_ftz(shared.cs[f.row]), exp2_ftz(shared.cs[f.row + 8])}};
  }
  PB_DEVICE RowPair decay_to_end() const {
    const float end = shared.cs[kRows - 1];
    return {{exp2_ftz(end - shared.cs[f.row]), exp2_ftz(end - shared.cs[f.row + 8])}};
  }
  PB_DEVICE float chunk_decay() const { return exp2_ftz(shared.cs[kRows - 1]); }

  /// E and T, masked; the part of grad_q that comes from the previous state; the half of X with
  /// that state.
  PB_DEVICE void begin_chunk(const ChunkSpan& span, const float (&direct)[2], uint32_t grad_out,
                             float (&dq)[kN / 4]) {
    const uint32_t keys = f.warpgroup * 32 * kRowBytes;
    float e[16], t[16];
    wgmma_fence(e, t, dq);
    mma_abt_unrolled<kP / kColumns>(e, base + grad_out, base + Tiles::kV + keys);
    mma_abt_unrolled<kN / kColumns>(t, base + Tiles::kQ, base + Tiles::kK + keys);
    PB_UNROLL
    for (int block = 0; block < kBlocks; ++block)
      mma_ab<Major::kK, kHalfN>(dq, base + grad_out + block * kBlockBytes,
                                base + Tiles::kStates + block * Tiles::kTileN + at_column(column_n),
                                block > 0);
    wgmma_commit();
    scale_tokens<kP>(storage + grad_out, shared.cs, storage + Tiles::kScaled);
    total = 0.0f;
    PB_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      const RowPair sums =
          dot(ds[block], storage + Tiles::kStates + block * Tiles::kTileN, column_n, f);
      total += chunk_decay() * (sums.of[0] + sums.of[1]);
    }
    wgmma_wait(e, t, dq);
    mask(e, t, direct, shared.cs, f, span.length, p.grad_qk_dot + span.scalar(p, walk),
         storage + Tiles::kMaskedE, storage + Tiles::kMaskedT);
    scale_rows(dq, decay_from_start());
  }

  /// The rest of grad_q, grad_k, the carried part of grad_v and the next dS.
  PB_DEVICE void compute_grads(const ChunkSpan& span, float (&dq)[kN / 4], float (&dv)[kP / 4]) {
    const uint32_t masked_e = base + Tiles::kMaskedE, half = at_column(column_n);
    float dk[kN / 4];
    wgmma_fence(dq, dk);
    PB_UNROLL
    for (int block = 0; block < kBlocks; ++block)
      mma_ab<Major::kK, kHalfN>(dk, base + Tiles::kV + block * kBlockBytes,
                                base + Tiles::kGradState + block * Tiles::kTileN + half, block > 0);
    mma_ab<Major::kK, kHalfN>(dq, masked_e, base + Tiles::kK + half, true);
    wgmma_commit();
    const float by = chunk_decay();
    PB_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      PB_UNROLL
      for (float& value : ds[block]) value *= by;
    }
    wgmma_wait(dq, dk);
    scale_rows(dk, decay_to_end());
    wgmma_fence(dk, ds);
    mma_ab<Major::kMn, kHalfN>(dk, masked_e, base + Tiles::kQ + half, true);
    PB_UNROLL
    for (int block = 0; block < kBlocks; ++block)
      mma_ab<Major::kMn, kHalfN>(ds[block], base + Tiles::kScaled + block * kBlockBytes,
                                 base + Tiles::kQ + half, true);
    wgmma_commit();
    rows = dot(dq, storage + Tiles::kQ, column_n, f);
    store_tokens<kN>(dq, p.grad_q, p, walk, span, f);
    wgmma_wait(dk, ds);
    wgmma_fence(dv);
    mma_abt_unrolled<kN / kColumns>(
        dv, base + Tiles::kK,
        base + Tiles::kGradState + column_p / kRows * Tiles::kTileN + column_p % kRows * kRowBytes);
    wgmma_commit();
    subtract(dot(dk, storage + Tiles::kK, column_n, f));
    store_tokens<kN>(dk, p.grad_k, p, walk, span, f);
    wgmma_wait(dv);
    scale_rows(dv, decay_to_end());
    const RowPair carried = dot(dv, storage + Tiles::kV, column_p, f);
    total += carried.of[0] + carried.of[1];
  }

  /// The rest of grad_v, and the sums for grad_adt.
  PB_DEVICE void end_chunk(const ChunkSpan& span, uint32_t grad_out, float (&dv)[kP / 4]) {
    wgmma_fence(dv);
    mma_ab<Major::kMn, kHalfP>(dv, base + Tiles::kMaskedT, base + grad_out + at_column(column_p),
                               true);
    wgmma_commit();
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = rows.of[half] + shfl_xor_sync(rows.of[half], 2);
      if (f.quad == 0) shared.rows[f.warpgroup][f.row + 8 * half] = sum;
    }
    PB_UNROLL
    for (int step = 2; step < 32; step *= 2) total += shfl_xor_sync(total, step);
    if (thread_index() % 32 == 0) shared.totals[thread_index() / 32] = total;
    wgmma_wait(dv);
    store_tokens<kP>(dv, p.grad_v, p, walk, span, f);
  }
};

/// Chunks [begin, end) of one sequence.
template <int kN, int kP>
PB_DEVICE void walk_sequence(Walker<kN, kP>& walker, int begin, int end) {
  using Tiles = WalkTiles<kN, kP>;
  const SisoBackward& p = walker.p;
  const Walk& walk = walker.walk;
  const Fragment& f = walker.f;
  const uint32_t base = walker.base;
  const auto grad_out_of = [](int chunk) { return Tiles::kGradOut + chunk % 2 * Tiles::kTileP; };
  ChunkSpan next(p, end - 1);
  Scalars scalars;
  load_tokens<kP>(base + grad_out_of(end - 1), p.grad_out, p, walk, next);
  walker.load_operands(next);
  load_state<kN, kP>(base + Tiles::kStates, p, walk, end - 1);
  scalars.load(p, walk, next, f);
  load_grad_state<kN, kP>(walker.ds, p, walk, end - 1, f);
  for (int chunk = end - 1; chunk >= begin; --chunk) {
    const ChunkSpan span = next;
    const uint32_t grad_out = grad_out_of(chunk);
    const float direct[2] = {scalars.direct[0], scalars.direct[1]};
    const bool has_next = chunk > begin;
    store_ds_operand<kN, kP>(walker.ds, f, walker.storage + Tiles::kGradState);
    if (thread_index() < 32) store_decay_sums(scalars.adt, walker.shared.cs);
    cp_async_wait_all();
    fence_async_proxy();
    // The tiles, dS and the sums of adt are complete, and the other buffer of grad_out is free.
    sync_threads();
    if (has_next) {
      next = ChunkSpan(p, chunk - 1);
      load_tokens<kP>(base + grad_out_of(chunk - 1), p.grad_out, p, walk, next);
      scalars.load(p, walk, next, f);
    }
    float dq[kN / 4], dv[kP / 4];
    walker.begin_chunk(span, direct, grad_out, dq);
    fence_async_proxy();
    // Each warpgroup reads both halves of E, T and e^{cs} grad_out. The state is no longer read.
    sync_threads();
    if (has_next) load_state<kN, kP>(base + Tiles::kStates, p, walk, chunk - 1);
    walker.compute_grads(span, dq, dv);
    // Both warpgroups are done with v, q, k and dS.
    sync_threads();
    if (has_next) walker.load_operands(next);
    walker.end_chunk(span, grad_out, dv);
    // Warp 0 adds the parts of all warps. E, T and e^{cs} grad_out may be overwritten.
    sync_threads();
    if (thread_index() < 32)
      store_grad_adt(walker.shared, p.grad_adt + span.scalar(p, walk), span.length);
  }
}

/// `storage`: walk_bytes at a multiple of 1024.
template <int kN, int kP>
PB_DEVICE void walk_cta(const SisoBackward& p, const Walk& walk, unsigned char* storage) {
  const Fragment f;
  Walker<kN, kP> walker(p, walk, f, storage);
  // Without tokens the last gradient is the first.
  if (walk.begin >= walk.end && !p.has_scan) load_grad_state<kN, kP>(walker.ds, p, walk, 0, f);
  for (int end = walk.end; end > walk.begin;) {
    const int first = end - 1 - ChunkSpan(p, end - 1).index;
    const int begin = first > walk.begin ? first : walk.begin;
    walk_sequence(walker, begin, end);
    end = begin;
  }
  if (!p.has_scan) store_grad_initial_state<kN, kP>(walker.ds, p, walk, f);
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
