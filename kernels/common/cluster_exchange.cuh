// What the blocks of a cluster tell one another about a row: one store of 16 bytes to each, which
// reports to a barrier there. A cluster's own barrier would, at every row, wait until the stores of
// the row before have reached memory.

#ifndef KERNELS_COMMON_CLUSTER_EXCHANGE_CUH_
#define KERNELS_COMMON_CLUSTER_EXCHANGE_CUH_

#include "kernels/common/ptx_bulk.cuh"
#include "kernels/common/reduce.cuh"

namespace fuseboard {

// In shared memory. Turns alternate between the halves: a block sends its value of turn t + 2 only
// when it has those of turn t + 1, which a peer sends when all its threads are past turn t.
struct ClusterExchange {
  uint64_t filled[2];
  float4 slot[2][kMaxClusterBlocks];
};

// By all threads, once, before ClusterWait and the first exchange. Nothing in clusters of one.
__device__ __forceinline__ void ArriveForExchange(ClusterExchange* exchange) {
  if (ClusterSize() == 1) return;
  if (threadIdx.x + threadIdx.y == 0) {
    BarrierInit(&exchange->filled[0], 1);
    BarrierInit(&exchange->filled[1], 1);
    FenceBarrierInit();
  }
  ClusterArrive();
}

// As above, when there is nothing to do until all blocks are there.
__device__ __forceinline__ void BeginExchange(ClusterExchange* exchange) {
  if (ClusterSize() == 1) return;
  ArriveForExchange(exchange);
  ClusterWait();
}

// Gives each thread what block `lane` % kMaxClusterBlocks sent, or `none`. `value` is that of the
// block, alike in its first warp. Turns count from 0. No block needs to wait at its end: what it
// waited for in its last turn is all that was ever sent to it.
// REQUIRES: a barrier of the block between two turns.
__device__ __forceinline__ float4 Exchange(ClusterExchange* exchange, uint32_t turn, float4 value,
                                           float4 none) {
  const uint32_t blocks = ClusterSize();
  const uint32_t half = turn % 2;
  const uint32_t thread = threadIdx.x + threadIdx.y * blockDim.x;
  if (thread < kWarpThreads) {
    if (thread == 0) BarrierArriveExpecting(&exchange->filled[half], blocks * 16);
    __syncwarp();
    if (thread < blocks) {
      ClusterStoreAsync(&exchange->slot[half][ClusterRank()], &exchange->filled[half], thread,
                        make_uint4(__float_as_uint(value.x), __float_as_uint(value.y),
                                   __float_as_uint(value.z), __float_as_uint(value.w)));
    }
  }
  BarrierWait(&exchange->filled[half], turn / 2 % 2);
  const uint32_t block = thread % kMaxClusterBlocks;
  return block < blocks ? exchange->slot[half][block] : none;
}

// The sums over the cluster of `value`.
__device__ __forceinline__ float2 ClusterSumPair(float2 value, ClusterExchange* exchange,
                                                 uint32_t turn) {
  const float4 got =
      Exchange(exchange, turn, make_float4(value.x, value.y, 0.0f, 0.0f), make_float4(0, 0, 0, 0));
  return {WarpReduce(got.x, Sum(), kMaxClusterBlocks), WarpReduce(got.y, Sum(), kMaxClusterBlocks)};
}

__device__ __forceinline__ float ClusterSum(float value, ClusterExchange* exchange, uint32_t turn) {
  const float4 got =
      Exchange(exchange, turn, make_float4(value, 0.0f, 0.0f, 0.0f), make_float4(0, 0, 0, 0));
  return WarpReduce(got.x, Sum(), kMaxClusterBlocks);
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_CLUSTER_EXCHANGE_CUH_
