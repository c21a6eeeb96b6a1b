#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#define PB_DEVICE __device__ __forceinline__
#define PB_CONSTEXPR constexpr __host__ __device__
#define PB_UNROLL _Pragma("unroll")
#define PB_ROLLED _Pragma("unroll 1")

/// sm_90's primitives as kernels that a host program runs, too, use them: such a kernel names
/// nothing else of CUDA. tests/packs/sm90_emulator.h has the host's.
namespace patchbench::ops::sm90 {

PB_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
/// Of a value that is one in each warp: lets the compiler know.
PB_DEVICE int warp_broadcast(int value) { return __shfl_sync(~0u, value, 0); }
PB_DEVICE void sync_threads() { __syncthreads(); }
PB_DEVICE void sync_warp() { __syncwarp(); }
/// A barrier of `count` threads, whole warps: who arrives does not wait. id: 1 to 15, each of one
/// use at a time.
PB_DEVICE void named_barrier_sync(int id, int count) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}
PB_DEVICE void arrive_at(int id, int count) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}
/// All warps of a warpgroup give registers back or wait for more, a multiple of 8 a thread.
template <int kCount>
PB_DEVICE void lower_registers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
PB_DEVICE void raise_registers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <typename T>
PB_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(~0u, value, mask);
}
PB_DEVICE int shuffle_from(int value, int lane) { return __shfl_sync(~0u, value, lane); }
PB_DEVICE bool any_in_warp(bool value) { return __any_sync(~0u, value); }
PB_DEVICE float exp2_of(float value) { return exp2f(value); }
/// The same, but 0 below 2^-126.
PB_DEVICE float exp2_flushed(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
}
PB_DEVICE float log2_of(float value) { return log2f(value); }
/// 1 / value, to an ulp; 0 of infinity.
PB_DEVICE float inverse_of(float value) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
  return inverse;
}
/// To 2^-20 of an angle that has been brought to [-pi, pi].
PB_DEVICE void sin_cos_of(float angle, float& sine, float& cosine) {
  constexpr float kTurn = 6.283185307179586f, kPerTurn = 0.15915494309189535f;
  const float rest = fmaf(-rintf(angle * kPerTurn), kTurn, angle);
  sine = __sinf(rest);
  cosine = __cosf(rest);
}

/// Two bfloat16, rounded to nearest even, the first in the low half.
PB_DEVICE uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
PB_DEVICE float low_of(uint32_t pair) { return __uint_as_float(pair << 16); }
PB_DEVICE float high_of(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
/// The same of half precision.
PB_DEVICE uint32_t pack_half(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
/// Four e4m3 as half precision, exactly: the first and third in `even`, the others in `odd`.
PB_DEVICE void widen(uint32_t bytes, uint32_t& even, uint32_t& odd) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
      : "=r"(even), "=r"(odd)
      : "r"(__byte_perm(bytes, 0, 0x3120)));
}
/// The two e4m3 in the low half of `bytes`.
PB_DEVICE void decode(uint32_t bytes, float& low, float& high) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(bytes);
  const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  low = values.x;
  high = values.y;
}

/// Sixteen bytes.
struct alignas(16) Chunk {
  uint32_t words[4] = {};
};
PB_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
/// Ordered among barriers, unlike a load of what is constant: one that is meant to be under way
/// while others work may not sink to its use.
PB_DEVICE Chunk load_chunk(const void* from) {
  Chunk c;
  asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(c.words[0]), "=r"(c.words[1]), "=r"(c.words[2]), "=r"(c.words[3])
               : "l"(from)
               : "memory");
  return c;
}
PB_DEVICE void store_chunk(uint32_t to, const Chunk& c) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(c.words[0]), "r"(c.words[1]),
               "r"(c.words[2]), "r"(c.words[3])
               : "memory");
}
PB_DEVICE void store_chunk(void* to, const Chunk& c) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(c.words[0]), "r"(c.words[1]),
               "r"(c.words[2]), "r"(c.words[3])
               : "memory");
}
/// Of four groups of eight rows of 16 bytes, lane 8 i + j giving the address of row j of group i:
/// words[i] holds bytes 2 (lane / 4) and the next of rows 2 (lane % 4) and the next.
PB_DEVICE void ldmatrix_trans(uint32_t (&words)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}
/// Of four groups of eight rows of 16 bytes, to the addresses that lane 8 i + j gives of row j of
/// group i: words[i] are bytes 4 (lane % 4) ... of row lane / 4.
PB_DEVICE void store_rows(uint32_t to, const uint32_t* words) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
#endif
}
/// Copies 16 bytes, or zeros, for which `from` is not read.
PB_DEVICE void cp_async(uint32_t to, const void* from, bool is_valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_valid ? 16 : 0)
               : "memory");
}
PB_DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
/// Makes this thread's writes to shared memory visible to wgmma, after the barrier that follows;
/// those of others that it has waited for, to the wgmma that it issues next.
PB_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// A barrier in shared memory whose phases end when `count` have arrived.
struct Barrier {
  uint64_t state;
};
/// Before a barrier of all threads, which the first arrival follows.
PB_DEVICE void start_barrier(Barrier& barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(count)
               : "memory");
}
PB_DEVICE void arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}
/// Arrives when this thread's copies so far are whole.
PB_DEVICE void arrive_with_copies(Barrier& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
      : "memory");
}
/// Until the phase of this parity is over; that before the first one has parity 1.
PB_DEVICE void wait_for(Barrier& barrier, int parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t is_over = 0;
  while (is_over == 0) {
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(is_over)
        : "r"(shared_address(&barrier)), "r"(parity)
        : "memory");
  }
#endif
}

/// to[0..3] += values, without an order among threads. `to` is 16-byte aligned.
PB_DEVICE void add_four(float* to, float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(to), make_float4(a, b, c, d));
#endif
}

/// The axis along which an operand lies densely in shared memory.
enum class Major { kK = 0, kMn = 1 };

/// Nothing that uses an accumulator may move across: the instructions below do not name it.
PB_DEVICE void pin(float& value) { asm volatile("" : "+f"(value)::"memory"); }
PB_DEVICE void pin(uint32_t& value) { asm volatile("" : "+r"(value)::"memory"); }
template <typename T, int kCount>
PB_DEVICE void pin(T (&values)[kCount]) {
  PB_UNROLL
  for (int i = 0; i < kCount; ++i) pin(values[i]);
}
/// Before the first product on accumulators that other instructions touched.
template <typename... Accumulators>
PB_DEVICE void wgmma_fence(Accumulators&... d) {
  (pin(d), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
PB_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits for all but the last kPending committed. Until then neither accumulators nor operands may
/// be touched, those in registers included.
template <int kPending = 0, typename... Accumulators>
PB_DEVICE void wgmma_wait(Accumulators&... d) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  (pin(d), ...);
}

#define PB_REGS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define PB_REGS_32 \
  PB_REGS_16       \
  ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PB_REGS_64                                                   \
  PB_REGS_32                                                         \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PB_REGS_96                                                   \
  PB_REGS_64                                                         \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define PB_REGS_128                                                              \
  PB_REGS_96                                                                     \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define PB_OUT_8(i)                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define PB_OUT_16(i) PB_OUT_8(i), PB_OUT_8(i + 8)
#define PB_OUT_32(i) PB_OUT_16(i), PB_OUT_16(i + 16)
#define PB_OUT_64(i) PB_OUT_32(i), PB_OUT_32(i + 32)
#define PB_OUT_96(i) PB_OUT_64(i), PB_OUT_32(i + 64)
#define PB_OUT_128(i) PB_OUT_64(i), PB_OUT_64(i + 64)
#define PB_WGMMA(n, count, a_at, b_at, p_at, ta_at, tb_at)                                         \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" #p_at ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
               "k16.f32.bf16.bf16 {" PB_REGS_##count "}, %" #a_at ", %" #b_at                      \
                                                     ", p, 1, 1, %" #ta_at ", %" #tb_at ";}"       \
               : PB_OUT_##count(0)                                                                 \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulates)), "n"(static_cast<int>(kA)),    \
                 "n"(static_cast<int>(kB)))

/// d = a b, or d += a b: a [64, 16] and b [16, kN] bfloat16 by descriptor. Thread t of the
/// warpgroup holds d[i] of row 16 (t / 32) + t % 32 / 4 + 8 (i / 2 % 2) and column
/// 8 (i / 4) + 2 (t % 4) + i % 2. Asynchronous: see wgmma_wait.
template <int kN, Major kA, Major kB>
PB_DEVICE void wgmma(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulates) {
  static_assert(kN == 32 || kN == 64 || kN == 128 || kN == 192 || kN == 256,
                "an instruction is spelled for each width");
#if __CUDA_ARCH__ >= 900
  if constexpr (kN == 32) PB_WGMMA(32, 16, 16, 17, 18, 19, 20);
  if constexpr (kN == 64) PB_WGMMA(64, 32, 32, 33, 34, 35, 36);
  if constexpr (kN == 128) PB_WGMMA(128, 64, 64, 65, 66, 67, 68);
  if constexpr (kN == 192) PB_WGMMA(192, 96, 96, 97, 98, 99, 100);
  if constexpr (kN == 256) PB_WGMMA(256, 128, 128, 129, 130, 131, 132);
#endif
}

#define PB_WGMMA_REGISTERS(n, count, a_at, b_at, p_at, tb_at)                                      \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" #p_at ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
               "k16.f32.bf16.bf16 {" PB_REGS_##count "}, {" a_at "}, %" #b_at                      \
                                                     ", p, 1, 1, %" #tb_at ";}"                    \
               : PB_OUT_##count(0)                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                               \
                 "r"(static_cast<int>(accumulates)), "n"(static_cast<int>(kB)))

/// The same with a in registers: a[0] and a[1] hold two neighbours of the rows of d[0] and d[2],
/// from column 2 (t % 4) on; a[2] and a[3] those eight columns on. Not to be touched until the
/// wait.
template <int kN, Major kB>
PB_DEVICE void wgmma_of_registers(float (&d)[kN / 2], const uint32_t* a, uint64_t b,
                                  bool accumulates) {
  static_assert(kN == 64 || kN == 128 || kN == 192 || kN == 256,
                "an instruction is spelled for each width");
#if __CUDA_ARCH__ >= 900
  if constexpr (kN == 64) PB_WGMMA_REGISTERS(64, 32, "%32,%33,%34,%35", 36, 37, 38);
  if constexpr (kN == 128) PB_WGMMA_REGISTERS(128, 64, "%64,%65,%66,%67", 68, 69, 70);
  if constexpr (kN == 192) PB_WGMMA_REGISTERS(192, 96, "%96,%97,%98,%99", 100, 101, 102);
  if constexpr (kN == 256) PB_WGMMA_REGISTERS(256, 128, "%128,%129,%130,%131", 132, 133, 134);
#endif
}

/// d [64, 64] of half precision, a in registers, b dense along the 16 that are summed.
PB_DEVICE void wgmma_half(float (&d)[32], const uint32_t* a, uint64_t b, bool accumulates) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{" PB_REGS_32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;}"
      : PB_OUT_32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulates)));
#endif
}

/// The same of e4m3: a [64, 32] and b [32, kN], both dense along the 32 that are summed: there is
/// no other form.
template <int kN>
PB_DEVICE void wgmma_e4m3(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulates) {
  static_assert(kN == 32 || kN == 64, "an instruction is spelled for each width");
#if __CUDA_ARCH__ >= 900
  if constexpr (kN == 32)
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %18, 0; "
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {" PB_REGS_16 "}, %16, %17, p, 1, 1;}"
        : PB_OUT_16(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulates)));
  if constexpr (kN == 64)
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" PB_REGS_32 "}, %32, %33, p, 1, 1;}"
        : PB_OUT_32(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulates)));
#endif
}

/// A CTA for each item, as many as the current device has multiprocessors at most.
inline cudaError_t grid_of(int64_t num_items, int64_t& grid) {
  int device = 0, num_multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device);
  grid = std::min<int64_t>(num_items, num_multiprocessors);
  return status;
}

}  // namespace patchbench::ops::sm90
