// Instructions that CUDA C++ has no short name for, and the only place that looks at
// __CUDA_ARCH__: each function has a fall-back that is right on every device from sm_80 on.
//
// CUB and cooperative_groups would offer some of these, at 8.4 s and 3.6 s of compile time per
// file.

#ifndef KERNELS_COMMON_PTX_CUH_
#define KERNELS_COMMON_PTX_CUH_

#include <stdint.h>

namespace fuseboard {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define FB_PTX_SM90 1
#endif

// ---- 16-bit floats, two in a word, first in the low half. Round to nearest even, no saturation.

__device__ __forceinline__ float2 HalfWordToFloats(uint32_t word) {
  float2 v;
  asm("{.reg .b16 lo, hi;\n mov.b32 {lo, hi}, %2;\n cvt.f32.f16 %0, lo;\n cvt.f32.f16 %1, hi;}"
      : "=f"(v.x), "=f"(v.y)
      : "r"(word));
  return v;
}

__device__ __forceinline__ uint32_t FloatsToHalfWord(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ __forceinline__ float2 BFloat16WordToFloats(uint32_t word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}

__device__ __forceinline__ uint32_t FloatsToBFloat16Word(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// Products and sums of both, each rounded once, never joined to one operation.

__device__ __forceinline__ uint32_t MultiplyHalfWords(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

__device__ __forceinline__ uint32_t AddHalfWords(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

__device__ __forceinline__ uint32_t MultiplyBFloat16Words(uint32_t a, uint32_t b) {
  uint32_t product;
#if defined(FB_PTX_SM90)
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
#endif
  return product;
}

__device__ __forceinline__ uint32_t AddBFloat16Words(uint32_t a, uint32_t b) {
  uint32_t sum;
#if defined(FB_PTX_SM90)
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3f803f80u), "r"(b));
#endif
  return sum;
}

// ---- Functions of f32 in one instruction. Subnormals in and out are 0; infinities are right. ----

// 2^x within 2 ulp.
__device__ __forceinline__ float Exp2Approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x within 1 ulp.
__device__ __forceinline__ float ReciprocalApprox(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The smaller and the larger of two; NaN if one is NaN, unlike fminf and fmaxf.
__device__ __forceinline__ float MinOrNaN(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

__device__ __forceinline__ float MaxOrNaN(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// log2(x), within 2^-22 in [0.5, 2] and 2 ulp elsewhere; subnormal arguments count as 0.
__device__ __forceinline__ float Log2Approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- Memory ----

// 16 or 8 aligned bytes in one store to global memory, where the compiler makes several of one.
__device__ __forceinline__ void StoreGlobal16(void* address, uint32_t a, uint32_t b, uint32_t c,
                                              uint32_t d) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(address)),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// The same if `wanted`, without a branch.
__device__ __forceinline__ void StoreGlobal16If(bool wanted, void* address, uint32_t a, uint32_t b,
                                                uint32_t c, uint32_t d) {
  asm volatile(
      "{.reg .pred p;\n setp.ne.u32 p, %0, 0;\n @p st.global.v4.b32 [%1], {%2, %3, %4, %5};}" ::"r"(
          static_cast<uint32_t>(wanted)),
      "l"(__cvta_generic_to_global(address)), "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

__device__ __forceinline__ void StoreGlobal8(void* address, uint32_t a, uint32_t b) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(address)), "r"(a),
               "r"(b)
               : "memory");
}

// Starts copying 16 bytes from global to shared memory. Committed groups end in order.
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}

// 4 aligned bytes likewise, of which only the first `bytes` are read; the others become 0.
__device__ __forceinline__ void CopyAsync4(void* shared, const void* global, uint32_t bytes) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(global),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- Thread-block clusters. Without them (before sm_90) every block is a cluster of one. ----

__device__ __forceinline__ uint32_t ClusterSize() {
#if defined(FB_PTX_SM90)
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  return size;
#else
  return 1;
#endif
}

__device__ __forceinline__ uint32_t ClusterRank() {
#if defined(FB_PTX_SM90)
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

// Every thread of the cluster calls both. Writes before the arrival are seen after the wait.
__device__ __forceinline__ void ClusterArrive() {
#if defined(FB_PTX_SM90)
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void ClusterWait() {
#if defined(FB_PTX_SM90)
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// The blocks that share a row: with kMany those of a cluster, or one. Without, no instruction is
// spent on the question. Sizes of clusters are powers of two: a division, of 64 bits at that, would
// be the longest part of a short kernel.
template <bool kMany>
struct RowBlocks {
  __device__ __forceinline__ static uint32_t Size() { return kMany ? ClusterSize() : 1; }
  __device__ __forceinline__ static uint32_t Rank() { return kMany ? ClusterRank() : 0; }
  // Which group of blocks of the grid this is, and how many there are.
  __device__ __forceinline__ static uint32_t Index() { return Shifted(blockIdx.x); }
  __device__ __forceinline__ static uint32_t Count() { return Shifted(gridDim.x); }

 private:
  __device__ __forceinline__ static uint32_t Shifted(uint32_t blocks) {
    return kMany ? blocks >> (31 - __clz(static_cast<int>(ClusterSize()))) : blocks;
  }
};

// ---- Dependent launch: a kernel may be scheduled before its predecessor has ended. ----

// In the predecessor: the dependent may be scheduled once every block has said so.
__device__ __forceinline__ void AllowDependentLaunch() {
#if defined(FB_PTX_SM90)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// In the dependent: waits until the predecessor has ended and its writes are visible.
__device__ __forceinline__ void WaitForPredecessor() {
#if defined(FB_PTX_SM90)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_PTX_CUH_
