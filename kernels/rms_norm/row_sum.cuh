// The sum over a row, whichever threads share it.

#ifndef KERNELS_RMS_NORM_ROW_SUM_CUH_
#define KERNELS_RMS_NORM_ROW_SUM_CUH_

#include "kernels/common/cluster_exchange.cuh"

namespace fuseboard::rms_norm {

// Shared memory of the sum of a Value over a row. Turns count from 0; see GroupReduce. Without
// kCluster there are no clusters, and no room for what their blocks exchange: the backward kernels
// count every 100 bytes of it.
template <typename Value, bool kCluster>
struct RowStorage {
  Value block[2][kMaxWarps];
  ClusterExchange exchange;
};

template <typename Value>
struct RowStorage<Value, false> {
  Value block[2][kMaxWarps];
};

template <bool kCluster>
using RowSumStorage = RowStorage<float, kCluster>;
template <bool kCluster>
using RowSumPairStorage = RowStorage<float2, kCluster>;

// The sum of `value` over the threads of a row: threadIdx.x of each block of the cluster.
template <bool kCluster>
__device__ __forceinline__ float RowSum(float value, RowSumStorage<kCluster>* shared,
                                        uint32_t turn) {
  const int threads = static_cast<int>(blockDim.x);
  if (threads <= kWarpThreads) return WarpReduce(value, Sum(), threads);
  value = GroupReduce(value, Sum(), 0.0f, shared->block[turn % 2], threads / kWarpThreads);
  if constexpr (kCluster) {
    if (ClusterSize() > 1) value = ClusterSum(value, &shared->exchange, turn);
  }
  return value;
}

// RowSum of two values at the price of one: one barrier.
template <bool kCluster>
__device__ __forceinline__ float2 RowSumPair(float2 value, RowSumPairStorage<kCluster>* shared,
                                             uint32_t turn) {
  const int threads = static_cast<int>(blockDim.x);
  const int width = threads < kWarpThreads ? threads : kWarpThreads;
  value = {WarpReduce(value.x, Sum(), width), WarpReduce(value.y, Sum(), width)};
  if (threads <= kWarpThreads) return value;
  float2* const sums = shared->block[turn % 2];
  const uint32_t thread = threadIdx.x + threadIdx.y * blockDim.x;
  const auto lane = static_cast<int>(thread % kWarpThreads);
  const int group_warps = threads / kWarpThreads;
  if (lane == 0) sums[thread / kWarpThreads] = value;
  __syncthreads();
  const int first = static_cast<int>(threadIdx.y) * group_warps;
  const int group_width = WidthOf(group_warps);
  const int of = lane & (group_width - 1);
  value = of < group_warps ? sums[first + of] : make_float2(0.0f, 0.0f);
  value = {WarpReduce(value.x, Sum(), group_width), WarpReduce(value.y, Sum(), group_width)};
  if constexpr (kCluster) {
    if (ClusterSize() > 1) value = ClusterSumPair(value, &shared->exchange, turn);
  }
  return value;
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_ROW_SUM_CUH_
