#pragma once
#include <cmath>
#include <cstdint>

#include "../kernel/sm90/layout.h"
#include "kernel.cuh"

// The forward over keys of 656 bytes. Include the primitives first: packs/kernel/sm90/wgmma.cuh, or
// a host's own. Grid (seqlen_q, ceil(num_heads / 64), batch), 256 threads, one CTA per SM: 64 heads
// of one query, whose keys pass by in tiles of 64.
//   Logits: e4m3 times e4m3, the stored bytes themselves, 128 columns at a time; each warpgroup
//   those of 32 keys, [64, 32] in 16 registers a thread. Hopper sums e4m3 products in fewer than
//   24 bits: every 128 columns they are added to a float32 register, times the scale of that block.
//   The rope, and all of a bfloat16 query, in bfloat16.
//   out: P V in bfloat16, each warpgroup 256 columns, 128 registers a thread, rescaled when a row's
//   maximum grows. P is not made e4m3: that costs 2^-4 of it, and V would have to lie along its
//   keys, for wgmma takes no other e4m3. V is widened from the same bytes as they arrive, while the
//   product of the tile before is under way; the bytes of the tile after are under way to 40
//   registers meanwhile.
// Shared memory: 27 blocks of 8 KiB (query and one tile of keys as stored, two of V, P) and the
// struct below: 219 KiB.
// Rounded to bfloat16: P, V times its scale (exact if that is a power of two), out. The rest is
// float32.
namespace patchbench::ops::fp8_storage_dispatch {

// The names of the primitives and of the tiles.
using namespace sm90;  // NOLINT: all of it

/// Keys of 656 bytes beside a query of e4m3 with a scale for each row or for all, or beside a
/// bfloat16 one.
enum class Form { kBlock, kBlockDenseQuery };

constexpr int kNopeBlocks = kHeadDimV / kScaleBlock;

// Blocks of shared memory. A bfloat16 query takes nine; of the stored keys only the rope, the last
// of five, is then wanted.
constexpr uint32_t kAtQuery = 0, kAtKeys = 5 * kBlockBytes, kAtValues = 10 * kBlockBytes;
constexpr uint32_t kValueSize = 8 * kBlockBytes, kRopeBlock = kNopeBlocks * kBlockBytes;
constexpr uint32_t kAtWeights = kAtValues + 2 * kValueSize, kAtShared = kAtWeights + kBlockBytes;

struct ForwardShared {
  float scale[kNopeBlocks][kRows];  ///< of the keys
  float bias[kRows];                ///< 0, or -inf where a slot names no key
  SoftmaxShared softmax;
};
constexpr int64_t kForwardBytes = kAtShared + sizeof(ForwardShared);
static_assert(kForwardBytes <= 227 * 1024, "a CTA of sm_90 has 227 KiB");

/// What a thread copies: 16 of every 64 bytes of one row. Eight neighbours have rows that differ in
/// parity and by four, so that neither their stored bytes nor what is widened from them collide.
struct Place {
  int row, chunk;
  PB_DEVICE Place()
      : row(thread_index() / 4 ^ (thread_index() / 4 % 2) << 2), chunk(thread_index() % 4) {}
  /// Of the 64 bytes `piece` of the row.
  PB_DEVICE uint32_t at(int piece) const {
    return static_cast<uint32_t>(piece / 2) * kBlockBytes +
           in_block(row, piece % 2 * 64 + chunk * 16);
  }
};

/// 64 heads of one query, for which a CTA works.
struct Cta {
  int64_t batch, query;  // query: in [0, batch * seqlen_q)
  int64_t first_row;     // of [batch * seqlen_q * num_heads]
  int num_rows;
  PB_DEVICE Cta(const SparseMla& p, int64_t x, int64_t y, int64_t z)
      : batch(z), query(z * p.seqlen_q + x), first_row(query * p.num_heads + y * kRows) {
    const int64_t left = p.num_heads - y * kRows;
    num_rows = static_cast<int>(left < kRows ? left : kRows);
  }
};

/// Sixteen e4m3, times `scale`, as the 32 bytes of bfloat16 at this thread's place in a block.
PB_DEVICE void store_wide(uint32_t block, const Place& place, const Chunk& bytes, float scale) {
  Chunk wide[2];
  PB_UNROLL
  for (int i = 0; i < 8; ++i) {
    float low, high;
    decode(bytes.words[i / 2] >> i % 2 * 16, low, high);
    wide[i / 4].words[i % 4] = pack(low * scale, high * scale);
  }
  PB_UNROLL
  for (int i = 0; i < 2; ++i)
    store_chunk(block + in_block(place.row, 32 * place.chunk + 16 * i), wide[i]);
}

/// A thread's part of 64 kPieces bytes of a row, which starts at `from`, as they are; zeros where
/// there is none.
template <int kPieces>
PB_DEVICE void copy_row(const uint8_t* from, bool is_row, const Place& place, uint32_t to) {
  PB_UNROLL
  for (int piece = 0; piece < kPieces; ++piece)
    store_chunk(to + place.at(piece), is_row ? load_chunk(from + piece * 64) : Chunk());
}

/// What stands in the thread's slot of a tile; -1 beyond the last.
PB_DEVICE int32_t slot_of(const SparseMla& p, const Cta& cta, const Place& place, int64_t tile) {
  const int64_t slot = tile * kRows + place.row;
  return slot < p.topk ? p.indices[cta.query * p.topk + slot] : -1;
}

template <Form kForm>
PB_DEVICE void load_query(const SparseMla& p, const Cta& cta, const Place& place, uint32_t q) {
  constexpr int kPieces = kForm == Form::kBlockDenseQuery ? 18 : 9;
  const auto* from = static_cast<const uint8_t*>(p.q) +
                     (cta.first_row + place.row) * (kPieces * 64) + place.chunk * 16;
  const bool is_row = place.row < cta.num_rows;
  copy_row<kForm == Form::kBlock ? 8 : kPieces>(from, is_row, place, q);
  if constexpr (kForm == Form::kBlock)
    store_wide(q + kRopeBlock, place, is_row ? load_chunk(from + 8 * 64) : Chunk(), 1.0f);
}

/// A thread's part of one key, on its way.
template <Form kForm>
struct KeyPart {
  static constexpr int kPieces = 10;
  Chunk bytes[kPieces];
  float scale[kNopeBlocks] = {};
  float bias = 0;

  /// Starts the loads of key `index`; zeros where there is none.
  PB_DEVICE void load(const SparseMla& p, const Cta& cta, const Place& place, int32_t index) {
    const bool is_key = index >= 0 && index < p.seqlen_k;
    const int64_t row = cta.batch * p.seqlen_k + index;
    bias = is_key ? 0.0f : -INFINITY;
    const uint8_t* from = p.kv + row * kBlockRowBytes;
    PB_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      // The rope of 656 bytes follows the scales.
      const int at = piece * 64 + (piece >= 8 ? 16 : 0) + place.chunk * 16;
      bytes[piece] = is_key ? load_chunk(from + at) : Chunk();
    }
    PB_UNROLL
    for (int i = 0; i < kNopeBlocks; ++i)
      scale[i] = is_key ? reinterpret_cast<const float*>(from + kHeadDimV)[i] : 0.0f;
  }

  /// A latent piece to shared memory, widened, blocks from `to` on.
  PB_DEVICE void store_wide_piece(int piece, const Place& place, uint32_t to) const {
    store_wide(to + static_cast<uint32_t>(piece) * kBlockBytes, place, bytes[piece],
               scale[piece / 2 % kNopeBlocks]);
  }

  /// All widened.
  PB_DEVICE void store_wide_row(const Place& place, uint32_t to) const {
    PB_UNROLL
    for (int piece = 0; piece < 2 * kNopeBlocks; ++piece) store_wide_piece(piece, place, to);
    PB_UNROLL
    for (int piece = 2 * kNopeBlocks; piece < kPieces; ++piece)
      store_chunk(to + kNopeBlocks * kBlockBytes + place.at(piece), bytes[piece]);
  }

  /// To shared memory: as stored, and widened.
  PB_DEVICE void store(const Place& place, uint32_t keys, uint32_t values,
                       ForwardShared& shared) const {
    PB_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      if (kForm != Form::kBlockDenseQuery || piece >= 8)
        store_chunk(keys + place.at(piece), bytes[piece]);
      if (piece < 8) store_wide_piece(piece, place, values);
    }
    if (place.chunk != 0) return;
    shared.bias[place.row] = bias;
    PB_UNROLL
    for (int i = 0; i < kNopeBlocks; ++i) shared.scale[i][place.row] = scale[i];
  }
};

/// s = q k^T for this warpgroup's keys, each block of a key times its scale. Waits for the product
/// that `o` is in, too.
template <Form kForm>
PB_DEVICE void dot_keys(float (&s)[16], float (&o)[128], uint32_t base, uint32_t values,
                        const Fragment& f, const ForwardShared& shared) {
  const uint32_t q = base + kAtQuery;
  const uint32_t half = static_cast<uint32_t>(f.warpgroup) * 32 * kRowBytes;
  const uint32_t k = base + kAtKeys + half, v = values + half;
  if constexpr (kForm == Form::kBlockDenseQuery) {
    wgmma_fence(s);
    dot_rows(s, q, v, 8, false);
    dot_rows(s, q + kValueSize, k + kRopeBlock, 1, true);
    wgmma_commit();
    wgmma_wait(s, o);
  } else {
    PB_UNROLL
    for (int block = 0; block <= kNopeBlocks; ++block) {
      const bool is_rope = block == kNopeBlocks;
      const uint32_t at = static_cast<uint32_t>(block) * kBlockBytes;
      float sum[16];
      wgmma_fence(sum);
      if (is_rope) {
        dot_rows(sum, q + at, k + at, 1, false);
      } else {
        PB_UNROLL
        for (uint32_t step = 0; step < kRowBytes; step += kStepColumns)
          wgmma_e4m3<32>(sum, smem_desc(q + at + step), smem_desc(k + at + step), step > 0);
      }
      wgmma_commit();
      wgmma_wait(sum, o);
      PB_UNROLL
      for (int i = 0; i < 16; ++i) {
        const float scale = is_rope ? 1.0f : shared.scale[block][f.key(i)];
        s[i] = block == 0 ? sum[i] * scale : s[i] + sum[i] * scale;
      }
    }
  }
}

/// Logits to P: writes the warpgroup's half of P [64, 64] and returns in `alpha` what earlier sums
/// are worth. `scale` is of the thread's rows, to units of log2.
PB_DEVICE void soften(float (&s)[16], const float (&scale)[2], const Fragment& f,
                      ForwardShared& shared, unsigned char* weights, Softmax& state,
                      float (&alpha)[2]) {
  PB_UNROLL
  for (int i = 0; i < 16; ++i) s[i] = s[i] * scale[i / 2 % 2] + shared.bias[f.key(i)];
  float base[2];
  raise_top(s, f, shared.softmax, state, base, alpha);
  PB_UNROLL
  for (int i = 0; i < 16; i += 2) {
    const int half = i / 2 % 2;
    const float first = exp2_of(s[i] - base[half]), second = exp2_of(s[i + 1] - base[half]);
    const uint32_t rounded = pack(first, second);
    state.sum[half] += first + second;
    state.weight[half] += low_of(rounded) + high_of(rounded);
    *reinterpret_cast<uint32_t*>(weights + in_block(f.row + 8 * half, 2 * f.key(i))) = rounded;
  }
}

/// out and lse, from the sums over all keys.
PB_DEVICE void store_forward(uint16_t* out, float* lse, const Cta& cta, const Fragment& f,
                             const Softmax& state, ForwardShared& shared, const float (&o)[128]) {
  float sums[2], inverse[2];
  finish(f, state, shared.softmax, sums, inverse);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    if (row >= cta.num_rows) continue;
    if (f.warpgroup == 0 && f.quad == 0) lse[cta.first_row + row] = sums[half];
    uint16_t* const to = out + (cta.first_row + row) * kHeadDimV + f.warpgroup * 256;
    PB_UNROLL
    for (int i = 2 * half; i < 128; i += 4)
      *reinterpret_cast<uint32_t*>(to + f.column(i)) =
          pack(o[i] * inverse[half], o[i + 1] * inverse[half]);
  }
}

/// `storage`: kForwardBytes at a multiple of 1024.
template <Form kForm>
PB_DEVICE void forward_cta(const SparseMla& p, uint16_t* out, float* lse, const Cta& cta,
                           unsigned char* storage) {
  const uint32_t base = shared_address(storage);
  ForwardShared& shared = *reinterpret_cast<ForwardShared*>(storage + kAtShared);
  const Fragment f;
  const Place place;
  const int64_t num_tiles = (p.topk + kRows - 1) / kRows;
  Softmax state;
  float scale[2];
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t row = f.row + 8 * half;
    const float query_scale = kForm == Form::kBlockDenseQuery || row >= cta.num_rows
                                  ? 1.0f
                                  : p.q_scale[(cta.first_row + row) * p.q_scale_stride];
    scale[half] = query_scale * p.softmax_scale * kLog2e;
  }
  load_query<kForm>(p, cta, place, base + kAtQuery);
  KeyPart<kForm> part;
  part.load(p, cta, place, slot_of(p, cta, place, 0));
  int32_t next = slot_of(p, cta, place, 1);
  float o[128] = {};
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const uint32_t values = base + kAtValues + static_cast<uint32_t>(tile % 2) * kValueSize;
    part.store(place, base + kAtKeys, values, shared);
    fence_async_proxy();
    // All rows of the tile are multiplied next.
    sync_threads();
    part.load(p, cta, place, next);
    next = slot_of(p, cta, place, tile + 2);
    float s[16], alpha[2];
    dot_keys<kForm>(s, o, base, values, f, shared);
    soften(s, scale, f, shared, storage + kAtWeights, state, alpha);
    if (any_in_warp(alpha[0] != 1.0f || alpha[1] != 1.0f)) {
      PB_UNROLL
      for (int i = 0; i < 128; ++i) o[i] *= alpha[i / 2 % 2];
    }
    fence_async_proxy();
    // Each warpgroup multiplies by both halves of P; keys and scales have been read.
    sync_threads();
    wgmma_fence(o);
    const uint32_t v = values + static_cast<uint32_t>(f.warpgroup) * 4 * kBlockBytes;
    multiply_rows<Major::kK, 256>(o, base + kAtWeights, v, true);
    wgmma_commit();
  }
  wgmma_wait(o);
  store_forward(out, lse, cta, f, state, shared, o);
}

}  // namespace patchbench::ops::fp8_storage_dispatch
