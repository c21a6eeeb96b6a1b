#pragma once
#include <algorithm>
#include <cstdint>

#include "barrier.cuh"

/// Products of a warpgroup (wgmma). "ss": both operands in shared memory; "rs": a in registers.
namespace patchbench::ops::sm90 {

/// The axis along which an operand is contiguous in shared memory.
enum class Major { kK = 0, kMn = 1 };

/// The compiler must not move a use of the registers across this point: the asm statements of wgmma
/// do not name all registers that they write.
PB_DEVICE void warpgroup_fence_operand(float& value) { asm volatile("" : "+f"(value)::"memory"); }
PB_DEVICE void warpgroup_fence_operand(uint32_t& value) {
  asm volatile("" : "+r"(value)::"memory");
}
template <typename T, int kCount>
PB_DEVICE void warpgroup_fence_operand(T (&values)[kCount]) {
  PB_UNROLL
  for (int i = 0; i < kCount; ++i) warpgroup_fence_operand(values[i]);
}
/// wgmma.fence. Needed before the first product if other instructions wrote the accumulators.
template <typename... Accumulators>
PB_DEVICE void wgmma_fence(Accumulators&... d) {
  (warpgroup_fence_operand(d), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
PB_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most kPending committed groups are not complete. Before that, neither
/// accumulators nor operands may be touched, operands in registers included.
template <int kPending = 0, typename... Accumulators>
PB_DEVICE void wgmma_wait(Accumulators&... d) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  (warpgroup_fence_operand(d), ...);
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

/// d = a b, or d += a b if `accumulates`: a [64, 16] and b [16, kN] bfloat16, given by descriptors.
/// Thread t of the warpgroup holds d[i] of row 16 (t / 32) + t % 32 / 4 + 8 (i / 2 % 2) and column
/// 8 (i / 4) + 2 (t % 4) + i % 2. Asynchronous: see wgmma_wait.
template <int kN, Major kA, Major kB>
PB_DEVICE void wgmma_ss(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulates) {
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

#define PB_WGMMA_RS(n, count, a_at, b_at, p_at, tb_at)                                             \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" #p_at ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
               "k16.f32.bf16.bf16 {" PB_REGS_##count "}, {" a_at "}, %" #b_at                      \
                                                     ", p, 1, 1, %" #tb_at ";}"                    \
               : PB_OUT_##count(0)                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                               \
                 "r"(static_cast<int>(accumulates)), "n"(static_cast<int>(kB)))

/// The same with a in registers. a[0] and a[1] hold columns 2 (t % 4) and 2 (t % 4) + 1 of the rows
/// of d[0] and d[2]; a[2] and a[3] hold the columns 8 further. Do not touch them before the wait.
template <int kN, Major kB>
PB_DEVICE void wgmma_rs(float (&d)[kN / 2], const uint32_t* a, uint64_t b, bool accumulates) {
  static_assert(kN == 64 || kN == 128 || kN == 192 || kN == 256,
                "an instruction is spelled for each width");
#if __CUDA_ARCH__ >= 900
  if constexpr (kN == 64) PB_WGMMA_RS(64, 32, "%32,%33,%34,%35", 36, 37, 38);
  if constexpr (kN == 128) PB_WGMMA_RS(128, 64, "%64,%65,%66,%67", 68, 69, 70);
  if constexpr (kN == 192) PB_WGMMA_RS(192, 96, "%96,%97,%98,%99", 100, 101, 102);
  if constexpr (kN == 256) PB_WGMMA_RS(256, 128, "%128,%129,%130,%131", 132, 133, 134);
#endif
}

/// d [64, 64] with float16 operands: a in registers, b contiguous along K.
PB_DEVICE void wgmma_rs_f16(float (&d)[32], const uint32_t* a, uint64_t b, bool accumulates) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{" PB_REGS_32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;}"
      : PB_OUT_32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulates)));
#endif
}

/// d (+)= a b of e4m3: a [64, 32], b [32, kN], both contiguous along K. wgmma has no other form for
/// e4m3.
template <int kN>
PB_DEVICE void wgmma_ss_e4m3(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulates) {
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

/// The number of CTAs of a persistent kernel: one for each item, at most one for each
/// multiprocessor of the current device.
inline cudaError_t persistent_grid(int64_t num_items, int64_t& grid) {
  int device = 0, num_multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device);
  grid = std::min<int64_t>(num_items, num_multiprocessors);
  return status;
}

}  // namespace patchbench::ops::sm90
