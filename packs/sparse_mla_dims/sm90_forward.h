#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_loads.h"

// The forward. 384 threads, one CTA per SM, which takes every gridDim.x-th item: 64 heads of one
// query, whose keys pass by in tiles of 64.
//   Warpgroup 2 copies: the query, and the keys as soon as a part of their place is free.
//   Warpgroups 0 and 1: the first has tiles 0, 2, ..., the second the others. Of its own tile each
//   forms the logits [64, 64], 32 registers a thread, and P. Of out it has the first or the last
//   kHalf blocks of 64 columns, 32 kHalf registers a thread, to which all tiles are added in order:
//   its own, with P from registers, and the other's, with P from shared memory.
// A warpgroup forms its logits, starts to add the tile before, and forms P meanwhile, for which it
// needs the maxima of the tile before, too: so one's P is formed while the other's logits are. What
// a warpgroup has summed is rescaled when a maximum grew. Maxima are rounded up to whole numbers: P
// before its rounding is then the same but for powers of two whatever the maximum was when its key
// came by, and who rounds P again gets these weights.
// A tile's place is free in three sets of columns: those that warpgroup 0 multiplies as values,
// those of warpgroup 1, and those that are no values. The last are free before all others, those of
// the tile's own warpgroup before the other's; so they are copied and their logits formed, each set
// of values in two parts.
// The last block of the query is in registers, 16 a thread: its place holds the second's P.
// Shared memory: blocks of two tiles of keys, of the query, P, and 2.1 KiB: 226 KiB at 576.
// Rounded to bfloat16: P, out, and what that left. Sums, maxima and lse are float32.
namespace patchbench::ops::sparse_mla_dims {

constexpr int kForwardThreads = 384, kConsumers = 256;
/// Of a thread: 65536 in all.
constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
/// Of a tile: its columns without values, twice two of those with.
constexpr int kParts = 5, kNoValues = 2;
/// kWeights + a warpgroup: P of its tile is there with its maxima. kSums: both have theirs.
enum ForwardBarrier { kWeights = 1, kSums = 3 };

struct ForwardShared {
  int32_t index[2][kRows];  ///< of the keys, by place
  float top[2][kRows];      ///< maxima after the warpgroup's last tile
  float sum[2][kRows], weight[2][kRows];
  Barrier full[2][kParts];            ///< of a place's parts
  Barrier free[2][3];                 ///< of a place's sets
  Barrier query_full, query_free[2];  ///< all but the last block, and that
  alignas(4) uint8_t has_gaps[2][4];  ///< whether some slots of a tile have no key, by warp
};

PB_CONSTEXPR int64_t forward_bytes(int head_dim_qk) {
  return (3 * num_blocks(head_dim_qk) + 1) * int64_t{kBlockBytes} +
         static_cast<int64_t>(sizeof(ForwardShared));
}

/// Where things lie in shared memory.
struct ForwardPlaces {
  int blocks;
  unsigned char* storage;
  PB_DEVICE uint32_t keys(int place) const {
    return shared_address(storage) + place * blocks * kBlockBytes;
  }
  PB_DEVICE uint32_t query() const { return keys(2); }
  PB_DEVICE unsigned char* last_of_query() const {
    return storage + (3 * blocks - 1) * kBlockBytes;
  }
  PB_DEVICE unsigned char* weights(int warpgroup) const {
    return storage + (3 * blocks - warpgroup) * kBlockBytes;
  }
  PB_DEVICE ForwardShared& shared() const {
    return *reinterpret_cast<ForwardShared*>(storage + (3 * blocks + 1) * kBlockBytes);
  }
};

/// The blocks of one part of a tile, and the set that they are of. `mine`: the tile's warpgroup.
template <int kHalf>
struct Part {
  static constexpr int kFirst = (kHalf + 1) / 2;
  int begin, end, set;
  PB_DEVICE Part(int part, int mine, int blocks) {
    set = part == 0 ? kNoValues : part < 3 ? mine : 1 - mine;
    const bool is_second = part > 0 && part % 2 == 0;
    begin = set * kHalf + (is_second ? kFirst : 0);
    end = part == 0 ? blocks : is_second ? (set + 1) * kHalf : begin + kFirst;
    if (end > blocks) end = blocks;
  }
};

/// The items of one CTA.
struct Items {
  int64_t first, step;
};

PB_CONSTEXPR int num_tiles(const SparseMla& p) {
  return static_cast<int>((p.topk + kRows - 1) / kRows);
}

PB_DEVICE void start_barriers(ForwardShared& shared) {
  if (thread_index() == 0) {
    constexpr int kCopiers = kForwardThreads - kConsumers;
    PB_UNROLL
    for (int place = 0; place < 2; ++place) {
      // Each copying thread with its copies, and once more with the indices.
      PB_UNROLL
      for (int part = 0; part < kParts; ++part)
        start_barrier(shared.full[place][part], part == 1 ? 2 * kCopiers : kCopiers);
      PB_UNROLL
      for (Barrier& barrier : shared.free[place]) start_barrier(barrier, kConsumers / 2 / 32);
    }
    start_barrier(shared.query_full, kForwardThreads - kConsumers);
    PB_UNROLL
    for (Barrier& barrier : shared.query_free) start_barrier(barrier, kConsumers / 32);
  }
  // Nobody uses a barrier before it is there.
  sync_threads();
}

/// One arrival a warp, all of whose threads are done with what it frees.
PB_DEVICE void arrive_as_warp(Barrier& barrier) {
  sync_warp();
  if (thread_index() % 32 == 0) arrive(barrier);
}

using Copiers = Team<kConsumers, kForwardThreads - kConsumers>;

/// Notes which keys a tile has.
PB_DEVICE void note_tile(const int32_t (&index)[Copiers::kEach], ForwardShared& shared, int place) {
  const Copiers team;
  bool has_gap = false;
  PB_UNROLL
  for (int i = 0; i < Copiers::kEach; ++i) has_gap |= index[i] < 0;
  has_gap = any_in_warp(has_gap);
  team.note_indices(index, shared.index[place]);
  if (team.thread % 32 == 0) shared.has_gaps[place][team.thread / 32] = has_gap ? 1 : 0;
}

template <int kHalf>
PB_DEVICE void produce(const SparseMla& p, const ForwardPlaces& places, const Items& items) {
  const Copiers team;
  ForwardShared& shared = places.shared();
  int free_parities = 3, query_parity = 1;  // of a place, a bit each
  for (int64_t item = items.first; item < num_items(p); item += items.step) {
    const Cta cta(p, item);
    int32_t next[Copiers::kEach];
    team.read_slots(p, cta, 0, next);
    PB_UNROLL
    for (int part = 0; part < 2; ++part) {
      const int last = places.blocks - 1;
      wait_for(shared.query_free[part], query_parity);
      team.copy_query(p, cta, part == 0 ? 0 : last, part == 0 ? last : last + 1, places.query());
    }
    query_parity ^= 1;
    arrive_with_copies(shared.query_full);
    for (int tile = 0; tile < num_tiles(p); ++tile) {
      const int place = tile % 2;
      int32_t index[Copiers::kEach];
      team.keys_of(p, next, index);
      const Copiers::Rows rows = team.find_keys(p, cta, index);
      if (tile + 1 < num_tiles(p)) team.read_slots(p, cta, tile + 1, next);
      const int parity = free_parities >> place & 1;
      constexpr int kFirst = Part<kHalf>::kFirst;
      PB_ROLLED
      for (int i = 0; i < kParts; ++i) {
        const Part<kHalf> part(i, place, places.blocks);
        if (i < 2 || i == 3) wait_for(shared.free[place][part.set], parity);
        PB_ROLLED
        for (int block = part.begin; block < part.end; block += kFirst)
          team.template copy<kFirst>(rows, p.head_dim_qk, block, part.end, places.keys(place));
        arrive_with_copies(shared.full[place][i]);
        if (i != 1) continue;
        // Whoever read the last tile's has freed this set since.
        note_tile(index, shared, place);
        arrive(shared.full[place][i]);
      }
      free_parities ^= 1 << place;
    }
  }
}

/// A thread's rows: their maxima so far, and sums over the thread's own columns of the tiles of its
/// warpgroup.
struct Sums {
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};     ///< of P
  float weight[2] = {0, 0};  ///< of P as it is multiplied, rounded

  PB_DEVICE float base(int half) const {
    // Before the first key the maximum is -inf, and -inf - -inf is no number.
    return top[half] == -INFINITY ? 0.0f : top[half];
  }
  /// Takes a maximum that is no lower; `alpha` is what earlier sums are worth.
  PB_DEVICE void raise(int half, float higher, float (&alpha)[2]) {
    const float before = top[half];
    top[half] = higher;
    alpha[half] = exp2_of(before - base(half));
    sum[half] *= alpha[half];
    weight[half] *= alpha[half];
  }
};

template <int kCount>
PB_DEVICE void rescale(float (&o)[kCount], const float (&alpha)[2]) {
  if (!any_in_warp(alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
  PB_UNROLL
  for (int i = 0; i < kCount; ++i) o[i] *= alpha[i / 2 % 2];
}

/// Logits of a tile to its P, for the products in `own` and in shared memory at `p`; `top` is where
/// the maxima go.
PB_DEVICE void soften(float (&s)[32], float signed_scale, const ForwardShared& shared, int place,
                      const Fragment& f, float (&top)[kRows], unsigned char* p, Sums& sums,
                      uint32_t (&own)[16], float (&alpha)[2]) {
  // Maxima are taken before scaling; -inf times 0 is no number.
  const float scale = fmaxf(fabsf(signed_scale), 1e-37f);
  if (signed_scale < 0) {
    PB_UNROLL
    for (int i = 0; i < 32; ++i) s[i] = -s[i];
  }
  if (*reinterpret_cast<const uint32_t*>(shared.has_gaps[place]) != 0) {
    PB_UNROLL
    for (int i = 0; i < 32; ++i)
      if (shared.index[place][f.column(i)] < 0) s[i] = -INFINITY;
  }
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    float highest = s[2 * half];
    PB_UNROLL
    for (int i = 2 * half; i < 32; i += 4) highest = fmaxf(highest, fmaxf(s[i], s[i + 1]));
    sums.raise(half, fmaxf(sums.top[half], ceilf(quad_max(highest) * scale)), alpha);
    if (f.quad == 0) top[f.row + 8 * half] = sums.top[half];
  }
  PB_UNROLL
  for (int i = 0; i < 32; i += 2) {
    const int half = i / 2 % 2;
    const float base = sums.base(half);
    const float first = exp2_flushed(fmaf(s[i], scale, -base));
    const float second = exp2_flushed(fmaf(s[i + 1], scale, -base));
    own[i / 2] = pack(first, second);
    sums.sum[half] += first + second;
    sums.weight[half] += low_of(own[i / 2]) + high_of(own[i / 2]);
    *reinterpret_cast<uint32_t*>(p + in_block(f.row + 8 * half, 2 * f.column(i))) = own[i / 2];
  }
}

/// Word i of a quad's thread j becomes word j of its thread i: of four groups of eight columns a
/// thread has one whole, where it had two columns of each.
PB_DEVICE void transpose_in_quad(Chunk& c, const Fragment& f) {
  PB_UNROLL
  for (int mask = 1; mask < 4; mask *= 2) {
    const bool is_upper = (f.quad & mask) != 0;
    PB_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((i & mask) != 0) continue;
      uint32_t &low = c.words[i], &high = c.words[i + mask];
      const uint32_t other = shuffle_xor(is_upper ? low : high, mask);
      if (is_upper) {
        low = other;
      } else {
        high = other;
      }
    }
  }
}

/// out, what its rounding took, and lse, from the sums over all keys. A mean is taken with the
/// weights that the values were multiplied by: else what rounding does to the weight of a key that
/// holds most of the mass would stay in out, and so in Delta.
template <int kHalf>
PB_DEVICE void store_forward(const SparseMla& p, const SparseMlaResults& r, const Cta& cta,
                             const Fragment& f, const Sums& sums, ForwardShared& shared,
                             const float (&o)[32 * kHalf]) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(sums.sum[half]), weight = quad_sum(sums.weight[half]);
    if (f.quad != 0) continue;
    shared.sum[f.warpgroup][f.row + 8 * half] = sum;
    shared.weight[f.warpgroup][f.row + 8 * half] = weight;
  }
  // Both warpgroups' sums are read next.
  sync_at(kSums, kConsumers);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    const float sum = shared.sum[0][row] + shared.sum[1][row];
    const float inverse =
        sum == 0.0f ? 0.0f : 1.0f / (shared.weight[0][row] + shared.weight[1][row]);
    if (f.warpgroup == 0 && f.quad == 0 && row < cta.num_rows)
      r.lse[cta.first_row + row] = sum == 0.0f ? 0.0f : log2_of(sum) + sums.top[half];
    const int64_t first = (cta.first_row + row) * p.head_dim_v;
    PB_UNROLL
    for (int m = 0; m < 2 * kHalf; ++m) {
      Chunk out, rest;
      PB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int i = 16 * m + 4 * j + 2 * half;
        const float low = o[i] * inverse, high = o[i + 1] * inverse;
        out.words[j] = pack(low, high);
        rest.words[j] = pack(low - low_of(out.words[j]), high - high_of(out.words[j]));
      }
      transpose_in_quad(out, f);
      transpose_in_quad(rest, f);
      const int column = (f.warpgroup * kHalf + m / 2) * kColumns + m % 2 * 32 + f.quad * 8;
      if (row >= cta.num_rows || column >= p.head_dim_v) continue;
      store_chunk(r.out + first + column, out);
      store_chunk(r.out_remainder + first + column, rest);
    }
  }
}

/// Starts the logits' last block, of which the query's part is in registers.
PB_DEVICE void multiply_last(float (&s)[32], const uint32_t (&last)[16], uint32_t k,
                             bool accumulates) {
  PB_UNROLL
  for (int step = 0; step < 4; ++step)
    wgmma_of_registers<64, Major::kK>(s, last + 4 * step, descriptor(k + step * kStepColumns),
                                      accumulates || step > 0);
}

/// Logits of the warpgroup's tile, part by part as they come.
template <int kHalf, int kMine>
PB_DEVICE void multiply_keys(float (&s)[32], const ForwardPlaces& places,
                             const uint32_t (&last)[16], int parity) {
  const int before = places.blocks - 1;
  ForwardShared& shared = places.shared();
  const uint32_t q = places.query(), k = places.keys(kMine);
  bool accumulates = false;
  wgmma_fence(s);
  PB_ROLLED
  for (int i = 0; i < kParts; ++i) {
    const Part<kHalf> part(i, kMine, places.blocks);
    const int count = (part.end < before ? part.end : before) - part.begin;
    wait_for(shared.full[kMine][i], parity);
    // What others copied is what the products read.
    fence_async_proxy();
    dot_rows(s, q + part.begin * kBlockBytes, k + part.begin * kBlockBytes, count, accumulates);
    accumulates = accumulates || count > 0;
  }
  multiply_last(s, last, k + before * kBlockBytes, accumulates);
  wgmma_commit();
  wgmma_wait(s);
  arrive_as_warp(shared.free[kMine][kNoValues]);
}

/// A block of 64 columns of 64 rows as an operand in registers.
PB_DEVICE void load_fragments(uint32_t (&a)[16], const unsigned char* block, const Fragment& f) {
  PB_UNROLL
  for (int i = 0; i < 16; ++i)
    a[i] = *reinterpret_cast<const uint32_t*>(block +
                                              in_block(f.row + i % 2 * 8, 2 * f.column(2 * i)));
}

/// What a warpgroup has of the item under way.
template <int kHalf>
struct Share {
  Sums sums;
  float o[32 * kHalf] = {};
};

/// Starts to add the other warpgroup's last tile to o.
template <int kHalf, int kMine>
PB_DEVICE void add_others(const ForwardPlaces& places, const Fragment& f, Share<kHalf>& share) {
  ForwardShared& shared = places.shared();
  float alpha[2];
  sync_at(kWeights + 1 - kMine, kConsumers);
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    share.sums.raise(half, shared.top[1 - kMine][f.row + 8 * half], alpha);
  rescale(share.o, alpha);
  wgmma_fence(share.o);
  multiply_rows<Major::kK, 64 * kHalf>(share.o, shared_address(places.weights(1 - kMine)),
                                       places.keys(1 - kMine) + kMine * kHalf * kBlockBytes, true);
  wgmma_commit();
}

/// Adds one tile of the warpgroup's own, and the other's before, if any.
template <int kHalf, int kMine, bool kIsFirst>
PB_DEVICE void take_tile(const ForwardPlaces& places, Fragment& f, float scale,
                         const uint32_t (&last)[16], int parity, Share<kHalf>& share) {
  ForwardShared& shared = places.shared();
  float s[32], alpha[2];
  uint32_t own[16];
  multiply_keys<kHalf, kMine>(s, places, last, parity);
  if constexpr (!kIsFirst) add_others<kHalf, kMine>(places, f, share);
  f.renew();
  soften(s, scale, shared, kMine, f, shared.top[kMine], places.weights(kMine), share.sums, own,
         alpha);
  fence_async_proxy();
  arrive_at(kWeights + kMine, kConsumers);
  if constexpr (!kIsFirst) {
    wgmma_wait(share.o);
    arrive_as_warp(shared.free[1 - kMine][kMine]);
  }
  rescale(share.o, alpha);
  wgmma_fence(share.o);
  PB_UNROLL
  for (int step = 0; step < kRows / 16; ++step)
    wgmma_of_registers<64 * kHalf, Major::kMn>(
        share.o, own + 4 * step,
        descriptor(places.keys(kMine) + kMine * kHalf * kBlockBytes + step * kStepRows), true);
  wgmma_commit();
  wgmma_wait(share.o, own);
  arrive_as_warp(shared.free[kMine][kMine]);
}

template <int kHalf, int kMine>
PB_DEVICE void consume(const SparseMla& p, const SparseMlaResults& r, const ForwardPlaces& places,
                       const Items& items) {
  ForwardShared& shared = places.shared();
  Fragment f;
  const float scale = p.softmax_scale * kLog2e;
  int parity = 0, query_parity = 0;
  for (int64_t item = items.first; item < num_items(p); item += items.step) {
    wait_for(shared.query_full, query_parity);
    query_parity ^= 1;
    uint32_t last[16];
    load_fragments(last, places.last_of_query(), f);
    fence_async_proxy();
    Share<kHalf> share;
    int tile = kMine;
    if (kMine == 0 && tile < num_tiles(p)) {
      take_tile<kHalf, kMine, true>(places, f, scale, last, parity, share);
      parity ^= 1;
      tile = 2;
    }
    for (; tile < num_tiles(p); tile += 2) {
      take_tile<kHalf, kMine, false>(places, f, scale, last, parity, share);
      parity ^= 1;
    }
    // Of the query all but the last block, where the second's P may still be read.
    arrive_as_warp(shared.query_free[0]);
    if (num_tiles(p) > 0 && num_tiles(p) % 2 == kMine) {
      add_others<kHalf, kMine>(places, f, share);
      wgmma_wait(share.o);
      arrive_as_warp(shared.free[1 - kMine][kMine]);
    }
    arrive_as_warp(shared.query_free[1]);
    store_forward<kHalf>(p, r, Cta(p, item), f, share.sums, shared, share.o);
  }
}

/// `storage`: forward_bytes at a multiple of 1024. kHalf: half the blocks of out, rounded up. Where
/// they are odd the second warpgroup's last block is of whatever follows the values, and not
/// stored.
template <int kHalf>
PB_DEVICE void forward_cta(const SparseMla& p, const SparseMlaResults& r, const Items& items,
                           unsigned char* storage) {
  const ForwardPlaces places{num_blocks(p.head_dim_qk), storage};
  start_barriers(places.shared());
  const int warpgroup = uniform(thread_index() / 128);
  if (warpgroup == 2) {
    lower_registers<kProducerRegisters>();
    produce<kHalf>(p, places, items);
  } else if (warpgroup == 0) {
    raise_registers<kConsumerRegisters>();
    consume<kHalf, 0>(p, r, places, items);
  } else {
    raise_registers<kConsumerRegisters>();
    consume<kHalf, 1>(p, r, places, items);
  }
}

}  // namespace patchbench::ops::sparse_mla_dims
