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

// Over each group of `group_warps` neighbouring warps of the block. `shared` has room for kMaxWarps
// values; it may be written again after one more barrier, so a loop alternates between two of them
// and pays one barrier per turn.
// REQUIRES: a block of whole groups, in which all threads call it.
template <typename T, typename Op>
__device__ __forceinline__ T GroupReduce(T value, Op op, T identity, T* shared, int group_warps) {
  const int thread = static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x);
  const int lane = thread % kWarpThreads;
  const int warp = thread / kWarpThreads;
  value = WarpReduce(value, op);
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  // Every warp folds the partial results of its group: cheaper than a second barrier for a
  // broadcast.
  const int first = warp / group_warps * group_warps;
  return WarpReduce(lane < group_warps ? shared[first + lane] : identity, op);
}

// Over the whole block; see GroupReduce.
template <typename T, typename Op>
__device__ __forceinline__ T BlockReduce(T value, Op op, T identity, T* shared) {
  const int warps = static_cast<int>(blockDim.x * blockDim.y) / kWarpThreads;
  return GroupReduce(value, op, identity, shared, warps);
}

// The sum over the cluster of `value`, which each thread of a block has alike. `shared` has room
// for kMaxClusterBlocks values and follows BlockReduce's rule of two. No block may leave the
// kernel, nor another enter this function, before the cluster has started: ClusterArrive and
// ClusterWait once.
__device__ __forceinline__ float ClusterSum(float value, float* shared) {
  const uint32_t blocks = ClusterSize();
  const uint32_t thread = threadIdx.x + threadIdx.y * blockDim.x;
  if (thread < blocks) ClusterStore(shared + ClusterRank(), thread, value);
  ClusterArrive();
  ClusterWait();
  float sum = 0.0f;
  for (uint32_t i = 0; i < blocks; ++i) sum += shared[i];
  return sum;
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_REDUCE_CUH_
