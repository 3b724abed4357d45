// Asynchronous copies and barriers of sm_90: memory barriers (mbarrier), bulk copies that report to
// one, and stores into another block of the cluster that report to one there. Before sm_90 each
// traps: no policy picks a kernel that uses them there.

#ifndef KERNELS_COMMON_PTX_BULK_CUH_
#define KERNELS_COMMON_PTX_BULK_CUH_

#include <stdint.h>

#include "kernels/common/ptx.cuh"

namespace fuseboard {

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// `arrivals` is the number of arrivals that ends a phase.
__device__ __forceinline__ void BarrierInit(uint64_t* barrier, uint32_t arrivals) {
#if defined(FB_PTX_SM90)
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
#else
  __trap();
#endif
}

// Makes BarrierInit visible to the whole cluster and to the copy engine.
__device__ __forceinline__ void FenceBarrierInit() {
#if defined(FB_PTX_SM90)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  __trap();
#endif
}

// Orders what this thread read or wrote in the block's shared memory before bulk copies that are
// started after its next arrival: those are no ordinary accesses, which an arrival alone orders.
__device__ __forceinline__ void FenceBeforeBulkCopies() {
#if defined(FB_PTX_SM90)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  __trap();
#endif
}

__device__ __forceinline__ void BarrierArrive(uint64_t* barrier) {
#if defined(FB_PTX_SM90)
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
#else
  __trap();
#endif
}

// Arrives, and holds the phase open until `bytes` have been reported to the barrier.
__device__ __forceinline__ void BarrierArriveExpecting(uint64_t* barrier, uint32_t bytes) {
#if defined(FB_PTX_SM90)
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
#else
  __trap();
#endif
}

// Waits until the phase of this parity has ended; what its arrivals wrote to this block's shared
// memory is then visible. What they wrote elsewhere may not be: an acquire at the scope of the
// cluster would invalidate the L1 cache, and wait for all loads on their way, once per call
// (rms_norm's rows in a ring: 13 % of all samples).
__device__ __forceinline__ void BarrierWait(uint64_t* barrier, uint32_t parity) {
#if defined(FB_PTX_SM90)
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{.reg .pred p;\n"
        " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  }
#else
  __trap();
#endif
}

// An L2 policy for data that is read once.
__device__ __forceinline__ uint64_t EvictFirstPolicy() {
  uint64_t policy = 0;
#if defined(FB_PTX_SM90)
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// The policy of ordinary loads, where one is asked for.
__device__ __forceinline__ uint64_t EvictNormalPolicy() {
  uint64_t policy = 0;
#if defined(FB_PTX_SM90)
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// Starts copying `bytes`, a multiple of 16 between 16-byte aligned addresses, and reports them to
// `barrier`.
__device__ __forceinline__ void BulkLoad(void* shared, const void* global, uint32_t bytes,
                                         uint64_t* barrier, uint64_t l2_policy) {
#if defined(FB_PTX_SM90)
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier)), "l"(l2_policy)
      : "memory");
#else
  __trap();
#endif
}

// Writes 16 bytes to the place of `shared` in block `rank`, and reports them to the barrier at the
// place of `barrier` there.
__device__ __forceinline__ void ClusterStoreAsync(void* shared, uint64_t* barrier, uint32_t rank,
                                                  uint4 value) {
#if defined(FB_PTX_SM90)
  uint32_t remote, remote_barrier;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote)
      : "r"(SharedAddress(shared)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote_barrier)
      : "r"(SharedAddress(barrier)), "r"(rank));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(remote),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(remote_barrier)
      : "memory");
#else
  __trap();
#endif
}

// The address, in the cluster's shared memory, of the place of `shared` in block `rank`.
__device__ __forceinline__ uint32_t ClusterAddress(const void* shared, uint32_t rank) {
  uint32_t address = 0;
#if defined(FB_PTX_SM90)
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(SharedAddress(shared)), "r"(rank));
#else
  __trap();
#endif
  return address;
}

// As ClusterStoreAsync, with 8 bytes, to addresses in the cluster's shared memory.
__device__ __forceinline__ void StoreAsync8(uint32_t to, uint32_t barrier, uint32_t a, uint32_t b) {
#if defined(FB_PTX_SM90)
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
          to),
      "r"(a), "r"(b), "r"(barrier)
      : "memory");
#else
  __trap();
#endif
}

// Adds 1 to a counter in shared memory and returns what it was. Who sees the arrival of another
// sees what that wrote before.
__device__ __forceinline__ uint32_t CountArrival(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "r"(SharedAddress(counter))
               : "memory");
  return before;
}

// A barrier of the block's first `threads` threads, whole warps.
__device__ __forceinline__ void SyncThreads(int threads) {
  asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_PTX_BULK_CUH_
