#pragma once
#include <cuda.h>
#include <cuda_bf16.h>

#include "../kernel/ptx.cuh"
#include "kernel.cuh"

/// Tiles of the kernels of this pack: how they lie in shared memory, and their copies by TMA and by
/// cp.async. Both bring the same bytes: rows of tokens behind the sequence's end are zeros.
namespace patchbench::ops::mamba3_mimo_smem_2d {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRows = 64;                     // (token, rank) of a chunk
constexpr int kRowsPerWarp = kRows / kWarps;  // 8: a warp's rows are whole tokens
constexpr int kStages = 4;                    // tiles of products in flight
constexpr unsigned kAll = 0xffffffffu;

/// Tensor maps of one launch; a tensor that TMA does not copy has an empty map.
struct Maps {
  CUtensorMap q, k, products;
  int operand_rank, product_rank;
};

/// Extents of the launch's tiles.
template <typename scalar_t, int kR, int kN>
struct Shape {
  static_assert(kRowsPerWarp % kR == 0, "a warp's rows must be whole tokens");
  static_assert(kN % 32 == 0 && kN <= 256, "a lane holds kN / 32 columns; a TMA box ends at 256");
  static constexpr int kChunk = kRows / kR, kTokens = kRowsPerWarp / kR;
  static constexpr int kColumns = kN / 32;  // of a lane
  static constexpr int kOperand = kRows * kN, kProducts = kRows * kR;
  static_assert(kProducts * sizeof(scalar_t) % 128 == 0, "TMA writes to 128-byte aligned tiles");
};

template <typename scalar_t, int kR, int kN>
struct Tiles {
  using shape_t = Shape<scalar_t, kR, kN>;
  alignas(128) scalar_t q[shape_t::kOperand];
  alignas(128) scalar_t k[shape_t::kOperand];
  alignas(128) scalar_t products[kStages][shape_t::kProducts];
  uint64_t operands_full, products_full[kStages];
};

// ---- TMA: sm_90a alone, for the other image is older PTX ----

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PB_TMA(...) __VA_ARGS__
#else
#define PB_TMA(...)
#endif

__device__ inline void init_barrier(uint64_t* barrier) {
  PB_TMA(asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier))
                      : "memory"));
}
/// The copies that follow see the barriers' first state.
__device__ inline void publish_barriers() {
  PB_TMA(asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"));
}
__device__ inline void expect_bytes(uint64_t* barrier, int bytes) {
  PB_TMA(asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory"));
}
__device__ inline void wait_for_phase(uint64_t* barrier, int phase) {
  PB_TMA(uint32_t is_done = 0; while (is_done == 0) asm volatile(
             "{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; "
             "selp.u32 %0, 1, 0, done; }"
             : "=r"(is_done)
             : "r"(shared_address(barrier)), "r"(phase)
             : "memory"));
}
/// What this thread wrote to shared memory is seen by the TMA stores after the next barrier.
__device__ inline void publish_writes() {
  PB_TMA(asm volatile("fence.proxy.async.shared::cta;" ::: "memory"));
}

/// Box coordinates, the fastest axis first; `rank` of them count.
struct Coordinates {
  int at[5];
};

__device__ inline void load_box(void* to, const CUtensorMap& map, int rank, Coordinates c,
                                uint64_t* barrier) {
#define PB_LOAD(dims, coordinates, ...)                                                            \
  PB_TMA(                                                                                          \
      asm volatile("cp.async.bulk.tensor." dims                                                    \
                   ".shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {" coordinates \
                   "}], [%2];" ::"r"(shared_address(to)),                                          \
                   "l"(&map), "r"(shared_address(barrier)), __VA_ARGS__                            \
                   : "memory"))
  if (rank == 3) {
    PB_LOAD("3d", "%3, %4, %5", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]));
  } else if (rank == 4) {
    PB_LOAD("4d", "%3, %4, %5, %6", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]));
  } else {
    PB_LOAD("5d", "%3, %4, %5, %6, %7", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]),
            "r"(c.at[4]));
  }
#undef PB_LOAD
}

/// Rows outside of the tensor are left out by the hardware.
__device__ inline void store_box(const void* from, const CUtensorMap& map, int rank,
                                 Coordinates c) {
#define PB_STORE(dims, coordinates, ...)                                                           \
  PB_TMA(asm volatile("cp.async.bulk.tensor." dims                                                 \
                      ".global.shared::cta.bulk_group [%0, {" coordinates "}], [%1];" ::"l"(&map), \
                      "r"(shared_address(from)), __VA_ARGS__                                       \
                      : "memory"))
  if (rank == 3) {
    PB_STORE("3d", "%2, %3, %4", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]));
  } else {
    PB_STORE("4d", "%2, %3, %4, %5", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]));
  }
#undef PB_STORE
  PB_TMA(asm volatile("cp.async.bulk.commit_group;" ::: "memory"));
}
/// All but the last kPending stores have read their tiles.
template <int kPending>
__device__ void wait_for_stores() {
  PB_TMA(asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory"));
}
#undef PB_TMA

// ---- spans of chunks ----

constexpr int64_t kEnoughCtas = 528;  // four an SM of an H200; spans must not depend on the device

__host__ __device__ int64_t chunks_of(const QkDot& problem) {
  const int64_t chunk = kRows / problem.num_ranks;
  return (problem.seqlen + chunk - 1) / chunk;
}
__host__ __device__ int64_t chunks_per_span(const QkDot& problem) {
  const int64_t wanted = (kEnoughCtas + problem.num_groups - 1) / problem.num_groups;
  return (problem.batch * chunks_of(problem) + wanted - 1) / wanted;
}

/// Where a chunk lies. Registers are short, and is_served keeps all of these below 2^31.
struct Place {
  int batch, group, token;
  int num_tokens;  // of the chunk that are in the sequence
};

/// The CTA's chunks, counted over all batch entries.
template <int kR>
struct Span {
  int first, end, group;
  __device__ explicit Span(const QkDot& problem) : group(static_cast<int>(blockIdx.y)) {
    const int64_t each = chunks_per_span(problem), from = blockIdx.x * each;
    first = static_cast<int>(from);
    end = static_cast<int>(min(from + each, problem.batch * chunks_of(problem)));
  }
  __device__ Place place(const QkDot& problem, int chunk) const {
    constexpr int kChunk = kRows / kR;
    const int seqlen = static_cast<int>(problem.seqlen);
    const int chunks = (seqlen + kChunk - 1) / kChunk, token = chunk % chunks * kChunk;
    return {chunk / chunks, group, token, min(kChunk, seqlen - token)};
  }
};

// ---- tiles ----

/// The operand tiles of a chunk: row t R + r is rank r of the chunk's token t.
template <typename scalar_t, int kR, int kN>
__device__ void load_operands(Tiles<scalar_t, kR, kN>& tiles, const QkDot& problem,
                              const Maps& maps, const Plan& plan, const Place& place) {
  if (plan.operands == Copy::kTma) {
    if (threadIdx.x != 0) return;
    expect_bytes(&tiles.operands_full, 2 * int{sizeof(tiles.q)});
    const int batch = place.batch, group = place.group, token = place.token;
    const Coordinates c = plan.layout == Layout::kFlat
                              ? Coordinates{{0, group, token * kR, batch, 0}}
                              : Coordinates{{0, group, 0, token, batch}};
    load_box(tiles.q, maps.q, maps.operand_rank, c, &tiles.operands_full);
    load_box(tiles.k, maps.k, maps.operand_rank, c, &tiles.operands_full);
    return;
  }
  constexpr int kUnit = 16 / int{sizeof(scalar_t)}, kUnits = kN / kUnit;
  const int64_t stride = problem.num_groups * kN;
  const int64_t first =
      (place.batch * problem.seqlen + place.token) * kR * stride + int64_t{place.group} * kN;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kUnits; i += kThreads) {
    const int row = i / kUnits, column = i % kUnits * kUnit;
    const bool is_valid = row < place.num_tokens * kR;
    const int64_t from = first + (is_valid ? row : 0) * stride + column;
    cp_async<16>(tiles.q + row * kN + column, static_cast<const scalar_t*>(problem.q) + from,
                 is_valid);
    cp_async<16>(tiles.k + row * kN + column, static_cast<const scalar_t*>(problem.k) + from,
                 is_valid);
  }
}

/// The bytes that one copy of a row of kBytes takes: 16 at most.
template <int kBytes>
constexpr int kUnitBytes = kBytes < 16 ? kBytes : 16;

/// Where a head's products of a chunk begin in memory.
template <int kR>
__device__ int64_t products_at(const QkDot& problem, const Place& place, int64_t head) {
  return ((place.batch * problem.num_heads + head) * problem.seqlen + place.token) * kR * kR;
}

template <int kR>
__device__ Coordinates products_box(const QkDot& problem, const Plan& plan, const Place& place,
                                    int64_t head) {
  const int matrix = static_cast<int>(place.batch * problem.num_heads + head);
  return plan.layout == Layout::kFlat ? Coordinates{{0, place.token, matrix, 0, 0}}
                                      : Coordinates{{0, 0, place.token, matrix, 0}};
}

/// A tile of products, row for row: a row is a token (flat) or a rank of one (rank 3).
template <typename scalar_t, int kR, int kN, int kRowBytes>
__device__ void load_product_rows(scalar_t* to, const scalar_t* from, int num_tokens) {
  constexpr int kUnit = kUnitBytes<kRowBytes>, kStep = kUnit / int{sizeof(scalar_t)};
  for (int i = static_cast<int>(threadIdx.x); i < Shape<scalar_t, kR, kN>::kProducts / kStep;
       i += kThreads) {
    const bool is_valid = i * kStep < num_tokens * kR * kR;
    cp_async<kUnit>(to + i * kStep, from + (is_valid ? i * kStep : 0), is_valid);
  }
}

template <typename scalar_t, int kR, int kN>
__device__ void load_products(Tiles<scalar_t, kR, kN>& tiles, int stage, const QkDot& problem,
                              const Maps& maps, const Plan& plan, const Place& place,
                              int64_t head) {
  scalar_t* to = tiles.products[stage];
  constexpr int kBytes = kR * int{sizeof(scalar_t)};
  if (plan.products == Copy::kTma) {
    if (threadIdx.x != 0) return;
    expect_bytes(&tiles.products_full[stage], int{sizeof(tiles.products[0])});
    load_box(to, maps.products, maps.product_rank, products_box<kR>(problem, plan, place, head),
             &tiles.products_full[stage]);
    return;
  }
  const auto* from =
      static_cast<const scalar_t*>(problem.grad_qk_dot) + products_at<kR>(problem, place, head);
  if (plan.layout == Layout::kFlat) {
    load_product_rows<scalar_t, kR, kN, kR * kBytes>(to, from, place.num_tokens);
  } else {
    load_product_rows<scalar_t, kR, kN, kBytes>(to, from, place.num_tokens);
  }
}

template <int kBytes>
struct Word;
template <>
struct Word<4> {
  using type = uint32_t;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

template <typename scalar_t, int kRowBytes>
__device__ void store_product_rows(scalar_t* to, const scalar_t* from, int count) {
  using word_t = typename Word<kUnitBytes<kRowBytes>>::type;
  const int num_words = count * int{sizeof(scalar_t)} / int{sizeof(word_t)};
  for (int i = static_cast<int>(threadIdx.x); i < num_words; i += kThreads)
    reinterpret_cast<word_t*>(to)[i] = reinterpret_cast<const word_t*>(from)[i];
}

/// The tile that all threads wrote, to memory. A barrier lies between, and `publish_writes`.
template <typename scalar_t, int kR, int kN>
__device__ void store_products(const Tiles<scalar_t, kR, kN>& tiles, int stage,
                               const QkDot& problem, const Maps& maps, const Plan& plan,
                               const Place& place, int64_t head) {
  const scalar_t* from = tiles.products[stage];
  constexpr int kBytes = kR * int{sizeof(scalar_t)};
  if (plan.products == Copy::kTma) {
    if (threadIdx.x == 0)
      store_box(from, maps.products, maps.product_rank,
                products_box<kR>(problem, plan, place, head));
    return;
  }
  auto* to = static_cast<scalar_t*>(problem.qk_dot) + products_at<kR>(problem, place, head);
  const int count = place.num_tokens * kR * kR;
  if (plan.layout == Layout::kFlat) {
    store_product_rows<scalar_t, kR * kBytes>(to, from, count);
  } else {
    store_product_rows<scalar_t, kBytes>(to, from, count);
  }
}

template <typename scalar_t, int kR, int kN>
__device__ void init_barriers(Tiles<scalar_t, kR, kN>& tiles) {
  if (threadIdx.x == 0) {
    init_barrier(&tiles.operands_full);
#pragma unroll
    for (int i = 0; i < kStages; ++i) init_barrier(&tiles.products_full[i]);
    publish_barriers();
  }
  // None waits for a barrier that is not there yet.
  __syncthreads();
}

/// Until the span's chunk of this index has its operands.
template <typename scalar_t, int kR, int kN>
__device__ void wait_for_operands(Tiles<scalar_t, kR, kN>& tiles, const Plan& plan, int index) {
  if (plan.operands == Copy::kTma) {
    wait_for_phase(&tiles.operands_full, index & 1);
  } else {
    cp_async_wait_group<0>();
    // Others' copies have landed too.
    __syncthreads();
  }
}

/// The tiles of products of a span, one (chunk, head) a step, kStages - 1 of them ahead.
template <typename scalar_t, int kR, int kN>
class ProductStream {
 public:
  __device__ ProductStream(Tiles<scalar_t, kR, kN>& tiles, const QkDot& problem, const Maps& maps,
                           const Plan& plan, const Span<kR>& span, int heads)
      : tiles_(tiles),
        problem_(problem),
        maps_(maps),
        plan_(plan),
        span_(span),
        heads_(heads),
        chunk_(span.first) {
    for (int stage = 0; stage < kStages - 1; ++stage) load(stage);
  }

  /// The tile of this step; the one of the step before may be written over from here on.
  __device__ const scalar_t* next() {
    const int stage = step_ % kStages;
    if (plan_.products == Copy::kTma) {
      wait_for_phase(&tiles_.products_full[stage], step_ / kStages & 1);
    } else {
      cp_async_wait_group<kStages - 2>();
    }
    // Others' copies have landed, and all have left the step before.
    __syncthreads();
    load((step_++ + kStages - 1) % kStages);
    return tiles_.products[stage];
  }

 private:
  __device__ void load(int stage) {
    if (chunk_ < span_.end) {
      load_products(tiles_, stage, problem_, maps_, plan_, span_.place(problem_, chunk_),
                    span_.group * heads_ + head_);
      if (++head_ == heads_) {
        head_ = 0;
        ++chunk_;
      }
    }
    // An empty group too: the waits count groups.
    cp_async_commit_group();
  }

  Tiles<scalar_t, kR, kN>& tiles_;
  const QkDot& problem_;
  const Maps& maps_;
  const Plan& plan_;
  const Span<kR>& span_;
  const int heads_;
  int chunk_;
  int head_ = 0, step_ = 0;
};

}  // namespace patchbench::ops::mamba3_mimo_smem_2d
