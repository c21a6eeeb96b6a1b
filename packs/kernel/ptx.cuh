#pragma once
#include <cstdint>

/// Instructions of sm_80 and later, for the kernels of all packs.
namespace patchbench::ops {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// exp2 that flushes results below 2^-126 to 0.
__device__ __forceinline__ float exp2_ftz(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
}
/// 1 / value to one ulp; 0 for infinity.
__device__ __forceinline__ float rcp_approx(float value) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
  return inverse;
}

/// Starts a copy of kBytes (4, 8 or 16) to shared memory. If not is_valid, it writes zeros and does
/// not read `from`.
template <int kBytes>
__device__ __forceinline__ void cp_async(uint32_t to, const void* from, bool is_valid) {
  const int bytes = is_valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
  }
}
template <int kBytes>
__device__ __forceinline__ void cp_async(void* to, const void* from, bool is_valid) {
  cp_async<kBytes>(shared_address(to), from, is_valid);
}
/// The same of 16 bytes that are always valid.
__device__ __forceinline__ void cp_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace patchbench::ops
