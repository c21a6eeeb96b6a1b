#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "packs/sm90_machine.h"

/// Host versions of the CUDA primitives in packs/kernel/sm90 (ptx, barrier, wgmma). They run on a
/// machine of fibers.
#define PB_DEVICE inline
#define PB_CONSTEXPR constexpr
#define PB_UNROLL
#define PB_ROLLED

namespace patchbench::ops::sm90 {

using sm90_emulator::Machine;

inline int thread_index() { return Machine::running().thread(); }
inline int reread_thread_index() { return thread_index(); }
inline int warp_broadcast(int value) { return value; }
inline void sync_threads() {
  Machine::running().meet(Machine::running().num_threads(), [] {});
}
inline void sync_warp() {
  Machine::running().meet(Machine::kWarp, [] {});
}
inline void named_barrier_sync(int id, int count) { Machine::running().meet_at(id, count, true); }
inline void named_barrier_arrive(int id, int count) {
  Machine::running().meet_at(id, count, false);
}
template <int kCount>
void warpgroup_reg_dealloc() {}
template <int kCount>
void warpgroup_reg_alloc() {}
template <typename T>
T shfl_xor_sync(T value, int mask) {
  return std::bit_cast<T>(Machine::running().shuffle(std::bit_cast<uint32_t>(value), mask));
}
inline int shfl_sync(int value, int lane) {
  return static_cast<int>(Machine::running().shfl_sync(static_cast<uint32_t>(value), lane));
}
inline int max_sync(int value) {
  for (int mask = 1; mask < Machine::kWarp; mask *= 2)
    value = std::max(value, shfl_xor_sync(value, mask));
  return value;
}
inline bool any_sync(bool value) {
  float any = value ? 1.0f : 0.0f;
  for (int mask = 1; mask < Machine::kWarp; mask *= 2) any += shfl_xor_sync(any, mask);
  return any != 0;
}
inline float exp2_of(float value) { return std::exp2(value); }
inline float exp2_ftz(float value) { return value < -126 ? 0.0f : std::exp2(value); }
inline float log2_of(float value) { return std::log2(value); }
inline float rcp_approx(float value) { return 1.0f / value; }
inline void sincos_approx(float angle, float& sine, float& cosine) {
  sine = std::sin(angle);
  cosine = std::cos(angle);
}

inline uint32_t as_bits(float value) { return std::bit_cast<uint32_t>(value); }
inline float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = a | uint64_t{b} << 32;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i)
    bytes |= static_cast<uint32_t>(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return bytes;
}

inline float bf16_low(uint32_t pair) {
  return c10::detail::f32_from_bits(static_cast<uint16_t>(pair));
}
inline float bf16_high(uint32_t pair) { return bf16_low(pair >> 16); }
inline uint32_t pack_bf16(float low, float high) {
  return c10::BFloat16(low).x | static_cast<uint32_t>(c10::BFloat16(high).x) << 16;
}

inline uint32_t pack_f16(float low, float high) {
  return c10::Half(low).x | static_cast<uint32_t>(c10::Half(high).x) << 16;
}
inline void e4m3_to_f16(uint32_t bytes, uint32_t& even, uint32_t& odd) {
  const auto value = [&](int i) {
    return c10::detail::fp8e4m3fn_to_fp32_value(static_cast<uint8_t>(bytes >> 8 * i));
  };
  even = pack_f16(value(0), value(2));
  odd = pack_f16(value(1), value(3));
}

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) -
                               Machine::running().shared());
}
inline void e4m3_to_f32(uint32_t bytes, float& low, float& high) {
  low = c10::detail::fp8e4m3fn_to_fp32_value(static_cast<uint8_t>(bytes));
  high = c10::detail::fp8e4m3fn_to_fp32_value(static_cast<uint8_t>(bytes >> 8));
}

struct alignas(16) Vec128 {
  uint32_t words[4] = {};
};
inline Vec128 load_128(const void* from) {
  Vec128 c;
  std::memcpy(c.words, from, sizeof(c.words));
  return c;
}
inline void store_128(uint32_t to, const Vec128& c) {
  std::memcpy(Machine::running().shared() + to, c.words, sizeof(c.words));
}
inline void store_128(void* to, const Vec128& c) { std::memcpy(to, c.words, sizeof(c.words)); }
inline Vec128 load_shared_128(uint32_t from) {
  return load_128(Machine::running().shared() + from);
}
inline void ldmatrix(uint32_t (&words)[4], uint32_t from) {
  Machine::running().ldmatrix(words, from);
}
inline void ldmatrix_trans(uint32_t (&words)[4], uint32_t from) {
  Machine::running().ldmatrix_trans(words, from);
}
inline void stmatrix(uint32_t to, const uint32_t* words) { Machine::running().stmatrix(to, words); }
inline int cluster_rank() { return Machine::running().cta(); }
inline uint32_t cluster_address(uint32_t address, int rank) {
  return Machine::cluster_address(address, rank);
}
inline void store_cluster(uint32_t to, float value) {
  Machine::running().store_cluster(to, &value, sizeof(value));
}
inline void store_async_128(uint32_t to, const Vec128& c, uint32_t barrier) {
  Machine::running().store_async(to, {c.words[0], c.words[1], c.words[2], c.words[3]}, barrier);
}
template <int kBytes>
void cp_async(uint32_t to, const void* from, bool is_valid) {
  Machine::running().copy(to, from, is_valid, kBytes);
}
inline void cp_async_wait_all() { Machine::running().cp_async_wait_all(); }
inline void fence_async_proxy() {}
inline void bulk_store(void* to, uint32_t from, int bytes) {
  std::memcpy(to, Machine::running().shared() + from, static_cast<size_t>(bytes));
}

struct Mbarrier {
  uint64_t state;
};
inline void mbarrier_init(Mbarrier& barrier, int count) {
  Machine::running().mbarrier_init(shared_address(&barrier), count);
}
inline void mbarrier_arrive(Mbarrier& barrier) {
  Machine::running().mbarrier_arrive(shared_address(&barrier));
}
inline void cp_async_mbarrier_arrive(Mbarrier& barrier) {
  Machine::running().cp_async_mbarrier_arrive(shared_address(&barrier));
}
inline void mbarrier_wait(Mbarrier& barrier, int parity) {
  Machine::running().mbarrier_wait(shared_address(&barrier), parity);
}

inline void mbarrier_arrive_expect(Mbarrier& barrier, int bytes) {
  Machine::running().mbarrier_arrive(shared_address(&barrier), bytes);
}
inline void mbarrier_arrive_cluster(uint32_t barrier) {
  Machine::running().mbarrier_arrive(barrier);
}
inline void mbarrier_wait_cluster(Mbarrier& barrier, int parity) { mbarrier_wait(barrier, parity); }
inline void cluster_sync() { Machine::running().meet_cluster(); }

inline void mbarrier_arrive_warp(Mbarrier& barrier) {
  sync_warp();
  if (thread_index() % 32 == 0) mbarrier_arrive(barrier);
}

inline void atomic_or_shared(uint32_t& word, uint32_t bits) { word |= bits; }
inline void atomic_add_shared(int32_t& sum, int32_t value) { sum += value; }
inline int count_bits(uint32_t word) { return std::popcount(word); }

inline void atomic_add_f32x4(float* to, float a, float b, float c, float d) {
  to[0] += a;
  to[1] += b;
  to[2] += c;
  to[3] += d;
}

enum class Major { kK = 0, kMn = 1 };
template <typename T>
void warpgroup_fence_operand(T&) {}
template <typename... Accumulators>
void wgmma_fence(Accumulators&...) {}
inline void wgmma_commit() { Machine::running().commit_products(); }
template <int kPending = 0, typename... Accumulators>
void wgmma_wait(Accumulators&...) {
  Machine::running().wait_for_products(kPending);
}
template <int kN, Major kA, Major kB>
void wgmma_ss(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulates) {
  Machine::running().multiply({.n = kN,
                               .is_a_transposed = kA == Major::kMn,
                               .is_b_transposed = kB == Major::kMn,
                               .accumulates = accumulates,
                               .a = a,
                               .b = b},
                              d);
}
template <int kN, Major kB>
void wgmma_rs(float (&d)[kN / 2], const uint32_t* a, uint64_t b, bool accumulates) {
  Machine::running().multiply({.n = kN,
                               .is_b_transposed = kB == Major::kMn,
                               .accumulates = accumulates,
                               .is_a_in_registers = true,
                               .b = b},
                              d, a);
}
inline void wgmma_rs_f16(float (&d)[32], const uint32_t* a, uint64_t b, bool accumulates) {
  Machine::running().multiply(
      {.n = 64, .is_half = true, .accumulates = accumulates, .is_a_in_registers = true, .b = b}, d,
      a);
}
template <int kN>
void wgmma_ss_e4m3(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulates) {
  Machine::running().multiply(
      {.n = kN, .is_e4m3 = true, .accumulates = accumulates, .a = a, .b = b}, d);
}

}  // namespace patchbench::ops::sm90
