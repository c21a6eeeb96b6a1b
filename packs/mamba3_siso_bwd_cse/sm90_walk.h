#pragma once
#include <cstdint>

#include "sm90_walk_tiles.h"

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
// has one, which is loaded as soon as its last reader is done. Results change lanes in tiles that
// are no longer read: grad_q where the state was, grad_k where dS was, grad_v where e^{cs} grad_out
// was.
// Shared memory: 113 KiB at n = 128, p = 64, where an SM holds two CTAs; 177 KiB at 128, 128.
// Rounded to bfloat16: masked E and T, the diagonal, dS as an operand, e^{cs} grad_out, grad_q,
// grad_k, grad_v. All else is float32.
namespace patchbench::ops::mamba3_siso_bwd_cse {

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
    load_scalars(base + Tiles::kEnd, p, walk, span);
  }
  /// R by warpgroup, in the tile of E, which is no longer read then.
  PB_DEVICE float (&row_sums() const)[2][kRows] {
    return *reinterpret_cast<float(*)[2][kRows]>(storage + Tiles::kMaskedE);
  }
  PB_DEVICE void subtract(const RowPair& sums) {
    rows.of[0] -= sums.of[0];
    rows.of[1] -= sums.of[1];
  }

  /// e^{cs_i} and e^{rev_i} of the thread's rows, and e^{cs_end}: decays from the start of the
  /// chunk, to its end, and over the whole chunk.
  PB_DEVICE RowPair decay_from_start() const {
    Fragment g = f;
    g.rematerialize();
    return {{exp2_ftz(shared.cs[g.row]), exp2_ftz(shared.cs[g.row + 8])}};
  }
  PB_DEVICE RowPair decay_to_end() const {
    const float end = shared.cs[kRows - 1];
    Fragment g = f;
    g.rematerialize();
    return {{exp2_ftz(end - shared.cs[g.row]), exp2_ftz(end - shared.cs[g.row + 8])}};
  }
  PB_DEVICE float chunk_decay() const { return exp2_ftz(shared.cs[kRows - 1]); }

  /// The warp's part of X: `part` of every second lane.
  PB_DEVICE void add_to_total(float part, bool is_added) {
    PB_UNROLL
    for (int step = 2; step < 32; step *= 2) part += shfl_xor_sync(part, step);
    if (thread_index() % 32 != 0) return;
    float& total = shared.totals[thread_index() / 32];
    total = is_added ? total + part : part;
  }
  /// A wgmma descriptor's low half.
  PB_DEVICE uint32_t desc(uint32_t offset) const {
    return static_cast<uint32_t>(smem_desc(base)) + (offset >> 4);
  }

  /// E and T, masked; starts the part of grad_q that comes from the previous state; the half of X
  /// with that state.
  PB_DEVICE void begin_chunk(const ChunkSpan& span, uint32_t grad_out, float (&dq)[kN / 4]) {
    const uint32_t keys = f.warpgroup * 32 * kRowBytes;
    float e[16], t[16];
    wgmma_fence(e, t);
    mma_abt_unrolled<kP / kColumns>(e, base + grad_out, base + Tiles::kV + keys);
    mma_abt_unrolled<kN / kColumns>(t, base + Tiles::kQ, base + Tiles::kK + keys);
    wgmma_commit();
    scale_tokens<kP>(base + grad_out, shared.cs, base + Tiles::kScaled);
    float total = 0.0f;
    PB_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      const RowPair sums = dot(ds[block], base + Tiles::kStates + block * Tiles::kTileN, column_n);
      total += chunk_decay() * (sums.of[0] + sums.of[1]);
    }
    add_to_total(total, false);
    wgmma_wait(e, t);
    mask(e, t, shared, f, span.length, p.grad_qk_dot + span.scalar(p, walk), base + Tiles::kMaskedE,
         storage + Tiles::kMaskedT);
    wgmma_fence(dq);
    PB_UNROLL
    for (int block = 0; block < kBlocks; ++block)
      mma_ab_block<Major::kK, kHalfN>(
          dq, desc(grad_out + block * kBlockBytes),
          desc(Tiles::kStates + block * Tiles::kTileN + at_column(column_n)), block > 0);
    wgmma_commit();
  }

  /// The rest of grad_q, which is stored: `load_next_state` fills the state's tile again.
  template <typename Load>
  PB_DEVICE void finish_grad_q(const ChunkSpan& span, float (&dq)[kN / 4], float (&dk)[kN / 4],
                               float (&dv)[kP / 4], const Load& load_next_state) {
    const uint32_t half = at_column(column_n);
    const RowPair from_start = decay_from_start();
    wgmma_wait(dq);
    scale_rows(dq, from_start);
    wgmma_fence(dq);
    mma_ab_block<Major::kK, kHalfN>(dq, desc(Tiles::kMaskedE), desc(Tiles::kK + half), true);
    wgmma_commit();
    const float by = chunk_decay();
    PB_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      PB_UNROLL
      for (float& value : ds[block]) value *= by;
    }
    wgmma_wait(dq);
    rows = dot(dq, base + Tiles::kQ, column_n);
    // Without it a warp stores into the state's tile while another warp's product still reads it.
    // The number is a constant: with a variable the CTA claims all sixteen barriers.
    f.warpgroup == 0 ? named_barrier_sync(1, kThreads / 2) : named_barrier_sync(2, kThreads / 2);
    store_rounded(dq, base + Tiles::kStates, column_n);
    start_carried(dk, dv);
    store_tokens<kN>(base + Tiles::kStates, p.grad_q, p, walk, span, f);
    // Its lanes have read what the copies overwrite.
    sync_warp();
    load_next_state();
  }

  /// Starts the parts of grad_k and grad_v that come from dS.
  PB_DEVICE void start_carried(float (&dk)[kN / 4], float (&dv)[kP / 4]) {
    wgmma_fence(dk, dv);
    PB_UNROLL
    for (int block = 0; block < kBlocks; ++block)
      mma_ab_block<Major::kK, kHalfN>(
          dk, desc(Tiles::kV + block * kBlockBytes),
          desc(Tiles::kGradState + block * Tiles::kTileN + at_column(column_n)), block > 0);
    mma_abt_unrolled<kN / kColumns>(
        dv, base + Tiles::kK,
        base + Tiles::kGradState + column_p / kRows * Tiles::kTileN + column_p % kRows * kRowBytes);
    wgmma_commit();
  }

  /// The rest of grad_k and grad_v, and the next dS.
  PB_DEVICE void compute_grads(uint32_t grad_out, float (&dk)[kN / 4], float (&dv)[kP / 4]) {
    const uint32_t half = at_column(column_n);
    const RowPair to_end = decay_to_end();
    wgmma_wait(dk, dv);
    scale_rows(dk, to_end);
    scale_rows(dv, to_end);
    const RowPair carried = dot(dv, base + Tiles::kV, column_p);
    wgmma_fence(dk, ds, dv);
    mma_ab_block<Major::kMn, kHalfN>(dk, desc(Tiles::kMaskedE), desc(Tiles::kQ + half), true);
    PB_UNROLL
    for (int block = 0; block < kBlocks; ++block)
      mma_ab_block<Major::kMn, kHalfN>(ds[block], desc(Tiles::kScaled + block * kBlockBytes),
                                       desc(Tiles::kQ + half), true);
    mma_ab_block<Major::kMn, kHalfP>(dv, desc(Tiles::kMaskedT),
                                     desc(grad_out + at_column(column_p)), true);
    wgmma_commit();
    add_to_total(carried.of[0] + carried.of[1], true);
    wgmma_wait(dk, ds, dv);
    subtract(dot(dk, base + Tiles::kK, column_n));
  }

  /// Stores grad_k, grad_v and the sums for grad_adt.
  PB_DEVICE void end_chunk(const ChunkSpan& span, const float (&dk)[kN / 4],
                           const float (&dv)[kP / 4]) {
    store_rounded(dk, base + Tiles::kGradState, column_n);
    store_tokens<kN>(base + Tiles::kGradState, p.grad_k, p, walk, span, f);
    store_rounded(dv, base + Tiles::kScaled, column_p);
    store_tokens<kP>(base + Tiles::kScaled, p.grad_v, p, walk, span, f);
    Fragment g = f;
    g.rematerialize();
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = rows.of[half] + shfl_xor_sync(rows.of[half], 2);
      if (g.quad == 0) row_sums()[f.warpgroup][g.row + 8 * half] = sum;
    }
  }
};

/// What one thread stores before the first chunk: d of the head, and the spans of the last two
/// chunks.
PB_DEVICE void begin_walk(WalkShared& shared, const SisoBackward& p, const Walk& walk) {
  const int last = walk.end - 1;
  shared.d = p.d == nullptr ? 0.0f : p.d[walk.head];
  for (int chunk = last; chunk >= walk.begin && chunk > last - 2; --chunk)
    shared.spans[chunk & 1] = ChunkSpan(p, chunk);
}

/// `storage`: walk_bytes at a multiple of 1024.
template <int kN, int kP>
PB_DEVICE void walk_cta(const SisoBackward& p, const Walk& walk, unsigned char* storage) {
  using Tiles = WalkTiles<kN, kP>;
  const Fragment f;
  Walker<kN, kP> walker(p, walk, f, storage);
  WalkShared& shared = walker.shared;
  const uint32_t base = walker.base;
  const auto grad_out_of = [](int chunk) { return Tiles::kGradOut + (chunk & 1) * Tiles::kTileP; };
  const int last = walk.end - 1;
  load_grad_state<kN, kP>(walker.ds, p, walk, last < 0 ? 0 : last, f);
  if (thread_index() == 0) begin_walk(shared, p, walk);
  sync_threads();
  if (last >= walk.begin) {
    const ChunkSpan& span = shared.spans[last & 1];
    load_tokens<kP>(base + grad_out_of(last), p.grad_out, p, walk, span);
    walker.load_operands(span);
    load_state<kN, kP>(base + Tiles::kStates, p, walk, last, f);
  }
  for (int chunk = last; chunk >= walk.begin; --chunk) {
    const ChunkSpan &span = shared.spans[chunk & 1], &next = shared.spans[~chunk & 1];
    // Into a register of the warp, as the addresses of the products.
    const uint32_t grad_out = warp_broadcast(static_cast<int>(grad_out_of(chunk)));
    const bool has_next = chunk > walk.begin;
    // A warp's part, which it alone has used since the last barrier.
    store_ds_operand<kN, kP>(walker.ds, f, base + Tiles::kGradState);
    cp_async_wait_all();
    if (thread_index() < 32) sum_decays(shared.cs);
    fence_async_proxy();
    // The tiles, dS and the sums of adt are complete, and the other buffer of grad_out is free.
    sync_threads();
    if (has_next) load_tokens<kP>(base + grad_out_of(chunk - 1), p.grad_out, p, walk, next);
    float dq[kN / 4], dk[kN / 4], dv[kP / 4];
    walker.begin_chunk(span, grad_out, dq);
    fence_async_proxy();
    // Each warpgroup reads both halves of E, T and e^{cs} grad_out.
    sync_threads();
    walker.finish_grad_q(span, dq, dk, dv, [&] {
      if (has_next) load_state<kN, kP>(base + Tiles::kStates, p, walk, chunk - 1, f);
    });
    walker.compute_grads(grad_out, dk, dv);
    // Both warpgroups are done with all tiles but the state's.
    sync_threads();
    if (has_next) walker.load_operands(next);
    walker.end_chunk(span, dk, dv);
    // Before the barrier: behind it, warp 4 overwrites the span.
    const bool is_first = span.index == 0;
    // Warp 4 adds the parts of all warps. E, T and e^{cs} grad_out may be overwritten.
    sync_threads();
    if (thread_index() / 32 == 4) {
      store_grad_adt(shared, walker.row_sums(), p.grad_adt + span.scalar(p, walk), span.length);
      // Its lanes have read the span.
      sync_warp();
      if (thread_index() == 128 && chunk > walk.begin + 1)
        shared.spans[chunk & 1] = ChunkSpan(p, chunk - 2);
    }
    // The chunk before the first of a sequence is another's last.
    if (has_next && is_first) load_grad_state<kN, kP>(walker.ds, p, walk, chunk - 1, f);
  }
  if (!p.has_scan) store_grad_initial_state<kN, kP>(walker.ds, p, walk, f);
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
