#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../ptx.cuh"

#define PB_DEVICE __device__ __forceinline__
#define PB_CONSTEXPR constexpr __host__ __device__
#define PB_UNROLL _Pragma("unroll")
#define PB_ROLLED _Pragma("unroll 1")

/// The instructions of sm_90 except barriers and wgmma; it includes ../ptx.cuh. Kernels that a host
/// program runs, too, are written over these functions and name nothing else of CUDA;
/// tests/packs/sm90_emulator.h has the host's versions.
namespace patchbench::ops::sm90 {

PB_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
/// The same, read again: the compiler computes again what depends on it, instead of keeping it in
/// registers, or in local memory where those do not suffice.
PB_DEVICE int reread_thread_index() {
  int index = 0;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}
/// Broadcasts lane 0. The compiler then knows that the value is the same in the whole warp.
PB_DEVICE int warp_broadcast(int value) { return __shfl_sync(~0u, value, 0); }
/// setmaxnreg, by all warps of a warpgroup: gives registers back, or waits until it gets more.
/// kCount: registers of a thread, a multiple of 8.
template <int kCount>
PB_DEVICE void warpgroup_reg_dealloc() {
#if __CUDA_ARCH__ >= 900
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
PB_DEVICE void warpgroup_reg_alloc() {
#if __CUDA_ARCH__ >= 900
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <typename T>
PB_DEVICE T shfl_xor_sync(T value, int mask) {
  return __shfl_xor_sync(~0u, value, mask);
}
PB_DEVICE int shfl_sync(int value, int lane) { return __shfl_sync(~0u, value, lane); }
PB_DEVICE int max_sync(int value) { return __reduce_max_sync(~0u, value); }
PB_DEVICE bool any_sync(bool value) { return __any_sync(~0u, value); }
PB_DEVICE float exp2_of(float value) { return exp2f(value); }
PB_DEVICE float log2_of(float value) { return log2f(value); }
/// Exact to 2^-20. The angle is first reduced to [-pi, pi].
PB_DEVICE void sincos_approx(float angle, float& sine, float& cosine) {
  constexpr float kTurn = 6.283185307179586f, kPerTurn = 0.15915494309189535f;
  const float rest = fmaf(-rintf(angle * kPerTurn), kTurn, angle);
  sine = __sinf(rest);
  cosine = __cosf(rest);
}

PB_DEVICE uint32_t as_bits(float value) { return __float_as_uint(value); }
PB_DEVICE float as_float(uint32_t bits) { return __uint_as_float(bits); }
/// Byte i of the result is byte `selector >> 4 i & 7` of a (0 to 3) and b (4 to 7).
PB_DEVICE uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}

/// Rounds two values to bfloat16, to nearest even. The first one is the low half.
PB_DEVICE uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
PB_DEVICE float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
PB_DEVICE float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
/// The same for float16.
PB_DEVICE uint32_t pack_f16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
/// Converts four e4m3 to float16, exactly: the first and the third to `even`, the others to `odd`.
PB_DEVICE void e4m3_to_f16(uint32_t bytes, uint32_t& even, uint32_t& odd) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
      : "=r"(even), "=r"(odd)
      : "r"(__byte_perm(bytes, 0, 0x3120)));
}
/// Converts the two e4m3 in the low half of `bytes`.
PB_DEVICE void e4m3_to_f32(uint32_t bytes, float& low, float& high) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(bytes);
  const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  low = values.x;
  high = values.y;
}

/// 128 bits: the most that a thread loads or stores with one instruction.
struct alignas(16) Vec128 {
  uint32_t words[4] = {};
};
/// volatile: the compiler must not move this load past a barrier to its first use. It is issued
/// early on purpose.
PB_DEVICE Vec128 load_128(const void* from) {
  Vec128 c;
  asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(c.words[0]), "=r"(c.words[1]), "=r"(c.words[2]), "=r"(c.words[3])
               : "l"(from)
               : "memory");
  return c;
}
PB_DEVICE Vec128 load_shared_128(uint32_t from) {
  Vec128 c;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(c.words[0]), "=r"(c.words[1]), "=r"(c.words[2]), "=r"(c.words[3])
               : "r"(from)
               : "memory");
  return c;
}
PB_DEVICE void store_128(uint32_t to, const Vec128& c) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(c.words[0]), "r"(c.words[1]),
               "r"(c.words[2]), "r"(c.words[3])
               : "memory");
}
PB_DEVICE void store_128(void* to, const Vec128& c) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(c.words[0]), "r"(c.words[1]),
               "r"(c.words[2]), "r"(c.words[3])
               : "memory");
}
/// The rank of this CTA in its cluster.
PB_DEVICE int cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}
/// `address` is of shared memory of this CTA. Returns the address that the cluster has for the same
/// place in CTA `rank`.
PB_DEVICE uint32_t cluster_address(uint32_t address, int rank) {
  uint32_t mapped = 0;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
#endif
  return mapped;
}
PB_DEVICE void store_cluster(uint32_t to, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
#endif
}
/// Stores to another CTA, whose mbarrier at `barrier` counts the 16 bytes when they are there.
PB_DEVICE void store_async_128(uint32_t to, const Vec128& c, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, "
      "[%5];" ::"r"(to),
      "r"(c.words[0]), "r"(c.words[1]), "r"(c.words[2]), "r"(c.words[3]), "r"(barrier)
      : "memory");
#endif
}
/// ldmatrix. Lane 8 i + j gives the address of row j of matrix i, 16 bytes. words[i] gets byte
/// 4 (lane % 4) of row lane / 4.
PB_DEVICE void ldmatrix(uint32_t (&words)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}
/// ldmatrix with .trans. Lane 8 i + j gives the address of row j of matrix i, 16 bytes. words[i]
/// gets column lane / 4 of rows 2 (lane % 4) and 2 (lane % 4) + 1, in 16-bit elements.
PB_DEVICE void ldmatrix_trans(uint32_t (&words)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}
/// stmatrix. Lane 8 i + j gives the address of row j of matrix i, 16 bytes. words[i] is stored at
/// byte 4 (lane % 4) of row lane / 4.
PB_DEVICE void stmatrix(uint32_t to, const uint32_t* words) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
#endif
}
/// Copies bytes of shared memory, a multiple of 16, to memory. Both addresses are 16-byte aligned.
/// Returns when they are read; they are written later, but before the grid ends.
PB_DEVICE void bulk_store(void* to, uint32_t from, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2; cp.async.bulk.commit_group; "
      "cp.async.bulk.wait_group.read 0;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
#endif
}
/// Orders earlier writes to shared memory before wgmma reads, and before the reads of bulk_store.
/// It covers this thread's own writes, seen by others after the next barrier, and writes that this
/// thread has waited for.
PB_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Atomic, in shared memory.
PB_DEVICE void atomic_or_shared(uint32_t& word, uint32_t bits) { atomicOr(&word, bits); }
PB_DEVICE void atomic_add_shared(int32_t& sum, int32_t value) { atomicAdd(&sum, value); }
PB_DEVICE int count_bits(uint32_t word) { return __popc(word); }

/// to[0..3] += values, atomically. `to` must be 16-byte aligned. The order among threads is not
/// fixed.
PB_DEVICE void atomic_add_f32x4(float* to, float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(to), make_float4(a, b, c, d));
#endif
}

}  // namespace patchbench::ops::sm90
