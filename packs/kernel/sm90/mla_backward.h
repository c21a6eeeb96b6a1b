#pragma once
#include <cmath>
#include <cstdint>

#include "layout.h"

// The backward of sparse multi-head latent attention, whatever its operands are stored as. 384
// threads, one CTA per SM: 64 heads of one query, whose keys pass by in tiles of 64. P is taken
// anew from lse.
//   Warpgroups 0 and 1: the first the logits and P, the second grad_out V^T and, of P, dS, each
//   [64, 64] in 32 registers a thread; grad_q, each half of its columns, 16 registers a thread for
//   each block. They put the next tile there as soon as both are done with this one. Warpgroup 2:
//   grad_kv, [64 keys, 64 columns] at a time, 32 registers a thread; added to memory in float32, 16
//   bytes a thread, 64 heads at once. It needs P and dS, not the keys, and is a tile behind.
// Shared memory: blocks of q, grad_out, one tile of keys, P, dS, and 1.25 KiB: 225 KiB at 576/512.
// Rounded to bfloat16: P, dS, grad_q. Sums are float32.
//
// A pack's Operands are CtaOperands that know how they come into shared memory:
//   kBlocks             of q
//   kAddsBeside         grad_kv's blocks are added while the next one is multiplied: up to 4 % of a
//                       kernel that copies its operands; one that widens them loses 4 to 9 % by the
//                       registers that this takes
//   load_q_tile()         q and grad_out to shared memory, copies started at least
//   read_slots(tile)    what stands in the slots of the keys that are next
//   load_k_tile(tile)      they and their indices, -1 where there is none, as load_q_tile
//   query_scale(row), key_scale(tile, key)   of the bfloat16 in shared memory; not 0
// dS is multiplied with both scales in it, P with the key's: sums over keys are then divided by
// the query's, those over heads by the key's.
namespace patchbench::ops::sm90 {

constexpr int kBackwardThreads = 384, kSlopeThreads = 256;
/// Of a thread of warpgroup 2, of one of the others.
template <typename Operands>
constexpr int kAddRegisters = Operands::kAddsBeside ? 88 : 72;
template <typename Operands>
constexpr int kSlopeRegisters = (3 * kLaunchRegisters - kAddRegisters<Operands>) / 2;
/// All of warpgroups 0 and 1 are here; P and dS are there; they are no longer read.
enum BackwardBarrier { kSlopeTeam = 1, kSlopesReady, kSlopesFree, kWeightsReady };

struct BackwardShared {
  float delta[kRows];
  float base[kRows], share[kRows];  ///< P = exp2(z log2(e) - base) share; base is a whole number
  int32_t index[2][kRows];          ///< of the keys, by tile
};

PB_CONSTEXPR int64_t backward_bytes(int head_dim_qk, int head_dim_v) {
  return (2 * num_blocks(head_dim_qk) + num_blocks(head_dim_v) + 2) * int64_t{kBlockBytes} +
         static_cast<int64_t>(sizeof(BackwardShared));
}

PB_DEVICE float dot_pair(uint32_t a, uint32_t b, uint32_t c) {
  return low_of(a) * (low_of(b) + low_of(c)) + high_of(a) * (high_of(b) + high_of(c));
}

/// Delta = <grad_out, out + out_remainder> and lse of the CTA's heads, four threads a head.
template <typename Operands>
PB_DEVICE void load_sums(const Operands& o, BackwardShared& shared) {
  const auto& g = o.g;
  const int row = thread_index() / 4, quarter = thread_index() % 4;
  float delta = 0.0f;
  if (row < o.cta.num_rows) {
    const int64_t first = (o.cta.first_row + row) * o.p.head_dim_v;
    const auto pair_at = [&](const uint16_t* from, int column) {
      return *reinterpret_cast<const uint32_t*>(from + first + column);
    };
    for (int column = 2 * quarter; column < o.p.head_dim_v; column += 8)
      delta += dot_pair(pair_at(g.grad_out, column), pair_at(g.out, column),
                        g.out_remainder == nullptr ? 0 : pair_at(g.out_remainder, column));
  }
  delta = quad_sum(delta);
  if (quarter != 0) return;
  shared.delta[row] = delta;
  const float lse = row < o.cta.num_rows ? g.lse[o.cta.first_row + row] : 0.0f;
  shared.base[row] = floorf(lse);
  shared.share[row] = row < o.cta.num_rows ? exp2_of(floorf(lse) - lse) : 0.0f;
}

/// P of a tile's logits, packed, and P as the forward rounded it.
template <typename Operands>
PB_DEVICE void weigh(const float (&s)[32], const Operands& o, int64_t tile,
                     const BackwardShared& shared, const Fragment& f, uint32_t (&p)[16],
                     uint32_t (&rounded)[16]) {
  const int32_t(&index)[kRows] = shared.index[tile % 2];
  float scale[2];
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    scale[half] = o.p.softmax_scale * kLog2e * o.query_scale(f.row + 8 * half);
  PB_UNROLL
  for (int i = 0; i < 32; i += 2) {
    const int half = i / 2 % 2, row = f.row + 8 * half, key = f.column(i);
    float weight[2], share[2];
    PB_UNROLL
    for (int e = 0; e < 2; ++e) {
      const float key_scale = o.key_scale(tile, key + e);
      const float z = s[i + e] * key_scale;
      const float power = exp2_flushed(fmaf(z, scale[half], -shared.base[row]));
      weight[e] = index[key + e] < 0 ? 0.0f : power;
      share[e] = shared.share[row] * key_scale;
    }
    rounded[i / 2] = pack(weight[0], weight[1]);
    p[i / 2] = pack(share[0] * weight[0], share[1] * weight[1]);
  }
}

/// A tile [64 heads, 64 keys] in a block of shared memory, packed: where a thread has pair i.
PB_DEVICE uint32_t& pair_at(unsigned char* tile, const Fragment& f, int i) {
  return *reinterpret_cast<uint32_t*>(tile + in_block(f.row + i % 2 * 8, 2 * f.column(2 * i)));
}

/// dS in the place of P as the forward rounded it: out is a mean with those weights, so that Delta
/// is theirs, and sum_j dS_j is 0 but for the rounding of dS.
template <typename Operands>
PB_DEVICE void differentiate(const float (&grad_p)[32], const Operands& o, int64_t tile,
                             const BackwardShared& shared, const Fragment& f,
                             unsigned char* slopes) {
  float factor[2], delta[2];
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    factor[half] = o.p.softmax_scale * shared.share[row] * o.query_scale(row);
    delta[half] = shared.delta[row];
  }
  // Some are read before any is written: a read waits for writes that may be of the same place.
  constexpr int kAtATime = 4;
  PB_UNROLL
  for (int first = 0; first < 16; first += kAtATime) {
    uint32_t pairs[kAtATime];
    PB_UNROLL
    for (int i = 0; i < kAtATime; ++i) pairs[i] = pair_at(slopes, f, first + i);
    PB_UNROLL
    for (int i = 0; i < kAtATime; ++i) {
      const int at = 2 * (first + i), half = i % 2;
      const float low = o.key_scale(tile, f.column(at)), high = o.key_scale(tile, f.column(at + 1));
      pairs[i] =
          pack(factor[half] * low * low_of(pairs[i]) * (grad_p[at] * low - delta[half]),
               factor[half] * high * high_of(pairs[i]) * (grad_p[at + 1] * high - delta[half]));
    }
    PB_UNROLL
    for (int i = 0; i < kAtATime; ++i) pair_at(slopes, f, first + i) = pairs[i];
  }
}

/// Trades values whose index has `bit` with the thread `mask` away: that bit of the index and of
/// the thread's number change places.
PB_DEVICE void butterfly_exchange(float (&d)[32], int bit, int mask) {
  const bool is_upper = (thread_index() & mask) != 0;
  PB_UNROLL
  for (int i = 0; i < 32; ++i) {
    if ((i & bit) != 0) continue;
    const float other = shuffle_xor(is_upper ? d[i] : d[i + bit], mask);
    if (is_upper) {
      d[i] = other;
    } else {
      d[i + bit] = other;
    }
  }
}

/// Rows of grad_kv to which a thread adds: of keys 2 (t % 32 / 8) + 16 (t % 128 / 32) and 1, 8, 9
/// further; null where there is none. Sums are divided by the scales of the keys.
struct AddRows {
  float* to[4];
  float inverse[4];
  template <typename Operands>
  PB_DEVICE AddRows(const Operands& o, int64_t tile) {
    const int first = thread_index() % 128 / 32 * 16 + thread_index() % 32 / 8 * 2;
    PB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = first + i % 2 + i / 2 * 8;
      const int32_t key = o.places.shared().index[tile % 2][row];
      to[i] =
          key < 0 ? nullptr : o.g.grad_kv + (o.cta.batch * o.p.seqlen_k + key) * o.p.head_dim_qk;
      inverse[i] = 1.0f / o.key_scale(tile, row);
    }
  }
};

/// Adds [64 keys, 64 columns], d. Eight threads that follow each other add 128 bytes of one row.
PB_DEVICE void add_block(float (&d)[32], int block, int head_dim_qk, const AddRows& rows) {
  // Column bit 1 comes from a thread's number, bits 3 and 4 go there, for it and a row's bit 0.
  butterfly_exchange(d, 4, 1);
  butterfly_exchange(d, 8, 4);
  const int lane = thread_index() % 32;
  const int first = block * kColumns + lane / 4 % 2 * 16 + lane % 2 * 8 + lane / 2 % 2 * 4;
  PB_UNROLL
  for (int i = 0; i < 8; ++i) {
    const int at = i / 4 * 16 + i % 2 * 8 + i / 2 % 2 * 2, column = first + i / 4 * 32;
    float* const to = rows.to[i % 4];
    const float inverse = rows.inverse[i % 4];
    if (to == nullptr || column >= head_dim_qk) continue;
    add_four(to + column, inverse * d[at], inverse * d[at + 1], inverse * d[at + 4],
             inverse * d[at + 5]);
  }
}

/// A warpgroup's half of grad_q's columns: the first takes the first blocks and the first half of
/// the middle one where they are odd, the second the other half and the last blocks.
template <int kBlocks>
struct GradQuery {
  static constexpr int kWhole = kBlocks / 2;
  static constexpr bool kIsOdd = kBlocks % 2 == 1;
  float whole[kWhole > 0 ? 32 * kWhole : 1] = {};
  float rest[16] = {};

  PB_DEVICE static int first_whole(const Fragment& f) {
    return f.warpgroup == 0 ? 0 : kWhole + (kIsOdd ? 1 : 0);
  }
  PB_DEVICE void add(const Fragment& f, uint32_t slopes, uint32_t k) {
    wgmma_fence(whole, rest);
    if constexpr (kWhole > 0)
      multiply_rows<Major::kK, 64 * kWhole>(whole, slopes, k + first_whole(f) * kBlockBytes, true);
    if constexpr (kIsOdd)
      multiply_rows<Major::kK, 32>(rest, slopes,
                                   k + kWhole * kBlockBytes + f.warpgroup * (kRowBytes / 2), true);
    wgmma_commit();
    wgmma_wait(whole, rest);
  }
  template <typename Operands, int kCount>
  PB_DEVICE static void store(const float (&d)[kCount], const Operands& o, const Fragment& f,
                              int first_column) {
    const int head_dim_qk = o.p.head_dim_qk;
    PB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = f.row + 8 * half;
      const float inverse = 1.0f / o.query_scale(row);
      uint16_t* const to = o.g.grad_q + (o.cta.first_row + row) * head_dim_qk + first_column;
      PB_UNROLL
      for (int i = 2 * half; i + 1 < kCount; i += 4) {
        if (row < o.cta.num_rows && first_column + f.column(i) < head_dim_qk)
          *reinterpret_cast<uint32_t*>(to + f.column(i)) = pack(inverse * d[i], inverse * d[i + 1]);
      }
    }
  }
  template <typename Operands>
  PB_DEVICE void store(const Operands& o, const Fragment& f) const {
    store(whole, o, f, first_whole(f) * kColumns);
    if constexpr (kIsOdd) store(rest, o, f, kWhole * kColumns + f.warpgroup * (kColumns / 2));
  }
};

/// Where things lie in shared memory.
struct BackwardPlaces {
  int blocks, value_blocks;
  unsigned char* storage;
  PB_DEVICE uint32_t query() const { return shared_address(storage); }
  PB_DEVICE uint32_t grad_out() const { return query() + blocks * kBlockBytes; }
  PB_DEVICE uint32_t keys() const { return grad_out() + value_blocks * kBlockBytes; }
  PB_DEVICE unsigned char* weights() const {
    return storage + (2 * blocks + value_blocks) * kBlockBytes;
  }
  PB_DEVICE unsigned char* slopes() const { return weights() + kBlockBytes; }
  PB_DEVICE BackwardShared& shared() const {
    return *reinterpret_cast<BackwardShared*>(slopes() + kBlockBytes);
  }
};

/// What a CTA works on.
template <typename Problem, typename Grads, typename Cta>
struct CtaOperands {
  const Problem& p;
  const Grads& g;
  Cta cta;
  BackwardPlaces places;

  /// `storage`: shared memory at a multiple of 1024.
  PB_DEVICE CtaOperands(const Problem& problem, const Grads& grads, const Cta& heads,
                        unsigned char* storage)
      : p(problem),
        g(grads),
        cta(heads),
        places{num_blocks(problem.head_dim_qk), num_blocks(problem.head_dim_v), storage} {}
};

/// What warpgroups 0 and 1 do: P, dS and grad_q.
template <typename Operands>
PB_DEVICE void take_slopes(Operands& o, int64_t num_tiles) {
  const BackwardPlaces& places = o.places;
  const uint32_t k = places.keys();
  BackwardShared& shared = places.shared();
  o.load_q_tile();
  o.read_slots(0);
  if (num_tiles > 0) o.load_k_tile(0);
  load_sums(o, shared);
  Fragment f;
  GradQuery<Operands::kBlocks> grad_q;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    wait_for_copies();
    fence_async_proxy();
    // The tile is whole.
    named_barrier_sync(kSlopeTeam, kSlopeThreads);
    o.read_slots(tile + 1);
    float d[32];
    wgmma_fence(d);
    dot_rows(d, f.warpgroup == 0 ? places.query() : places.grad_out(), k,
             f.warpgroup == 0 ? places.blocks : places.value_blocks, false);
    wgmma_commit();
    wgmma_wait(d);
    f.renew();
    if (f.warpgroup == 0) {
      uint32_t weights[16], rounded[16];
      weigh(d, o, tile, shared, f, weights, rounded);
      // The last tile's P and dS are no longer read.
      if (tile > 0) named_barrier_sync(kSlopesFree, kBackwardThreads / 3 * 2);
      PB_UNROLL
      for (int i = 0; i < 16; ++i) {
        pair_at(places.weights(), f, i) = weights[i];
        pair_at(places.slopes(), f, i) = rounded[i];
      }
      arrive_at(kWeightsReady, kSlopeThreads);
    } else {
      named_barrier_sync(kWeightsReady, kSlopeThreads);
      differentiate(d, o, tile, shared, f, places.slopes());
    }
    fence_async_proxy();
    arrive_at(kSlopesReady, kBackwardThreads);
    // Each warpgroup multiplies by both halves of dS.
    named_barrier_sync(kSlopeTeam, kSlopeThreads);
    grad_q.add(f, shared_address(places.slopes()), k);
    // The keys have been used by both.
    named_barrier_sync(kSlopeTeam, kSlopeThreads);
    if (tile + 1 < num_tiles) o.load_k_tile(tile + 1);
  }
  grad_q.store(o, f);
}

/// Starts the products of grad_kv's [64 keys, 64 columns], where there are values or where not.
template <bool kHasValues>
PB_DEVICE void multiply_heads(float (&d)[32], const BackwardPlaces& places, int block) {
  wgmma_fence(d);
  multiply_rows<Major::kMn, 64>(d, shared_address(places.slopes()),
                                places.query() + block * kBlockBytes, false);
  if constexpr (kHasValues)
    multiply_rows<Major::kMn, 64>(d, shared_address(places.weights()),
                                  places.grad_out() + block * kBlockBytes, true);
  wgmma_commit();
}

/// What warpgroup 2 does: grad_kv.
template <typename Operands>
PB_DEVICE void add_tiles(const Operands& o, int64_t num_tiles) {
  const BackwardPlaces& places = o.places;
  const int head_dim_qk = o.p.head_dim_qk, last = places.value_blocks - 1;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    named_barrier_sync(kSlopesReady, kBackwardThreads);
    const AddRows rows(o, tile);
    float d[32];
    for (int block = last + 1; block < places.blocks; ++block) {
      multiply_heads<false>(d, places, block);
      wgmma_wait(d);
      add_block(d, block, head_dim_qk, rows);
    }
    multiply_heads<true>(d, places, 0);
    for (int block = 0; block < last; ++block) {
      wgmma_wait(d);
      if constexpr (Operands::kAddsBeside) {
        float done[32];
        PB_UNROLL
        for (int i = 0; i < 32; ++i) done[i] = d[i];
        // What is added is in other registers than the next product.
        pin(done);
        multiply_heads<true>(d, places, block + 1);
        add_block(done, block, head_dim_qk, rows);
      } else {
        add_block(d, block, head_dim_qk, rows);
        multiply_heads<true>(d, places, block + 1);
      }
    }
    wgmma_wait(d);
    if (tile + 1 < num_tiles) arrive_at(kSlopesFree, kBackwardThreads / 3 * 2);
    add_block(d, last, head_dim_qk, rows);
  }
}

template <typename Operands>
PB_DEVICE void backward_cta(Operands& o) {
  const int64_t num_tiles = (o.p.topk + kRows - 1) / kRows;
  if (warp_broadcast(thread_index() / 128) < 2) {
    raise_registers<kSlopeRegisters<Operands>>();
    take_slopes(o, num_tiles);
  } else {
    lower_registers<kAddRegisters<Operands>>();
    add_tiles(o, num_tiles);
  }
}

}  // namespace patchbench::ops::sm90
