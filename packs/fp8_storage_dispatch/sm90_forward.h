#pragma once
#include <cmath>
#include <cstdint>

#include "../kernel/sm90/softmax.h"
#include "kernel.cuh"

// The forward over keys of 656 bytes. Include the primitives first: packs/kernel/sm90/wgmma.cuh, or
// the emulator. Grid (seqlen_q, ceil(num_heads / 64), batch), 256 threads, one CTA per SM: 64 heads
// of one query; the keys come in tiles of 64.
//   S: e4m3 times e4m3 on the stored bytes, 128 columns at a time; each warpgroup has 32 keys, [64,
//   32] in 16 registers a thread. Hopper sums e4m3 products in fewer than 24 bits: after every 128
//   columns they are added to a float32 register, times the scale of that block. The rope, and the
//   whole of a bfloat16 query, are multiplied in bfloat16.
//   out: P V in bfloat16, each warpgroup 256 columns, 128 registers a thread, rescaled when row_max
//   grows. P is not converted to e4m3: that would cost 2^-4 of it, and wgmma would need V
//   contiguous along the keys. V is converted from the same bytes as they arrive, during the
//   product of the previous tile; the bytes of the next tile are loaded to 40 registers meanwhile.
// Shared memory: 27 blocks of 8 KiB (the query and one K tile as stored, two V tiles, P) and
// ForwardShared: 219 KiB.
// Rounded to bfloat16: P, V times its scale (exact if the scale is a power of two), out. The rest
// is float32.
namespace patchbench::ops::fp8_storage_dispatch {

// The names of the primitives and of the tiles.
using namespace sm90;  // NOLINT: all of it

/// Keys of 656 bytes with a query of e4m3, with a scale for each row or one for all, or with a
/// bfloat16 query.
enum class Form { kBlock, kBlockDenseQuery };

constexpr int kNopeBlocks = kHeadDimV / kScaleBlock;

// Layout of shared memory in blocks. A bfloat16 query takes nine blocks; then only the rope of the
// stored keys is needed, the last of five blocks.
constexpr uint32_t kAtQuery = 0, kAtKeys = 5 * kBlockBytes, kAtValues = 10 * kBlockBytes;
constexpr uint32_t kValueSize = 8 * kBlockBytes, kRopeBlock = kNopeBlocks * kBlockBytes;
constexpr uint32_t kAtP = kAtValues + 2 * kValueSize, kAtShared = kAtP + kBlockBytes;

struct ForwardShared {
  float scale[kNopeBlocks][kRows];  ///< of the keys
  float bias[kRows];                ///< 0, or -inf for an invalid index
  SoftmaxSmem softmax;
};
constexpr int64_t kForwardBytes = kAtShared + sizeof(ForwardShared);
static_assert(kForwardBytes <= 227 * 1024, "a CTA of sm_90 has 227 KiB");

/// The part of a row that a thread copies: 16 of every 64 bytes. Eight neighbouring threads have
/// rows of different parity that are four apart, so that neither the stored bytes nor the converted
/// ones cause bank conflicts.
struct RowSlice {
  int row, chunk;
  PB_DEVICE explicit RowSlice(int thread = thread_index())
      : row(thread / 4 ^ (thread / 4 % 2) << 2), chunk(thread % 4) {}
  /// Offset of this thread's bytes within piece `piece`, 64 bytes, of the row.
  PB_DEVICE uint32_t at(int piece) const {
    return static_cast<uint32_t>(piece / 2) * kBlockBytes +
           swizzled_offset(row, piece % 2 * 64 + chunk * 16);
  }
};

/// The work of a CTA: 64 heads of one query.
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

/// Sixteen e4m3, times `scale`, as bfloat16.
PB_DEVICE void e4m3_to_bf16(const Vec128& bytes, float scale, Vec128 (&wide)[2]) {
  PB_UNROLL
  for (int i = 0; i < 8; ++i) {
    float low, high;
    e4m3_to_f32(bytes.words[i / 2] >> i % 2 * 16, low, high);
    wide[i / 4].words[i % 4] = pack_bf16(low * scale, high * scale);
  }
}

/// Stores sixteen e4m3, times `scale`, as 32 bytes of bfloat16.
PB_DEVICE void store_as_bf16(uint32_t block, const RowSlice& slice, const Vec128& bytes,
                             float scale) {
  Vec128 wide[2];
  e4m3_to_bf16(bytes, scale, wide);
  PB_UNROLL
  for (int i = 0; i < 2; ++i)
    store_128(block + swizzled_offset(slice.row, 32 * slice.chunk + 16 * i), wide[i]);
}

/// Copies this thread's part of a row of 64 kPieces bytes unchanged; zeros if not is_row.
template <int kPieces>
PB_DEVICE void copy_row(const uint8_t* from, bool is_row, const RowSlice& slice, uint32_t to) {
  PB_UNROLL
  for (int piece = 0; piece < kPieces; ++piece)
    store_128(to + slice.at(piece), is_row ? load_128(from + piece * 64) : Vec128());
}

/// This thread's index of tile `tile`; -1 beyond topk.
PB_DEVICE int32_t index_at(const SparseMla& p, const Cta& cta, const RowSlice& slice,
                           int64_t tile) {
  const int64_t slot = tile * kRows + slice.row;
  return slot < p.topk ? p.indices[cta.query * p.topk + slot] : -1;
}

template <Form kForm>
PB_DEVICE void load_query(const SparseMla& p, const Cta& cta, const RowSlice& slice, uint32_t q) {
  constexpr int kPieces = kForm == Form::kBlockDenseQuery ? 18 : 9;
  const auto* from = static_cast<const uint8_t*>(p.q) +
                     (cta.first_row + slice.row) * (kPieces * 64) + slice.chunk * 16;
  const bool is_row = slice.row < cta.num_rows;
  copy_row<kForm == Form::kBlock ? 8 : kPieces>(from, is_row, slice, q);
  if constexpr (kForm == Form::kBlock)
    store_as_bf16(q + kRopeBlock, slice, is_row ? load_128(from + 8 * 64) : Vec128(), 1.0f);
}

/// This thread's part of one key, in registers.
template <Form kForm>
struct KeyPart {
  static constexpr int kPieces = 10;
  Vec128 bytes[kPieces];
  float scale[kNopeBlocks] = {};
  float bias = 0;

  /// Starts the loads of key `index`; zeros for an invalid index.
  PB_DEVICE void load(const SparseMla& p, const Cta& cta, const RowSlice& slice, int32_t index) {
    const bool is_key = index >= 0 && index < p.seqlen_k;
    const int64_t row = cta.batch * p.seqlen_k + index;
    bias = is_key ? 0.0f : -INFINITY;
    const uint8_t* from = p.kv + row * kBlockRowBytes;
    PB_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      // In the 656-byte layout the rope follows the scales.
      const int at = piece * 64 + (piece >= 8 ? 16 : 0) + slice.chunk * 16;
      bytes[piece] = is_key ? load_128(from + at) : Vec128();
    }
    PB_UNROLL
    for (int i = 0; i < kNopeBlocks; ++i)
      scale[i] = is_key ? reinterpret_cast<const float*>(from + kHeadDimV)[i] : 0.0f;
  }

  /// Stores one piece of the latent part as bfloat16, in the blocks from `to` on.
  PB_DEVICE void store_piece_as_bf16(int piece, const RowSlice& slice, uint32_t to) const {
    store_as_bf16(to + static_cast<uint32_t>(piece) * kBlockBytes, slice, bytes[piece],
                  scale[piece / 2 % kNopeBlocks]);
  }

  /// Stores the row twice: the bytes as they are, for S, and as bfloat16, for P V.
  PB_DEVICE void store(const RowSlice& slice, uint32_t keys, uint32_t values,
                       ForwardShared& shared) const {
    PB_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      if (kForm != Form::kBlockDenseQuery || piece >= 8)
        store_128(keys + slice.at(piece), bytes[piece]);
      if (piece < 8) store_piece_as_bf16(piece, slice, values);
    }
    if (slice.chunk != 0) return;
    shared.bias[slice.row] = bias;
    PB_UNROLL
    for (int i = 0; i < kNopeBlocks; ++i) shared.scale[i][slice.row] = scale[i];
  }
};

/// s = q k^T for the keys of this warpgroup, each block of a key times its scale. Also waits for
/// the product into `o`.
template <Form kForm>
PB_DEVICE void compute_logits(float (&s)[16], float (&o)[128], uint32_t base, uint32_t values,
                              const Fragment& f, const ForwardShared& shared) {
  const uint32_t q = base + kAtQuery;
  const uint32_t half = static_cast<uint32_t>(f.warpgroup) * 32 * kRowBytes;
  const uint32_t k = base + kAtKeys + half, v = values + half;
  if constexpr (kForm == Form::kBlockDenseQuery) {
    wgmma_fence(s);
    mma_abt(s, q, v, 8, false);
    mma_abt(s, q + kValueSize, k + kRopeBlock, 1, true);
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
        mma_abt(sum, q + at, k + at, 1, false);
      } else {
        PB_UNROLL
        for (uint32_t step = 0; step < kRowBytes; step += kStepColumns)
          wgmma_ss_e4m3<32>(sum, smem_desc(q + at + step), smem_desc(k + at + step), step > 0);
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

/// S to P: stores this warpgroup's half of P [64, 64] and returns in `alpha` the factor for earlier
/// sums. `scale`: of the thread's rows, to units of log2.
PB_DEVICE void softmax_tile(float (&s)[16], const float (&scale)[2], const Fragment& f,
                            ForwardShared& shared, unsigned char* p_tile, Softmax& state,
                            float (&alpha)[2]) {
  PB_UNROLL
  for (int i = 0; i < 16; ++i) s[i] = s[i] * scale[i / 2 % 2] + shared.bias[f.key(i)];
  float base[2];
  update_row_max(s, f, shared.softmax, state, base, alpha);
  PB_UNROLL
  for (int i = 0; i < 16; i += 2) {
    const int half = i / 2 % 2;
    const float first = exp2_of(s[i] - base[half]), second = exp2_of(s[i + 1] - base[half]);
    const uint32_t rounded = pack_bf16(first, second);
    state.row_sum[half] += first + second;
    state.rounded_sum[half] += bf16_low(rounded) + bf16_high(rounded);
    *reinterpret_cast<uint32_t*>(p_tile + swizzled_offset(f.row + 8 * half, 2 * f.key(i))) =
        rounded;
  }
}

/// Stores out and lse.
PB_DEVICE void store_forward(uint16_t* out, float* lse, const Cta& cta, const Fragment& f,
                             const Softmax& state, ForwardShared& shared, const float (&o)[128]) {
  float sums[2], inverse[2];
  finalize(f, state, shared.softmax, sums, inverse);
  PB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = f.row + 8 * half;
    if (row >= cta.num_rows) continue;
    if (f.warpgroup == 0 && f.quad == 0) lse[cta.first_row + row] = sums[half];
    uint16_t* const to = out + (cta.first_row + row) * kHeadDimV + f.warpgroup * 256;
    PB_UNROLL
    for (int i = 2 * half; i < 128; i += 4)
      *reinterpret_cast<uint32_t*>(to + f.column(i)) =
          pack_bf16(o[i] * inverse[half], o[i + 1] * inverse[half]);
  }
}

/// `storage`: kForwardBytes, aligned to 1024 bytes.
template <Form kForm>
PB_DEVICE void forward_cta(const SparseMla& p, uint16_t* out, float* lse, const Cta& cta,
                           unsigned char* storage) {
  const uint32_t base = shared_address(storage);
  ForwardShared& shared = *reinterpret_cast<ForwardShared*>(storage + kAtShared);
  const Fragment f;
  const RowSlice slice;
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
  load_query<kForm>(p, cta, slice, base + kAtQuery);
  KeyPart<kForm> part;
  part.load(p, cta, slice, index_at(p, cta, slice, 0));
  int32_t next = index_at(p, cta, slice, 1);
  float o[128] = {};
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const uint32_t values = base + kAtValues + static_cast<uint32_t>(tile % 2) * kValueSize;
    part.store(slice, base + kAtKeys, values, shared);
    fence_async_proxy();
    // All rows of the tile are read next.
    sync_threads();
    part.load(p, cta, slice, next);
    next = index_at(p, cta, slice, tile + 2);
    float s[16], alpha[2];
    compute_logits<kForm>(s, o, base, values, f, shared);
    softmax_tile(s, scale, f, shared, storage + kAtP, state, alpha);
    if (any_sync(alpha[0] != 1.0f || alpha[1] != 1.0f)) {
      PB_UNROLL
      for (int i = 0; i < 128; ++i) o[i] *= alpha[i / 2 % 2];
    }
    fence_async_proxy();
    // Each warpgroup reads both halves of P. The keys and scales are no longer read.
    sync_threads();
    wgmma_fence(o);
    const uint32_t v = values + static_cast<uint32_t>(f.warpgroup) * 4 * kBlockBytes;
    mma_ab<Major::kK, 256>(o, base + kAtP, v, true);
    wgmma_commit();
  }
  wgmma_wait(o);
  store_forward(out, lse, cta, f, state, shared, o);
}

}  // namespace patchbench::ops::fp8_storage_dispatch
