// The sum over a row, whichever threads share it.

#ifndef KERNELS_RMS_NORM_ROW_SUM_CUH_
#define KERNELS_RMS_NORM_ROW_SUM_CUH_

#include "kernels/common/reduce.cuh"

namespace fuseboard::rms_norm {

// The sum of `value` over the threads of a row: threadIdx.x of each block of the cluster.
// `block_sums` and `cluster_sums` follow the rule of two of GroupReduce.
__device__ __forceinline__ float RowSum(float value, float* block_sums, float* cluster_sums) {
  const int threads = static_cast<int>(blockDim.x);
  if (threads <= kWarpThreads) return WarpReduce(value, Sum(), threads);
  value = GroupReduce(value, Sum(), 0.0f, block_sums, threads / kWarpThreads);
  return ClusterSize() > 1 ? ClusterSum(value, cluster_sums) : value;
}

// Shared memory of RowSum, twice, for loops.
struct RowSumStorage {
  float block[2][kMaxWarps];
  float cluster[2][kMaxClusterBlocks];
};

// RowSum of two values at the price of one: one barrier. The same rule of two.
__device__ __forceinline__ float2 RowSumPair(float2 value, float2* block_sums,
                                             float2* cluster_sums) {
  const int threads = static_cast<int>(blockDim.x);
  const int width = threads < kWarpThreads ? threads : kWarpThreads;
  value = {WarpReduce(value.x, Sum(), width), WarpReduce(value.y, Sum(), width)};
  if (threads <= kWarpThreads) return value;
  const int thread = static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x);
  const int lane = thread % kWarpThreads;
  const int warp = thread / kWarpThreads;
  const int group_warps = threads / kWarpThreads;
  if (lane == 0) block_sums[warp] = value;
  __syncthreads();
  const int first = warp / group_warps * group_warps;
  value = lane < group_warps ? block_sums[first + lane] : make_float2(0.0f, 0.0f);
  value = {WarpReduce(value.x, Sum()), WarpReduce(value.y, Sum())};
  const uint32_t blocks = ClusterSize();
  if (blocks == 1) return value;
  if (static_cast<uint32_t>(thread) < blocks) {
    auto* slot = reinterpret_cast<float*>(cluster_sums + ClusterRank());
    ClusterStore(slot, static_cast<uint32_t>(thread), value.x);
    ClusterStore(slot + 1, static_cast<uint32_t>(thread), value.y);
  }
  ClusterArrive();
  ClusterWait();
  value = {0.0f, 0.0f};
  for (uint32_t i = 0; i < blocks; ++i) {
    value.x += cluster_sums[i].x;
    value.y += cluster_sums[i].y;
  }
  return value;
}

// Shared memory of RowSumPair, twice, for loops.
struct RowSumPairStorage {
  float2 block[2][kMaxWarps];
  float2 cluster[2][kMaxClusterBlocks];
};

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_ROW_SUM_CUH_
