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

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_ROW_SUM_CUH_
