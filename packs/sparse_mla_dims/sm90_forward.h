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
// Tiles go in pairs: both warpgroups form their logits; the second forms its P as soon as the
// first's maxima are there; then each adds both tiles to its half of out. What a warpgroup has
// summed is rescaled when a maximum grew. Maxima are rounded up to whole numbers: P before its
// rounding is then the same but for powers of two whatever the maximum was when its key came by,
// and who rounds P again gets these weights.
// A tile's place is free in three sets of columns: those that are no values after the logits, those
// that warpgroup 0 multiplies as values, and those of warpgroup 1, after their products; so they
// are copied, the tile's own warpgroup's before the other's, and their logits formed.
// The last block of the query is in registers, 16 a thread: its place holds the second's P. So it
// is copied last, when the next query and the first tile are under way.
// Shared memory: blocks of two tiles of keys, of the query, P, and 2.1 KiB: 226 KiB at 576.
// Rounded to bfloat16: P, out, and what that left. Sums, maxima and lse are float32.
namespace patchbench::ops::sparse_mla_dims {

constexpr int kForwardThreads = 384, kConsumers = 256;
/// Of a thread.
constexpr int kProducerRegisters = 72, kConsumerRegisters = 216;
static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 3 * kLaunchRegisters,
              "a warpgroup waits for ever for registers that the CTA was not launched with");
/// Of a tile: columns without values, and two sets of those with.
constexpr int kParts = 3, kNoValues = 2;
/// kTop: the first warpgroup's maxima are there. kWeights + a warpgroup: P of its tile is, with its
/// maxima. kSums: both have theirs.
enum ForwardBarrier { kTop = 1, kWeights = 2, kSums = 4 };

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

/// One part of a tile: its set of columns, and their blocks, as far as there are any. `mine`: the
/// tile's warpgroup.
template <int kHalf>
struct Part {
  int set, begin, end;
  PB_CONSTEXPR Part(int part, int mine)
      : set(part == 0   ? kNoValues
            : part == 1 ? mine
                        : 1 - mine),
        begin(set * kHalf),
        end(set == kNoValues ? kMaxBlocks : begin + kHalf) {}
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

/// Copies a tile's parts from this one on, each when its set is free.
template <int kHalf, int kPlace, int kPart = 0>
PB_DEVICE void copy_parts(const SparseMla& p, const ForwardPlaces& places,
                          const Copiers::Rows& rows, const int32_t (&index)[Copiers::kEach],
                          int parity) {
  constexpr Part<kHalf> kThis(kPart, kPlace);
  ForwardShared& shared = places.shared();
  wait_for(shared.free[kPlace][kThis.set], parity);
  Copiers().template copy<kThis.begin, kThis.end>(rows, p.head_dim_qk, places.blocks,
                                                  places.keys(kPlace));
  arrive_with_copies(shared.full[kPlace][kPart]);
  if constexpr (kPart == 1) {
    // Whoever read the last tile's has freed this set since.
    note_tile(index, shared, kPlace);
    arrive(shared.full[kPlace][kPart]);
  }
  if constexpr (kPart + 1 < kParts)
    copy_parts<kHalf, kPlace, kPart + 1>(p, places, rows, index, parity);
}

/// Copies the query's last block, when its place holds no P that is read.
PB_DEVICE void copy_last_of_query(const SparseMla& p, const ForwardPlaces& places, const Cta& cta,
                                  int parity) {
  const Copiers team;
  const int last = places.blocks - 1;
  Copiers::Rows heads = team.find_query(p, cta);
  PB_UNROLL
  for (const uint16_t*& first : heads.first) first += last * kColumns;
  wait_for(places.shared().query_free[1], parity);
  team.copy<0, 1>(heads, p.head_dim_qk - last * kColumns, 1, places.query() + last * kBlockBytes);
  arrive_with_copies(places.shared().query_full);
}

template <int kHalf>
PB_DEVICE void produce(const SparseMla& p, const ForwardPlaces& places, const Items& items) {
  const Copiers team;
  int free_parities = 3, query_parity = 1;  // of a place, a bit each
  for (int64_t item = items.first; item < num_items(p); item += items.step) {
    const Cta cta(p, item);
    int32_t next[Copiers::kEach];
    team.read_slots(p, cta, 0, next);
    wait_for(places.shared().query_free[0], query_parity);
    team.copy<0, kMaxBlocks>(team.find_query(p, cta), p.head_dim_qk, places.blocks - 1,
                             places.query());
    for (int tile = 0; tile < num_tiles(p); ++tile) {
      int32_t index[Copiers::kEach];
      team.keys_of(p, next, index);
      const Copiers::Rows rows = team.find_keys(p, cta, index);
      if (tile + 1 < num_tiles(p)) team.read_slots(p, cta, tile + 1, next);
      const int parity = free_parities >> tile % 2 & 1;
      if (tile % 2 == 0) {
        copy_parts<kHalf, 0>(p, places, rows, index, parity);
      } else {
        copy_parts<kHalf, 1>(p, places, rows, index, parity);
      }
      free_parities ^= 1 << tile % 2;
      // It is free last.
      if (tile == 0) copy_last_of_query(p, places, cta, query_parity);
    }
    if (num_tiles(p) == 0) copy_last_of_query(p, places, cta, query_parity);
    query_parity ^= 1;
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

/// Maxima are taken before scaling; -inf times 0 is no number.
PB_DEVICE float magnitude(float scale) { return fmaxf(fabsf(scale), 1e-37f); }

template <int kCount>
PB_DEVICE void rescale(float (&o)[kCount], const float (&alpha)[2]) {
  if (!any_in_warp(alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
  PB_UNROLL
  for (int i = 0; i < kCount; ++i) o[i] *= alpha[i / 2 % 2];
}

/// The maxima of a tile's logits in a thread's rows, scaled and rounded up. Of what is no key the
/// logits become -inf, those of a negative scale their negatives.
PB_DEVICE void find_highest(float (&s)[32], float signed_scale, const ForwardShared& shared,
                            int place, const Fragment& f, float (&highest)[2]) {
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
    highest[half] = s[2 * half];
    PB_UNROLL
    for (int i = 2 * half; i < 32; i += 4)
      highest[half] = fmaxf(highest[half], fmaxf(s[i], s[i + 1]));
    highest[half] = ceilf(quad_max(highest[half]) * magnitude(signed_scale));
  }
}

/// Logits to P, for the products in `own` and in shared memory at `p`.
PB_DEVICE void soften(const float (&s)[32], float signed_scale, const Fragment& f, unsigned char* p,
                      Sums& sums, uint32_t (&own)[16]) {
  const float scale = magnitude(signed_scale);
  PB_UNROLL
  for (int i = 0; i < 32; i += 2) {
    const int half = i / 2 % 2;
    const float base = sums.base(half);
    const float first = exp2_flushed(fmaf(s[i], scale, -base));
    const float second = exp2_flushed(fmaf(s[i + 1], scale, -base));
    own[i / 2] = pack(first, second);
    sums.sum[half] += first + second;
    *reinterpret_cast<uint32_t*>(p + in_block(f.row + 8 * half, 2 * f.column(i))) = own[i / 2];
  }
}

/// P as it is multiplied, to the sums; not while it is an operand in registers.
PB_DEVICE void add_weights(const uint32_t (&own)[16], Sums& sums) {
  PB_UNROLL
  for (int i = 0; i < 16; ++i) sums.weight[i % 2] += low_of(own[i]) + high_of(own[i]);
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

/// From the sums over all keys: lse of a thread's rows, and what makes o a mean. A mean is taken
/// with the weights that the values were multiplied by: else what rounding does to the weight of a
/// key that holds most of the mass would stay in out, and so in Delta.
PB_DEVICE void close_sums(const Fragment& f, const Sums& sums, ForwardShared& shared,
                          float (&lse)[2], float (&inverse)[2]) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(sums.sum[half]), weight = quad_sum(sums.weight[half]);
    if (f.quad != 0) continue;
    shared.sum[f.warpgroup][f.row + 8 * half] = sum;
    shared.weight[f.warpgroup][f.row + 8 * half] = weight;
  }
  // Both warpgroups' sums are read next.
  named_barrier_sync(kSums, kConsumers);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    const float sum = shared.sum[0][row] + shared.sum[1][row];
    const float weight = shared.weight[0][row] + shared.weight[1][row];
    lse[half] = sum == 0.0f ? 0.0f : log2_of(sum) + sums.top[half];
    inverse[half] = sum == 0.0f ? 0.0f : 1.0f / weight;
  }
  // Where an item has one tile, nothing else keeps a warpgroup from writing the next one's before
  // the other has read these.
  named_barrier_sync(kSums, kConsumers);
}

/// out, what its rounding took, and lse.
template <int kHalf>
PB_DEVICE void store_forward(const SparseMla& p, const SparseMlaResults& r, const Cta& cta,
                             const Fragment& f, const Sums& sums, ForwardShared& shared,
                             const float (&o)[32 * kHalf]) {
  float lse[2], inverse[2];
  close_sums(f, sums, shared, lse, inverse);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    if (f.warpgroup == 0 && f.quad == 0 && row < cta.num_rows)
      r.lse[cta.first_row + row] = lse[half];
    const int64_t first = (cta.first_row + row) * p.head_dim_v;
    PB_UNROLL
    for (int m = 0; m < 2 * kHalf; ++m) {
      Chunk out, rest;
      PB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int i = 16 * m + 4 * j + 2 * half;
        const float low = o[i] * inverse[half], high = o[i + 1] * inverse[half];
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
PB_DEVICE void multiply_last(float (&s)[32], const uint32_t (&last)[16], uint32_t k) {
  PB_UNROLL
  for (int step = 0; step < 4; ++step)
    wgmma_of_registers<64, Major::kK>(s, last + 4 * step, smem_desc(k + step * kStepColumns), true);
}

/// Logits of the warpgroup's tile, part by part as they come. `num_left`: tiles, this one included.
template <int kHalf, int kMine>
PB_DEVICE void multiply_keys(float (&s)[32], const ForwardPlaces& places,
                             const uint32_t (&last)[16], int parity, int num_left) {
  const int before = places.blocks - 1;
  ForwardShared& shared = places.shared();
  const uint32_t q = places.query(), k = places.keys(kMine);
  PB_UNROLL
  for (float& logit : s) logit = 0;
  wgmma_fence(s);
  PB_ROLLED
  for (int i = 0; i < kParts; ++i) {
    const Part<kHalf> part(i, kMine);
    wait_for(shared.full[kMine][i], parity);
    // What others copied is what the products read.
    fence_async_proxy();
    dot_rows(s, q + part.begin * kBlockBytes, k + part.begin * kBlockBytes,
             (part.end < before ? part.end : before) - part.begin, true);
    if (part.begin <= before && before < part.end) multiply_last(s, last, k + before * kBlockBytes);
  }
  wgmma_commit();
  wgmma_wait(s);
  arrive_as_warp(shared.free[kMine][kNoValues]);
  if (num_left <= 2) arrive_as_warp(shared.query_free[0]);
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

/// Takes the other warpgroup's maxima; `alpha` is what o is worth.
template <int kHalf, int kMine>
PB_DEVICE void raise_to_others(const ForwardShared& shared, const Fragment& f, Share<kHalf>& share,
                               float (&alpha)[2]) {
  PB_UNROLL
  for (int half = 0; half < 2; ++half)
    share.sums.raise(half, shared.top[1 - kMine][f.row + 8 * half], alpha);
}

/// Starts to add the other warpgroup's last tile to o.
template <int kHalf, int kMine>
PB_DEVICE void add_others(const ForwardPlaces& places, Share<kHalf>& share) {
  wgmma_fence(share.o);
  multiply_rows<Major::kK, 64 * kHalf>(share.o, shared_address(places.weights(1 - kMine)),
                                       places.keys(1 - kMine) + kMine * kHalf * kBlockBytes, true);
  wgmma_commit();
}

/// Adds the other warpgroup's last tile, whose place is free then.
template <int kHalf, int kMine>
PB_DEVICE void finish_others(const ForwardPlaces& places, Share<kHalf>& share) {
  wgmma_wait(share.o);
  arrive_as_warp(places.shared().free[1 - kMine][kMine]);
}

/// Starts to add a tile of the warpgroup's own to o.
template <int kHalf, int kMine>
PB_DEVICE void add_own(const ForwardPlaces& places, const uint32_t (&own)[16],
                       Share<kHalf>& share) {
  wgmma_fence(share.o);
  PB_UNROLL
  for (int step = 0; step < kRows / 16; ++step)
    wgmma_of_registers<64 * kHalf, Major::kMn>(
        share.o, own + 4 * step,
        smem_desc(places.keys(kMine) + kMine * kHalf * kBlockBytes + step * kStepRows), true);
  wgmma_commit();
}

/// Adds one tile of the warpgroup's own, and the other's before or after it, if any. The second
/// forms its P as soon as the first's maxima are there.
template <int kHalf, int kMine>
PB_DEVICE void take_tile(const ForwardPlaces& places, Fragment& f, float scale,
                         const uint32_t (&last)[16], int parity, int num_left,
                         Share<kHalf>& share) {
  ForwardShared& shared = places.shared();
  float s[32], highest[2], others_alpha[2], alpha[2];
  uint32_t own[16];
  multiply_keys<kHalf, kMine>(s, places, last, parity, num_left);
  f.renew();
  find_highest(s, scale, shared, kMine, f, highest);
  if constexpr (kMine == 1) {
    named_barrier_sync(kTop, kConsumers);
    raise_to_others<kHalf, kMine>(shared, f, share, others_alpha);
  }
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    share.sums.raise(half, fmaxf(share.sums.top[half], highest[half]), alpha);
    if (f.quad == 0) shared.top[kMine][f.row + 8 * half] = share.sums.top[half];
  }
  if constexpr (kMine == 0) arrive_at(kTop, kConsumers);
  if constexpr (kMine == 0) rescale(share.o, alpha);
  if constexpr (kMine == 1) rescale(share.o, others_alpha);
  soften(s, scale, f, places.weights(kMine), share.sums, own);
  fence_async_proxy();
  arrive_at(kWeights + kMine, kConsumers);
  if constexpr (kMine == 1) {
    named_barrier_sync(kWeights, kConsumers);
    add_others<kHalf, kMine>(places, share);
    add_weights(own, share.sums);
    finish_others<kHalf, kMine>(places, share);
    rescale(share.o, alpha);
  }
  add_own<kHalf, kMine>(places, own, share);
  wgmma_wait(share.o, own);
  arrive_as_warp(shared.free[kMine][kMine]);
  if constexpr (kMine == 0) {
    add_weights(own, share.sums);
    if (num_left == 1) return;
    named_barrier_sync(kWeights + 1, kConsumers);
    raise_to_others<kHalf, kMine>(shared, f, share, others_alpha);
    rescale(share.o, others_alpha);
    add_others<kHalf, kMine>(places, share);
    finish_others<kHalf, kMine>(places, share);
  }
}

/// Adds the first warpgroup's last tile where the second has none after it.
template <int kHalf>
PB_DEVICE void take_last_of_first(const ForwardPlaces& places, const Fragment& f,
                                  Share<kHalf>& share) {
  float alpha[2];
  named_barrier_sync(kTop, kConsumers);
  raise_to_others<kHalf, 1>(places.shared(), f, share, alpha);
  rescale(share.o, alpha);
  named_barrier_sync(kWeights, kConsumers);
  add_others<kHalf, 1>(places, share);
  finish_others<kHalf, 1>(places, share);
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
    for (int tile = kMine; tile < num_tiles(p); tile += 2) {
      take_tile<kHalf, kMine>(places, f, scale, last, parity, num_tiles(p) - tile, share);
      parity ^= 1;
    }
    if (num_tiles(p) <= kMine) arrive_as_warp(shared.query_free[0]);
    // Of the second's P, which stands in the query's last block, nothing is read from here on.
    arrive_as_warp(shared.query_free[1]);
    if constexpr (kMine == 1)
      if (num_tiles(p) % 2 == 1) take_last_of_first<kHalf>(places, f, share);
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
  const int warpgroup = warp_broadcast(thread_index() / 128);
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
