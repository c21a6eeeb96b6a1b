#pragma once
#include "ptx.cuh"

/// Barriers of a CTA: all threads, a warp, named barriers, and mbarriers in shared memory.
namespace patchbench::ops::sm90 {

PB_DEVICE void sync_threads() { __syncthreads(); }
PB_DEVICE void sync_warp() { __syncwarp(); }
/// Named barrier of `count` threads, a multiple of 32. id: 1 to 15, one use at a time.
PB_DEVICE void named_barrier_sync(int id, int count) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}
PB_DEVICE void named_barrier_arrive(int id, int count) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}

/// An mbarrier in shared memory. A phase ends when `count` threads have arrived.
struct Mbarrier {
  uint64_t state;
};
/// A barrier of all threads must follow before the first arrival.
PB_DEVICE void mbarrier_init(Mbarrier& barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(count)
               : "memory");
}
PB_DEVICE void mbarrier_arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}
/// Arrives once all cp.async copies that this thread has started are complete.
PB_DEVICE void cp_async_mbarrier_arrive(Mbarrier& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
      : "memory");
}
/// Waits until the phase with this parity has ended. The phase before the first one has parity 1.
PB_DEVICE void mbarrier_wait(Mbarrier& barrier, int parity) {
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
/// Arrives, and makes the phase wait for `bytes` of asynchronous stores, too.
PB_DEVICE void mbarrier_arrive_expect(Mbarrier& barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
#endif
}
/// Arrives at a barrier of any CTA of the cluster, given by its cluster_address.
PB_DEVICE void mbarrier_arrive_cluster(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
/// As mbarrier_wait, where threads of another CTA arrive or store.
PB_DEVICE void mbarrier_wait_cluster(Mbarrier& barrier, int parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t is_over = 0;
  while (is_over == 0) {
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(is_over)
        : "r"(shared_address(&barrier)), "r"(parity)
        : "memory");
  }
#endif
}
/// A barrier of all threads of the cluster. Initialised mbarriers are seen by all after it.
PB_DEVICE void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// One arrival for the whole warp. All its threads are done with the guarded data.
PB_DEVICE void mbarrier_arrive_warp(Mbarrier& barrier) {
  sync_warp();
  if (thread_index() % 32 == 0) mbarrier_arrive(barrier);
}

}  // namespace patchbench::ops::sm90
