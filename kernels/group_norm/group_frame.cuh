// What the kernels that hold a group in registers share: which group and packs a thread has, and
// sums of two values over the threads of a group.

#ifndef KERNELS_GROUP_NORM_GROUP_FRAME_CUH_
#define KERNELS_GROUP_NORM_GROUP_FRAME_CUH_

#include "kernels/common/cluster_exchange.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/group_norm/group_norm_policy.h"

namespace fuseboard::group_norm {

// The sum over the `threads` lanes, a power of two up to 32.
__device__ __forceinline__ float2 WarpSumPair(float2 value, int threads) {
  return {WarpReduce(value.x, Sum(), threads), WarpReduce(value.y, Sum(), threads)};
}

// Over the threadIdx.x of a block: up to 32 a power of two, or one threadIdx.y. A barrier of the
// block in any case. `shared` may be written again after one more barrier.
__device__ __forceinline__ float2 BlockSumPair(float2 value, float2* shared) {
  const int threads = static_cast<int>(blockDim.x);
  if (threads <= kWarpThreads) {
    __syncthreads();
    return WarpSumPair(value, threads);
  }
  value = WarpSumPair(value, kWarpThreads);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  if (lane == 0) shared[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  const bool has_warp = lane < threads / kWarpThreads;
  return WarpSumPair(has_warp ? shared[lane] : make_float2(0.0f, 0.0f), kWarpThreads);
}

struct PairStorage {
  float2 block[kMaxWarps];
  ClusterExchange exchange;
};

// The packs of a group are cut into runs that a warp, or the part of it that has a group, reads at
// once: kPacks packs per thread, which lie a warp apart.
struct Place {
  uint32_t group;
  int rank;         // Of the block among those that share the group.
  int width;        // Threads that share a run.
  int block_first;  // The block's first pack of the group.
  int first;        // The thread's.

  template <int kPacks>
  __device__ __forceinline__ static Place Of() {
    Place place;
    const auto threads = static_cast<int>(blockDim.x);
    const auto thread = static_cast<int>(threadIdx.x);
    place.group =
        (blockIdx.x >> (__ffs(static_cast<int>(ClusterSize())) - 1)) * blockDim.y + threadIdx.y;
    place.rank = static_cast<int>(ClusterRank());
    place.width = min(threads, kWarpThreads);
    place.block_first = place.rank * threads * kPacks;
    const int lane = thread % kWarpThreads;
    place.first = place.block_first + (thread - lane) * kPacks + lane;
    return place;
  }
};

__device__ __forceinline__ int ChannelOfPack(int pack, const Divisor& channel_packs) {
  const auto dividend = static_cast<uint32_t>(pack);
  const uint32_t quotient = __umulhi(dividend, channel_packs.reciprocal);
  return static_cast<int>(channel_packs.reciprocal == 0 ? dividend : quotient);
}

// An element of a tensor that may be absent.
__device__ __forceinline__ float LoadOr(float other, int32_t dtype, const void* base,
                                        int64_t index) {
  if (base == nullptr) return other;
  float value[1];
  LoadFloatsOf<1>(dtype, base, index, value);
  return value[0];
}

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_GROUP_FRAME_CUH_
