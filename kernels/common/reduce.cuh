// Reductions over the threads of a row: part of a warp, a block, or a cluster of blocks. The order
// of the operations is fixed by the thread numbers, so results are bit-equal from run to run, and
// every thread gets the same bits.

#ifndef KERNELS_COMMON_REDUCE_CUH_
#define KERNELS_COMMON_REDUCE_CUH_

#include "kernels/common/ptx.cuh"

namespace fuseboard {

struct Sum {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

inline constexpr int kWarpThreads = 32;
inline constexpr int kMaxWarps = 32;
inline constexpr int kMaxClusterBlocks = 8;  // What every device with clusters can schedule.

// Over each group of `width` neighbouring lanes, a power of two. All lanes of the warp call it.
template <typename T, typename Op>
__device__ __forceinline__ T WarpReduce(T value, Op op, int width = kWarpThreads) {
#pragma unroll
  for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) {
    if (offset < width) value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// The lanes that hold one value for each of `group_warps` warps: a power of two.
__device__ __forceinline__ int WidthOf(int group_warps) {
  return group_warps <= 1 ? 1 : kWarpThreads >> __clz((group_warps - 1) << 27);
}

// Over a group of `group_warps` neighbouring warps of the block, the first of which is `first`: no
// division by a number that only the host knows. `shared` has room for kMaxWarps values; it may be
// written again after one more barrier, so a loop alternates between two of them and pays one
// barrier per turn.
// REQUIRES: a block of whole groups, in which all threads call it.
template <typename T, typename Op>
__device__ __forceinline__ T ReduceWarps(T value, Op op, T identity, T* shared, int first,
                                         int group_warps) {
  const uint32_t thread = threadIdx.x + threadIdx.y * blockDim.x;
  const auto lane = static_cast<int>(thread % kWarpThreads);
  value = WarpReduce(value, op);
  if (lane == 0) shared[thread / kWarpThreads] = value;
  __syncthreads();
  // Every warp folds the partial results of its group: cheaper than a second barrier for a
  // broadcast.
  const int width = WidthOf(group_warps);
  const int of = lane & (width - 1);
  return WarpReduce(of < group_warps ? shared[first + of] : identity, op, width);
}

// Over threadIdx.x. REQUIRES: blockDim.x = 32 * group_warps.
template <typename T, typename Op>
__device__ __forceinline__ T GroupReduce(T value, Op op, T identity, T* shared, int group_warps) {
  const int first = static_cast<int>(threadIdx.y) * group_warps;
  return ReduceWarps(value, op, identity, shared, first, group_warps);
}

// Over the whole block; see ReduceWarps.
template <typename T, typename Op>
__device__ __forceinline__ T BlockReduce(T value, Op op, T identity, T* shared) {
  const auto warps = static_cast<int>(blockDim.x * blockDim.y / kWarpThreads);
  return ReduceWarps(value, op, identity, shared, 0, warps);
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_REDUCE_CUH_
