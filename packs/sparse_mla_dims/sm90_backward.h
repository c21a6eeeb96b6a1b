#pragma once
#include <cmath>
#include <cstdint>

#include "sm90_backward_shared.h"
#include "sm90_loads.h"

// The backward of bfloat16. Grid: num_items. 384 threads, one CTA per SM: 64 heads of one query;
// the keys come in tiles of 64. Three warpgroups:
//   Warpgroup 0 loads the query and the K tiles, computes S, P, dP and dS, and the first columns of
//   dQ.
//   Warpgroups 1 and 2 load grad_out and compute the other columns of dQ, and dKV, [64 keys, 64
//   columns] at a time, each of its own columns, added to memory in float32, 128 bytes of a row by
//   eight threads, 64 heads at once. The first block comes before dQ, so that adds go on meanwhile.
// dKV does not need K: while warpgroups 1 and 2 add, warpgroup 0 loads the next K tile and computes
// its dS. A tile without a valid index is skipped. grad_q goes through shared memory to memory.
// dKV sums over the heads that there are, in steps of 16. Delta is computed while warpgroup 0
// computes the first dP.
// The adds fill the queue of the SM to memory. Every other access waits in it, those to shared and
// local memory, too: an add less than 128 bytes wide, or a register spilled in warpgroup 0, delays
// all of them.
// grad_kv is summed with its columns in another order, see kGroupColumns: four columns of a
// thread are then consecutive.
// Registers of a thread: 32 for S, dP or a block of dKV, 32 for each block of dQ, and 24 for P in
// warpgroup 0. Shared memory: blocks of q, grad_out, one K tile, P, dS, and 1.5 KiB: 225.5 KiB at
// 576/512.
// Rounded to bfloat16: dS, grad_q, grad_kv, and P where it is multiplied; dS is formed with 24 bits
// of P, its exponent among them. Sums are float32.
namespace patchbench::ops::sparse_mla_dims {

constexpr int kGroupThreads = kBackwardThreads / 3;
/// Registers of a thread, by warpgroup.
constexpr int kRoleRegisters[] = {152, 192, 160};
static_assert(kRoleRegisters[0] + kRoleRegisters[1] + kRoleRegisters[2] <= 3 * kLaunchRegisters,
              "a warpgroup waits for ever for registers that the CTA was not launched with");
/// Of warpgroup 0 alone: kKReady: the K tile is complete; kDsStored: P and dS are stored. Of all:
/// kRowsReady: grad_out and lse are stored; kDeltaReady: Delta is stored; kDsReady: P and dS are
/// stored, or the last tile is done; kKFree: K is no longer read; kDsFree: P and dS are no longer
/// read; kGradQReady: grad_q is in shared memory.
enum RoleBarrier {
  kKReady = 1,
  kDsStored,
  kRowsReady,
  kDeltaReady,
  kDsReady,
  kKFree,
  kDsFree,
  kGradQReady
};
/// Stored as the first index of a tile after the last one: the loop ends.
constexpr int32_t kNoMoreTiles = -2;

/// The columns of a warpgroup, in blocks of 64.
template <int kBlocks, int kWarpgroup>
struct Columns {
  static constexpr int kFirst = kBlocks >= 9 ? 2 : 1;
  static constexpr int kSecond = (kBlocks - kFirst + 1) / 2;
  static constexpr int kDq = kWarpgroup == 0   ? kFirst
                             : kWarpgroup == 1 ? kSecond
                                               : kBlocks - kFirst - kSecond;
  static constexpr int kDqBegin = kWarpgroup == 0 ? 0 : kWarpgroup == 1 ? kFirst : kFirst + kSecond;
  /// Blocks of dKV. If the count is odd, each warpgroup has half of the last block, too.
  static constexpr int kDkv = kBlocks / 2;
  static constexpr bool kHasHalf = kBlocks % 2 == 1;
  static constexpr int kDkvBegin = kWarpgroup == 1 ? 0 : kDkv;
  static constexpr int kHalfBegin =
      (kBlocks - 1) * kColumns + (kWarpgroup == 1 ? 0 : kColumns / 2);  ///< column
};

using KeyLoader = RowLoader<0, kGroupThreads>;
using GradLoader = RowLoader<kGroupThreads, 2 * kGroupThreads>;

/// The slots of a tile, two a lane, the same in each warp.
struct TileSlots {
  int32_t slots[2];
  PB_DEVICE void read(const SparseMla& p, const Cta& cta, int64_t tile) {
    PB_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int64_t slot = tile * kRows + i * 32 + thread_index() % 32;
      const int32_t index = slot < p.topk ? p.indices[cta.query * p.topk + slot] : -1;
      slots[i] = index;
    }
  }
  PB_DEVICE bool has_key(const SparseMla& p) const {
    return any_sync((slots[0] >= 0 && slots[0] < p.seqlen_k) ||
                    (slots[1] >= 0 && slots[1] < p.seqlen_k));
  }
  /// The index of each row of the thread, -1 where it is invalid.
  PB_DEVICE void indices(const SparseMla& p, const KeyLoader& loader,
                         int32_t (&index)[KeyLoader::kEach]) const {
    PB_UNROLL
    for (int i = 0; i < KeyLoader::kEach; ++i) {
      const int row = loader.row(i);  // i < 2: below 32
      const int32_t slot = shfl_sync(slots[i / 2], row % 32);
      index[i] = slot < 0 || slot >= p.seqlen_k ? -1 : slot;
    }
  }
};

/// Steps of 16 heads that dKV of a CTA sums over: 1, 2 or 4. Other heads have a P and a dS of 0.
PB_CONSTEXPR int head_steps(int64_t num_heads) {
  return num_heads <= 16 ? 1 : num_heads <= 32 ? 2 : kRows / 16;
}

template <int kBlocks_, int kHeadSteps_>
struct Operands {
  static constexpr int kBlocks = kBlocks_, kHeadSteps = kHeadSteps_;
  static constexpr bool kIsScaled = false;
  const SparseMla& p;
  const SparseMlaGrads& g;
  Cta cta;
  BackwardSmem smem;

  /// `storage`: shared memory, aligned to 1024 bytes.
  PB_DEVICE Operands(const SparseMla& problem, const SparseMlaGrads& grads, const Cta& heads,
                     unsigned char* storage)
      : p(problem),
        g(grads),
        cta(heads),
        smem{num_blocks(problem.head_dim_qk), num_blocks(problem.head_dim_v), storage} {}
  PB_DEVICE void load_q_tile() const {
    const KeyLoader loader;
    loader.load_blocks<0, kBlocks>(loader.query_rows(p, cta), p.head_dim_qk, kBlocks,
                                   smem.q_tile());
  }
  /// Rows of head_dim_v columns: grad_out by warpgroups 1 and 2, out by warpgroup 0.
  template <typename Loader>
  PB_DEVICE void load_values(const Loader& loader, const uint16_t* rows, uint32_t to) const {
    loader.template load_blocks<0, kBlocks>(
        loader.head_rows(rows + cta.first_row * p.head_dim_v, p.head_dim_v, cta.num_rows),
        p.head_dim_v, smem.value_blocks, to);
  }
  PB_DEVICE void load_k_tile(const TileSlots& slots, int buffer) const {
    const KeyLoader loader;
    int32_t index[KeyLoader::kEach];
    slots.indices(p, loader, index);
    loader.store_indices(index, smem.shared().index[buffer]);
    loader.load_blocks<0, kBlocks>(loader.key_rows(p, cta, index), p.head_dim_qk, kBlocks,
                                   smem.k_tile());
  }
  PB_DEVICE float* grad_kv_sum() const {
    return g.grad_kv_sum + cta.batch * p.seqlen_k * p.head_dim_qk;
  }
  PB_DEVICE float query_scale(int /*row*/) const { return 1.0f; }
  PB_DEVICE float key_scale(int64_t /*tile*/, int /*key*/) const { return 1.0f; }
  PB_DEVICE float inverse_key_scale(int64_t /*tile*/, int /*key*/) const { return 1.0f; }
};

/// Delta of the heads of the CTA, four threads a head, by the 256 threads of warpgroups 1 and 2: 16
/// bytes a load, and 24 loads before the first value is used.
template <typename Operands>
PB_DEVICE void load_delta(const Operands& o) {
  constexpr int kEach = 8;
  const auto& g = o.g;
  const int thread = thread_index() - kGroupThreads, row = thread / 4, quarter = thread % 4;
  const bool has_rest = g.out_remainder != nullptr;
  const int64_t first = (o.cta.first_row + row) * o.p.head_dim_v;
  float delta = 0.0f;
  for (int begin = 8 * quarter; begin < o.p.head_dim_v; begin += 32 * kEach) {
    Vec128 grad_out[kEach], out[kEach], rest[kEach];
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int column = begin + 32 * i;
      if (row >= o.cta.num_rows || column >= o.p.head_dim_v) continue;
      grad_out[i] = load_128(g.grad_out + first + column);
      out[i] = load_128(g.out + first + column);
      if (has_rest) rest[i] = load_128(g.out_remainder + first + column);
    }
    PB_UNROLL
    for (int i = 0; i < kEach; ++i) add_dot(delta, grad_out[i], out[i], rest[i]);
  }
  delta = quad_sum(delta);
  if (quarter == 0) store_delta(o.smem.shared(), row, delta);
}

/// P of a thread, with 24 of its bits: 16 registers of upper halves and 8 of the next bytes.
struct PackedP {
  uint32_t high[16], low[8];
  PB_DEVICE explicit PackedP(const float (&p)[32]) {
    PB_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint32_t a = as_bits(p[4 * i]), b = as_bits(p[4 * i + 1]), c = as_bits(p[4 * i + 2]),
                     d = as_bits(p[4 * i + 3]);
      high[2 * i] = byte_perm(a, b, 0x7632);
      high[2 * i + 1] = byte_perm(c, d, 0x7632);
      low[i] = byte_perm(byte_perm(a, b, 0x51), byte_perm(c, d, 0x51), 0x5410);
    }
  }
  /// Elements 2 i and 2 i + 1. Bits that are not kept repeat those before them.
  PB_DEVICE void pair(int i, float& first, float& second) const {
    first = as_float(byte_perm(high[i], low[i / 2], i % 2 == 0 ? 0x1044 : 0x1066));
    second = as_float(byte_perm(high[i], low[i / 2], i % 2 == 0 ? 0x3255 : 0x3277));
  }
};

/// out is a mean of V with the rounded P, so sum_j rounded(P_j) (dP_j - Delta) is 0, and sum_j P_j
/// (dP_j - Delta) is not: an error that all keys of a row share. `shift` is what Delta lacks in a
/// tile: sum_j P_j (dP_j - Delta - shift) = sum_j rounded(P_j) (dP_j - Delta) over its keys.
PB_DEVICE void compute_shift(const PackedP& p, const float (&centered)[32], float (&shift)[2]) {
  float sum[2] = {}, excess[2] = {};
  PB_UNROLL
  for (int i = 0; i < 16; ++i) {
    float low, high;
    p.pair(i, low, high);
    const uint32_t rounded = pack_bf16(low, high);
    sum[i % 2] += low + high;
    excess[i % 2] += (low - bf16_low(rounded)) * centered[2 * i] +
                     (high - bf16_high(rounded)) * centered[2 * i + 1];
  }
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float whole = quad_sum(sum[half]);
    shift[half] = whole == 0.0f ? 0.0f : quad_sum(excess[half]) * rcp_approx(whole);
  }
}

/// P and dS of a tile, rounded and packed, from P and dP; adds dS to the sums of the rows.
template <typename Operands>
PB_DEVICE void compute_p_ds(PackedP& p, float (&grad_p)[32], const Operands& o, int count,
                            const Fragment& f, uint32_t (&p_pairs)[16], uint32_t (&ds_pairs)[16]) {
  BackwardShared& shared = o.smem.shared();
  float shift[2] = {}, factor[2], ds_factor[2], ds_sum[2] = {};
  PB_UNROLL
  for (int i = 0; i < 32; ++i)
    grad_p[i] = grad_p[i] * o.key_scale(count, f.column(i)) - shared.delta[f.row + i / 2 % 2 * 8];
  if constexpr (!Operands::kIsScaled) compute_shift(p, grad_p, shift);
  // Otherwise the compiler keeps P unpacked, in 32 registers, until it is used again.
  warpgroup_fence_operand(p.high);
  warpgroup_fence_operand(p.low);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    factor[half] = shared.p_factor[f.row + 8 * half];
    ds_factor[half] = o.p.softmax_scale * o.query_scale(f.row + 8 * half);
  }
  PB_UNROLL
  for (int i = 0; i < 16; ++i) {
    float low, high;
    p.pair(i, low, high);
    low *= factor[i % 2] * o.key_scale(count, f.column(2 * i));
    high *= factor[i % 2] * o.key_scale(count, f.column(2 * i + 1));
    p_pairs[i] = pack_bf16(low, high);
    ds_pairs[i] = pack_bf16(ds_factor[i % 2] * low * (grad_p[2 * i] - shift[i % 2]),
                            ds_factor[i % 2] * high * (grad_p[2 * i + 1] - shift[i % 2]));
    ds_sum[i % 2] += bf16_low(ds_pairs[i]) + bf16_high(ds_pairs[i]);
  }
  const bool is_rounded = o.g.out_remainder == nullptr;
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(ds_sum[half]);
    if (f.quad == 0 && !is_rounded) shared.ds_sum[f.row + 8 * half] += sum;
  }
}

/// Stores P and dS of a tile, for products.
PB_DEVICE void store_pairs(const BackwardSmem& smem, const Fragment& f,
                           const uint32_t (&p_pairs)[16], const uint32_t (&ds_pairs)[16]) {
  PB_UNROLL
  for (int i = 0; i < 16; ++i) {
    pair_at(smem.p_tile(), f, i) = p_pairs[i];
    pair_at(smem.ds_tile(), f, i) = ds_pairs[i];
  }
}

/// kCount blocks of columns of grad_q.
template <int kCount>
struct DqColumns {
  float d[kCount > 0 ? 32 * kCount : 1] = {};
  /// Issues the product of a tile; `k_tile` is the address of the first block.
  PB_DEVICE void issue(uint32_t ds_tile, uint32_t k_tile) {
    if constexpr (kCount > 0) {
      wgmma_fence(d);
      mma_ab<Major::kK, 64 * kCount>(d, ds_tile, k_tile, true);
    }
    wgmma_commit();
  }
};

/// P and dS of a tile, by warpgroup 0.
template <typename Operands>
PB_DEVICE void compute_tile(const Operands& o, int count, Fragment& f, uint32_t (&p_pairs)[16],
                            uint32_t (&ds_pairs)[16]) {
  const BackwardSmem& smem = o.smem;
  float d[32];
  wgmma_fence(d);
  mma_abt(d, smem.q_tile(), smem.k_tile(), Operands::kBlocks, false);
  wgmma_commit();
  wgmma_wait(d);
  // lse is read next, and grad_out by products.
  if (count == 0) named_barrier_sync(kRowsReady, kBackwardThreads);
  f.rematerialize();
  compute_p(d, o, count, smem.shared(), f);
  PackedP p(d);
  wgmma_fence(d);
  mma_abt(d, smem.grad_out_tile(), smem.k_tile(), smem.value_blocks, false);
  wgmma_commit();
  wgmma_wait(d);
  if (count == 0) named_barrier_sync(kDeltaReady, kBackwardThreads);
  f.rematerialize();
  compute_p_ds(p, d, o, count, f, p_pairs, ds_pairs);
}

/// Bytes of a row of grad_q in shared memory, in the place of q and up to 1 KiB of grad_out. Eight
/// rows lie in different banks.
PB_CONSTEXPR int grad_q_stride(int head_dim_qk) { return 2 * head_dim_qk + 16; }

/// Stores columns of grad_q to shared memory, from first_column on. has_out: out is in the place of
/// K, and ds_sum is taken back as in store_grad_q.
template <typename Operands, int kCount>
PB_DEVICE void stage_grad_q(const float (&d)[kCount], const Operands& o, int first_column,
                            bool has_out) {
  const Fragment f;
  const int lane = thread_index() % 32;
  const unsigned char* const out =
      o.smem.storage + (o.smem.blocks + o.smem.value_blocks) * kBlockBytes;
  const float(&sums)[kRows] = o.smem.shared().ds_sum;
  const float ds_sum[2] = {has_out ? sums[f.row] : 0.0f, has_out ? sums[f.row + 8] : 0.0f};
  // stmatrix stores four matrices, one for each word; a lane gives the address of one row.
  const uint32_t to = o.smem.q_tile() + lane / 16 * 16 +
                      (f.row / 16 * 16 + lane % 16) * grad_q_stride(o.p.head_dim_qk);
  PB_UNROLL
  for (int first = 0; first < kCount; first += 8) {
    const int column = first_column + 2 * first;
    if (column >= o.p.head_dim_qk) continue;
    uint32_t words[4];
    PB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int half = i % 2, at = first + 4 * (i / 2) + 2 * half;
      const int from = first_column + f.column(at);
      uint32_t mean = 0;
      if (has_out && column < o.p.head_dim_v)
        mean = *reinterpret_cast<const uint32_t*>(
            out + from / kColumns * kBlockBytes +
            swizzled_offset(f.row + 8 * half, 2 * (from % kColumns)));
      const float inverse = 1.0f / o.query_scale(f.row + 8 * half);
      words[i] = pack_bf16(inverse * d[at] - ds_sum[half] * bf16_low(mean),
                           inverse * d[at + 1] - ds_sum[half] * bf16_high(mean));
    }
    stmatrix(to + 2 * column, words);
  }
}

/// Copies grad_q from shared memory to memory. By all warpgroups.
template <typename Operands>
PB_DEVICE void copy_grad_q(const Operands& o) {
  fence_async_proxy();
  // The columns that all threads stored are read next.
  named_barrier_sync(kGradQReady, kBackwardThreads);
  const int row = thread_index(), width = o.p.head_dim_qk;
  if (row < o.cta.num_rows)
    bulk_store(o.g.grad_q + (o.cta.first_row + row) * width,
               o.smem.q_tile() + row * grad_q_stride(width), 2 * width);
}

/// Warpgroup 0: loads, P, dS and its columns of grad_q.
template <typename Operands>
PB_DEVICE void compute_ds_role(const Operands& o) {
  const BackwardSmem& smem = o.smem;
  BackwardShared& shared = smem.shared();
  const int64_t num_tiles = (o.p.topk + kRows - 1) / kRows;
  const uint32_t k = smem.k_tile();
  TileSlots slots;
  const auto find_tile = [&](int64_t tile) {
    while (tile < num_tiles && !slots.has_key(o.p)) {
      ++tile;
      slots.read(o.p, o.cta, tile);
    }
    return tile;
  };
  slots.read(o.p, o.cta, 0);
  o.load_q_tile();
  int64_t tile = find_tile(0);
  if (tile < num_tiles) o.load_k_tile(slots, 0);
  Fragment f;
  DqColumns<Columns<Operands::kBlocks, 0>::kDq> grad_q;
  int count = 0;
  for (; tile < num_tiles; ++count) {
    cp_async_wait_all();
    fence_async_proxy();
    // A thread has waited for its own copies alone; the products read the copies of all threads.
    named_barrier_sync(kKReady, kGroupThreads);
    slots.read(o.p, o.cta, tile + 1);
    uint32_t p_pairs[16], ds_pairs[16];
    compute_tile(o, count, f, p_pairs, ds_pairs);
    // Without it P and dS of the previous tile are overwritten while products read them.
    if (count > 0) named_barrier_sync(kDsFree, kBackwardThreads);
    store_pairs(smem, f, p_pairs, ds_pairs);
    fence_async_proxy();
    named_barrier_arrive(kDsReady, kBackwardThreads);
    // The product of this warpgroup reads the dS of all its threads.
    named_barrier_sync(kDsStored, kGroupThreads);
    grad_q.issue(shared_address(smem.ds_tile()), k);
    tile = find_tile(tile + 1);
    wgmma_wait(grad_q.d);
    // Without it the next K tile is copied over this one while products read it.
    named_barrier_sync(kKFree, kBackwardThreads);
    if (tile < num_tiles) {
      o.load_k_tile(slots, (count + 1) % 2);
    } else if (o.g.out_remainder != nullptr) {
      o.load_values(KeyLoader(), o.g.out, k);
    }
  }
  if (count > 0) {
    named_barrier_sync(kDsFree, kBackwardThreads);
  } else {
    named_barrier_sync(kRowsReady, kBackwardThreads);
    named_barrier_sync(kDeltaReady, kBackwardThreads);
  }
  if (thread_index() == 0) shared.index[count % 2][0] = kNoMoreTiles;
  cp_async_wait_all();
  named_barrier_arrive(kDsReady, kBackwardThreads);
  // The sums of dS and out are read next, by other threads than those that stored them.
  named_barrier_sync(kDsStored, kGroupThreads);
  stage_grad_q(grad_q.d, o, 0, count > 0 && o.g.out_remainder != nullptr);
  copy_grad_q(o);
}

/// The sums of grad_kv have their columns permuted in groups of 16: position 4 q + e is column 2 q
/// + e % 2 + 8 (e / 2). So are consecutive the columns that thread q of a quad has of a row.
constexpr int kGroupColumns = 16;

/// The rows to which a thread adds: two consecutive rows, and those 8 further.
PB_DEVICE int row_of_key(int i) {
  return thread_index() / 32 % 4 * 16 + thread_index() % 32 / 8 * 2 + i % 2 + i / 2 * 8;
}
PB_DEVICE void read_keys(const int32_t (&index)[kRows], int32_t (&keys)[4]) {
  PB_UNROLL
  for (int i = 0; i < 4; ++i) keys[i] = index[row_of_key(i)];
}

/// The adds go in kCount / 8 steps, of 32 columns of half of the rows. The first element that a
/// thread adds to row 0 or 1 of its two rows in a step:
template <int kCount>
PB_CONSTEXPR int first_element(int step, int row) {
  return 16 * (step % (kCount / 16)) + 2 * (step / (kCount / 16)) + 8 * row;
}
/// Threads of consecutive rows exchange half of their columns: a thread then has four columns of
/// each of two rows, and eight threads have 128 bytes of a row.
template <int kCount>
PB_DEVICE void exchange_columns(float (&d)[kCount], int step, bool is_odd) {
  PB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int even = first_element<kCount>(step, 0) + i / 2 * 4 + i % 2, odd = even + 8;
    const float other = shfl_xor_sync(is_odd ? d[even] : d[odd], 4);
    const float own = is_odd ? d[odd] : d[even];
    d[even] = is_odd ? other : own;
    d[odd] = is_odd ? own : other;
  }
}
struct One {
  PB_DEVICE float operator()(int /*row*/) const { return 1.0f; }
};
/// Adds row 0 or 1 of a step to memory, times factor(which of the four rows). `column`: the first
/// one of this thread.
template <int kCount, typename Factor>
PB_DEVICE void add_row(const float (&d)[kCount], int step, int row, int column, const SparseMla& p,
                       float* grad_kv_sum, const int32_t (&keys)[4], const Factor& factor) {
  const int which = step / (kCount / 16) * 2 + row;
  const int64_t key = keys[which];
  const int at = first_element<kCount>(step, row);
  const int offset = step % (kCount / 16) * 2 * kGroupColumns;
  if (key >= 0 && column + offset < p.head_dim_qk)
    atomic_add_f32x4(grad_kv_sum + key * p.head_dim_qk + column + offset, factor(which) * d[at],
                     factor(which) * d[at + 1], factor(which) * d[at + 4],
                     factor(which) * d[at + 5]);
}

/// Adds columns of dKV to memory: steps kBegin to kEnd - 1. An exchange stands between the adds of
/// two steps: more adds in a row would delay all other accesses.
template <int kBegin, int kEnd, int kCount, typename Factor>
PB_DEVICE void add_dkv(float (&d)[kCount], int first_column, const SparseMla& p, float* grad_kv_sum,
                       const int32_t (&keys)[4], const Factor& factor) {
  const int column = first_column + thread_index() % 8 * 4;
  const bool is_odd = thread_index() / 4 % 2 != 0;
  PB_UNROLL
  for (int step = kBegin; step < kEnd; ++step) {
    exchange_columns(d, step, is_odd);
    add_row(d, step, 0, column, p, grad_kv_sum, keys, factor);
    add_row(d, step, 1, column, p, grad_kv_sum, keys, factor);
  }
}
template <int kCount, typename Factor = One>
PB_DEVICE void add_dkv(float (&d)[kCount], int first_column, const SparseMla& p, float* grad_kv_sum,
                       const int32_t (&keys)[4], const Factor& factor = {}) {
  add_dkv<0, kCount / 8>(d, first_column, p, grad_kv_sum, keys, factor);
}

/// Stores group `group` of 16 columns of grad_kv, rounded and in the order of columns.
PB_DEVICE void store_grad_kv(const SparseMlaGrads& g, int64_t group) {
  Vec128 low, high;
  PB_UNROLL
  for (int quad = 0; quad < 4; ++quad) {
    const float* const sum = g.grad_kv_sum + group * kGroupColumns + 4 * quad;
    low.words[quad] = pack_bf16(sum[0], sum[1]);
    high.words[quad] = pack_bf16(sum[2], sum[3]);
  }
  store_128(g.grad_kv + group * kGroupColumns, low);
  store_128(g.grad_kv + group * kGroupColumns + 8, high);
}

/// Issues the products of kCount columns of dKV for each of the 64 keys; they are of one block, and
/// first_column is a multiple of 32.
template <int kHeadSteps, int kCount>
PB_DEVICE void issue_columns(float (&d)[kCount], const BackwardSmem& smem, int first_column) {
  const int block = first_column / kColumns;
  const uint32_t offset = block * kBlockBytes + 2 * (first_column % kColumns);
  wgmma_fence(d);
  mma_ab<Major::kMn, 2 * kCount, kHeadSteps>(d, shared_address(smem.ds_tile()),
                                             smem.q_tile() + offset, false);
  if (block < smem.value_blocks)
    mma_ab<Major::kMn, 2 * kCount, kHeadSteps>(d, shared_address(smem.p_tile()),
                                               smem.grad_out_tile() + offset, true);
  wgmma_commit();
}

/// Warpgroups 1 and 2: their columns of grad_q and of grad_kv.
template <int kWarpgroup, typename Operands>
PB_DEVICE void accumulate_role(const Operands& o) {
  using Mine = Columns<Operands::kBlocks, kWarpgroup>;
  const BackwardSmem& smem = o.smem;
  o.load_values(GradLoader(), o.g.grad_out, smem.grad_out_tile());
  const int row = thread_index() - kWarpgroup * kGroupThreads;
  if (kWarpgroup == 1 && row < kRows) store_base(o, smem.shared(), row);
  cp_async_wait_all();
  fence_async_proxy();
  named_barrier_arrive(kRowsReady, kBackwardThreads);
  load_delta(o);
  named_barrier_arrive(kDeltaReady, kBackwardThreads);
  DqColumns<Mine::kDq> grad_q;
  int count = 0;
  for (;; ++count) {
    named_barrier_sync(kDsReady, kBackwardThreads);
    const int32_t(&index)[kRows] = smem.shared().index[count % 2];
    if (index[0] == kNoMoreTiles) break;
    const auto inverse = [&](int which) { return o.inverse_key_scale(count, row_of_key(which)); };
    // Adds go on while dQ is computed: half of the first block, so that K is free when dQ is done.
    float d[32];
    // Read for each block: kept, they would not leave enough registers.
    int32_t keys[4];
    if constexpr (Mine::kDkv > 0)
      issue_columns<Operands::kHeadSteps>(d, smem, Mine::kDkvBegin * kColumns);
    grad_q.issue(shared_address(smem.ds_tile()), smem.k_tile() + Mine::kDqBegin * kBlockBytes);
    if constexpr (Mine::kDkv > 0) {
      wgmma_wait<1>(d);
      read_keys(index, keys);
      add_dkv<0, 2>(d, Mine::kDkvBegin * kColumns, o.p, o.grad_kv_sum(), keys, inverse);
    }
    wgmma_wait(grad_q.d);
    named_barrier_arrive(kKFree, kBackwardThreads);
    if constexpr (Operands::kBlocks == 2) named_barrier_arrive(kDsFree, kBackwardThreads);
    if constexpr (Mine::kDkv > 0)
      add_dkv<2, 4>(d, Mine::kDkvBegin * kColumns, o.p, o.grad_kv_sum(), keys, inverse);
    PB_ROLLED
    for (int block = Mine::kDkvBegin + 1; block < Mine::kDkvBegin + Mine::kDkv; ++block) {
      issue_columns<Operands::kHeadSteps>(d, smem, block * kColumns);
      wgmma_wait(d);
      if (!Mine::kHasHalf && block + 1 == Mine::kDkvBegin + Mine::kDkv)
        named_barrier_arrive(kDsFree, kBackwardThreads);
      read_keys(index, keys);
      add_dkv(d, block * kColumns, o.p, o.grad_kv_sum(), keys, inverse);
    }
    if constexpr (Mine::kHasHalf) {
      float half[16];
      issue_columns<Operands::kHeadSteps>(half, smem, Mine::kHalfBegin);
      wgmma_wait(half);
      named_barrier_arrive(kDsFree, kBackwardThreads);
      read_keys(index, keys);
      add_dkv(half, Mine::kHalfBegin, o.p, o.grad_kv_sum(), keys, inverse);
    }
  }
  if constexpr (Mine::kDq > 0)
    stage_grad_q(grad_q.d, o, Mine::kDqBegin * kColumns, count > 0 && o.g.out_remainder != nullptr);
  copy_grad_q(o);
}

/// The storage of `o`: backward_bytes, aligned to 1024 bytes.
template <typename Operands>
PB_DEVICE void backward_cta(const Operands& o) {
  const int warpgroup = warp_broadcast(thread_index() / kGroupThreads);
  if (warpgroup == 0) {
    warpgroup_reg_dealloc<kRoleRegisters[0]>();
    compute_ds_role(o);
  } else if (warpgroup == 1) {
    warpgroup_reg_alloc<kRoleRegisters[1]>();
    accumulate_role<1>(o);
  } else {
    warpgroup_reg_dealloc<kRoleRegisters[2]>();
    accumulate_role<2>(o);
  }
}

}  // namespace patchbench::ops::sparse_mla_dims
