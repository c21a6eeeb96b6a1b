#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_loads.h"

// The backward. Grid: num_items. 384 threads, one CTA per SM: 64 heads of one query, whose keys
// pass by in tiles of 64. P is taken anew from lse.
//   Warpgroups 0 and 1: the first the logits and P, the second grad_out V^T and, of P, dS, each
//   [64, 64] in 32 registers a thread; grad_q, each half of its columns, 16 registers a thread for
//   each block. They copy the next tile as soon as both are done with this one. Warpgroup 2:
//   grad_kv, [64 keys, 64 columns] at a time, 32 registers a thread; added to memory in float32, 16
//   bytes a thread, 64 heads at once. It needs P and dS, not the keys, and is a tile behind: adds
//   are under way while the others multiply.
// Shared memory: blocks of q, grad_out, one tile of keys, P, dS, and 1.25 KiB: 225 KiB at 576/512.
// Rounded to bfloat16: P, dS, grad_q. Sums are float32.
namespace patchbench::ops::sparse_mla_dims {

constexpr int kBackwardThreads = 384, kSlopeThreads = 256;
/// Of a thread.
constexpr int kSlopeRegisters = 208, kAddRegisters = 88;
static_assert(2 * kSlopeRegisters + kAddRegisters <= 3 * kLaunchRegisters,
              "a warpgroup waits for ever for registers that the CTA was not launched with");
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
PB_DEVICE void load_sums(const SparseMla& p, const SparseMlaGrads& g, const Cta& cta,
                         BackwardShared& shared) {
  const int row = thread_index() / 4, quarter = thread_index() % 4;
  float delta = 0.0f;
  if (row < cta.num_rows) {
    const int64_t first = (cta.first_row + row) * p.head_dim_v;
    const auto pair_at = [&](const uint16_t* from, int column) {
      return *reinterpret_cast<const uint32_t*>(from + first + column);
    };
    for (int column = 2 * quarter; column < p.head_dim_v; column += 8)
      delta += dot_pair(pair_at(g.grad_out, column), pair_at(g.out, column),
                        g.out_remainder == nullptr ? 0 : pair_at(g.out_remainder, column));
  }
  delta = quad_sum(delta);
  if (quarter != 0) return;
  shared.delta[row] = delta;
  const float lse = row < cta.num_rows ? g.lse[cta.first_row + row] : 0.0f;
  shared.base[row] = floorf(lse);
  shared.share[row] = row < cta.num_rows ? exp2_of(floorf(lse) - lse) : 0.0f;
}

/// P of a tile's logits, packed, and P as the forward rounded it.
PB_DEVICE void weigh(const float (&s)[32], float scale, const int32_t (&index)[kRows],
                     const BackwardShared& shared, const Fragment& f, uint32_t (&p)[16],
                     uint32_t (&rounded)[16]) {
  PB_UNROLL
  for (int i = 0; i < 32; i += 2) {
    const int row = f.row + i / 2 % 2 * 8, key = f.column(i);
    float weight[2];
    PB_UNROLL
    for (int e = 0; e < 2; ++e) {
      const float power = exp2_flushed(fmaf(s[i + e], scale, -shared.base[row]));
      weight[e] = index[key + e] < 0 ? 0.0f : power;
    }
    const float share = shared.share[row];
    rounded[i / 2] = pack(weight[0], weight[1]);
    p[i / 2] = pack(share * weight[0], share * weight[1]);
  }
}

/// A tile [64 heads, 64 keys] in a block of shared memory, packed: where a thread has pair i.
PB_DEVICE uint32_t& pair_at(unsigned char* tile, const Fragment& f, int i) {
  return *reinterpret_cast<uint32_t*>(tile + in_block(f.row + i % 2 * 8, 2 * f.column(2 * i)));
}

/// dS in the place of P as the forward rounded it: out is a mean with those weights, so that Delta
/// is theirs, and sum_j dS_j is 0 but for the rounding of dS.
PB_DEVICE void differentiate(const float (&grad_p)[32], float softmax_scale,
                             const BackwardShared& shared, const Fragment& f,
                             unsigned char* slopes) {
  PB_UNROLL
  for (int i = 0; i < 16; ++i) {
    const int row = f.row + i % 2 * 8;
    const float factor = softmax_scale * shared.share[row];
    uint32_t& pair = pair_at(slopes, f, i);
    pair = pack(factor * low_of(pair) * (grad_p[2 * i] - shared.delta[row]),
                factor * high_of(pair) * (grad_p[2 * i + 1] - shared.delta[row]));
  }
}

/// Trades values whose index has `bit` with the thread `mask` away: that bit of the index and of
/// the thread's number change places.
PB_DEVICE void trade(float (&d)[32], int bit, int mask) {
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
/// further; null where there is none.
struct AddRows {
  float* to[4];
  PB_DEVICE AddRows(const SparseMla& p, const Cta& cta, const int32_t (&index)[kRows],
                    float* grad_kv) {
    const int first = thread_index() % 128 / 32 * 16 + thread_index() % 32 / 8 * 2;
    PB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int32_t key = index[first + i % 2 + i / 2 * 8];
      to[i] = key < 0 ? nullptr : grad_kv + (cta.batch * p.seqlen_k + key) * p.head_dim_qk;
    }
  }
};

/// Adds [64 keys, 64 columns], d. Eight threads that follow each other add 128 bytes of one row.
PB_DEVICE void add_block(float (&d)[32], int block, int head_dim_qk, const AddRows& rows) {
  // Column bit 1 comes from a thread's number, bits 3 and 4 go there, for it and a row's bit 0.
  trade(d, 4, 1);
  trade(d, 8, 4);
  const int lane = thread_index() % 32;
  const int first = block * kColumns + lane / 4 % 2 * 16 + lane % 2 * 8 + lane / 2 % 2 * 4;
  PB_UNROLL
  for (int i = 0; i < 8; ++i) {
    const int at = i / 4 * 16 + i % 2 * 8 + i / 2 % 2 * 2, column = first + i / 4 * 32;
    float* const to = rows.to[i % 4];
    if (to == nullptr || column >= head_dim_qk) continue;
    add_four(to + column, d[at], d[at + 1], d[at + 4], d[at + 5]);
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
  template <int kCount>
  PB_DEVICE static void store(const float (&d)[kCount], const SparseMla& p, const Cta& cta,
                              const Fragment& f, int first_column, uint16_t* grad_q) {
    PB_UNROLL
    for (int i = 0; i + 1 < kCount; i += 2) {
      const int row = f.row + i / 2 % 2 * 8, column = first_column + f.column(i);
      if (row >= cta.num_rows || column >= p.head_dim_qk) continue;
      *reinterpret_cast<uint32_t*>(grad_q + (cta.first_row + row) * p.head_dim_qk + column) =
          pack(d[i], d[i + 1]);
    }
  }
  PB_DEVICE void store(const SparseMla& p, const Cta& cta, const Fragment& f,
                       uint16_t* grad_q) const {
    store(whole, p, cta, f, first_whole(f) * kColumns, grad_q);
    if constexpr (kIsOdd)
      store(rest, p, cta, f, kWhole * kColumns + f.warpgroup * (kColumns / 2), grad_q);
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

using SlopeTeam = Team<0, kSlopeThreads>;

/// Starts the copy of a tile of keys, those that `slots` name.
template <int kBlocks>
PB_DEVICE void copy_keys(const SparseMla& p, const Cta& cta, int64_t tile,
                         const int32_t (&slots)[SlopeTeam::kEach], const BackwardPlaces& places) {
  const SlopeTeam team;
  int32_t index[SlopeTeam::kEach];
  team.keys_of(p, slots, index);
  team.note_indices(index, places.shared().index[tile % 2]);
  team.copy<0, kBlocks>(team.find_keys(p, cta, index), p.head_dim_qk, kBlocks, places.keys());
}

/// What warpgroups 0 and 1 do: P, dS and grad_q.
template <int kBlocks>
PB_DEVICE void take_slopes(const SparseMla& p, const SparseMlaGrads& g, const Cta& cta,
                           const BackwardPlaces& places, int64_t num_tiles) {
  const uint32_t k = places.keys();
  BackwardShared& shared = places.shared();
  Fragment f;
  const SlopeTeam team;
  GradQuery<kBlocks> grad_q;
  team.copy<0, kBlocks>(team.find_query(p, cta), p.head_dim_qk, kBlocks, places.query());
  team.copy<0, kBlocks>(
      team.find_heads(g.grad_out + cta.first_row * p.head_dim_v, p.head_dim_v, cta.num_rows),
      p.head_dim_v, places.value_blocks, places.grad_out());
  int32_t slots[SlopeTeam::kEach];
  team.read_slots(p, cta, 0, slots);
  if (num_tiles > 0) copy_keys<kBlocks>(p, cta, 0, slots, places);
  load_sums(p, g, cta, shared);
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    wait_for_copies();
    fence_async_proxy();
    // The tile is whole.
    sync_at(kSlopeTeam, kSlopeThreads);
    team.read_slots(p, cta, tile + 1, slots);
    float d[32];
    wgmma_fence(d);
    dot_rows(d, f.warpgroup == 0 ? places.query() : places.grad_out(), k,
             f.warpgroup == 0 ? places.blocks : places.value_blocks, false);
    wgmma_commit();
    wgmma_wait(d);
    f.renew();
    if (f.warpgroup == 0) {
      uint32_t weights[16], rounded[16];
      weigh(d, p.softmax_scale * kLog2e, shared.index[tile % 2], shared, f, weights, rounded);
      // The last tile's P and dS are no longer read.
      if (tile > 0) sync_at(kSlopesFree, kBackwardThreads / 3 * 2);
      PB_UNROLL
      for (int i = 0; i < 16; ++i) {
        pair_at(places.weights(), f, i) = weights[i];
        pair_at(places.slopes(), f, i) = rounded[i];
      }
      arrive_at(kWeightsReady, kSlopeThreads);
    } else {
      sync_at(kWeightsReady, kSlopeThreads);
      differentiate(d, p.softmax_scale, shared, f, places.slopes());
    }
    fence_async_proxy();
    arrive_at(kSlopesReady, kBackwardThreads);
    // Each warpgroup multiplies by both halves of dS.
    sync_at(kSlopeTeam, kSlopeThreads);
    grad_q.add(f, shared_address(places.slopes()), k);
    // The keys have been used by both.
    sync_at(kSlopeTeam, kSlopeThreads);
    if (tile + 1 < num_tiles) copy_keys<kBlocks>(p, cta, tile + 1, slots, places);
  }
  grad_q.store(p, cta, f, g.grad_q);
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

/// What warpgroup 2 does: grad_kv. A block is added while the next one is multiplied.
PB_DEVICE void add_tiles(const SparseMla& p, const SparseMlaGrads& g, const Cta& cta,
                         const BackwardPlaces& places, int64_t num_tiles) {
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    sync_at(kSlopesReady, kBackwardThreads);
    const AddRows rows(p, cta, places.shared().index[tile % 2], g.grad_kv);
    float d[32];
    for (int block = places.value_blocks; block < places.blocks; ++block) {
      multiply_heads<false>(d, places, block);
      wgmma_wait(d);
      add_block(d, block, p.head_dim_qk, rows);
    }
    multiply_heads<true>(d, places, 0);
    for (int block = 1; block < places.value_blocks; ++block) {
      float done[32];
      wgmma_wait(d);
      PB_UNROLL
      for (int i = 0; i < 32; ++i) done[i] = d[i];
      // What is added is in other registers than the next product.
      pin(done);
      multiply_heads<true>(d, places, block);
      add_block(done, block - 1, p.head_dim_qk, rows);
    }
    wgmma_wait(d);
    if (tile + 1 < num_tiles) arrive_at(kSlopesFree, kBackwardThreads / 3 * 2);
    add_block(d, places.value_blocks - 1, p.head_dim_qk, rows);
  }
}

/// `storage`: backward_bytes at a multiple of 1024. kBlocks: those of q.
template <int kBlocks>
PB_DEVICE void backward_cta(const SparseMla& p, const SparseMlaGrads& g, const Cta& cta,
                            unsigned char* storage) {
  const BackwardPlaces places{num_blocks(p.head_dim_qk), num_blocks(p.head_dim_v), storage};
  const int64_t num_tiles = (p.topk + kRows - 1) / kRows;
  if (uniform(thread_index() / 128) < 2) {
    raise_registers<kSlopeRegisters>();
    take_slopes<kBlocks>(p, g, cta, places, num_tiles);
  } else {
    lower_registers<kAddRegisters>();
    add_tiles(p, g, cta, places, num_tiles);
  }
}

}  // namespace patchbench::ops::sparse_mla_dims
