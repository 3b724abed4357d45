// The kernels of rescale.h. Tiles go from the last to the first: who made the gradient wrote its
// end last, which is still in the L2 cache, and who reads it next finds its beginning there. All
// may be launched dependent.

#ifndef KERNELS_COMMON_RESCALE_CUH_
#define KERNELS_COMMON_RESCALE_CUH_

#include "kernels/common/rescale_policy.h"
#include "kernels/common/vector.cuh"

namespace fuseboard::rescale {

// A tensor of any base and length: aligned runs of 16 bytes, and the fewer than 16 bytes before and
// after them, which are taken element by element.
template <typename T>
struct Gradient {
  static constexpr int kLanes = kPackLanes<T>;

  T* base;
  int64_t runs;
  int32_t head;   // Elements before the first run.
  int32_t edges;  // Elements in no run: at most 2 * (kLanes - 1).

  __device__ __forceinline__ T* AddressOfRun(int64_t run) const {
    return base + head + run * kLanes;
  }
  __device__ __forceinline__ T* AddressOfEdge(int edge) const {
    return base + (edge < head ? edge : runs * kLanes + edge);
  }
};

template <typename T, int kLanes>
__device__ __forceinline__ Lanes<T, kLanes> Scaled(const Lanes<T, kLanes>& run, float factor) {
  float x[kLanes];
  Unpack<T, kLanes>(run, x);
#pragma unroll
  for (float& value : x) value *= factor;
  return PackFloats<T, kLanes>(x);
}

template <typename T, typename C>
__device__ __forceinline__ void ScaleTile(const Gradient<T>& gradient, int64_t tile, float factor) {
  constexpr int kLanes = kPackLanes<T>;
  const int64_t first = tile * C::kTileRuns + threadIdx.x;
  T* address = gradient.AddressOfRun(first);
  const auto left = static_cast<int>(min(gradient.runs - first, int64_t{C::kTileRuns}));
  Lanes<T, kLanes> runs[C::kUnroll];
#pragma unroll
  for (int u = 0; u < C::kUnroll; ++u) {
    if (u * C::kThreads >= left) break;
    runs[u] = LoadLanes<T, kLanes>(address + u * C::kThreads * kLanes);
  }
#pragma unroll
  for (int u = 0; u < C::kUnroll; ++u) {
    if (u * C::kThreads >= left) break;
    const Lanes<T, kLanes> scaled = Scaled<T, kLanes>(runs[u], factor);
    StoreGlobal16(address + u * C::kThreads * kLanes, scaled.word[0], scaled.word[1],
                  scaled.word[2], scaled.word[3]);
  }
}

// By the first block.
template <typename T>
__device__ __forceinline__ void ScaleEdges(const Gradient<T>& gradient, float factor) {
  const auto edge = static_cast<int>(threadIdx.x);
  if (blockIdx.x > 0 || edge >= gradient.edges) return;
  T* address = gradient.AddressOfEdge(edge);
  StoreLanes<T, 1>(address, Scaled<T, 1>(LoadLanes<T, 1>(address), factor));
}

template <typename T, typename C>
__global__ void __launch_bounds__(C::kThreads)
    RescaleKernel(const __grid_constant__ Gradient<T> gradient, const __grid_constant__ Plan plan,
                  const float* factor_at) {
  WaitForPredecessor();
  const float factor = *factor_at;
  if (factor == 1.0f) return;
  const uint32_t round = blockIdx.x / plan.blocks;
  const uint32_t rank = blockIdx.x - round * plan.blocks;
  const int64_t round_tiles = int64_t{plan.blocks} * kRoundTiles;
  const int64_t end = min(plan.tiles, (round + 1) * round_tiles);
  for (int64_t i = round * round_tiles + rank; i < end; i += plan.blocks) {
    ScaleTile<T, C>(gradient, plan.tiles - 1 - i, factor);
  }
  ScaleEdges(gradient, factor);
}

// REQUIRES: *drawn is 0.
template <typename T, typename C>
__global__ void __launch_bounds__(C::kThreads)
    RescaleDrawnKernel(const __grid_constant__ Gradient<T> gradient,
                       const __grid_constant__ Plan plan, const float* factor_at, uint32_t* drawn) {
  __shared__ uint32_t shared[2];  // One barrier a tile: they take turns.
  WaitForPredecessor();
  const float factor = *factor_at;
  if (factor == 1.0f) return;
  int turn = 0;
  for (int64_t i = blockIdx.x; i < plan.tiles; turn ^= 1) {
    uint32_t next = 0;  // On its way while the tile is.
    if (threadIdx.x == 0) next = atomicAdd(drawn, 1u);
    ScaleTile<T, C>(gradient, plan.tiles - 1 - i, factor);
    if (threadIdx.x == 0) shared[turn] = next;
    __syncthreads();
    i = int64_t{shared[turn]} + gridDim.x;
  }
  ScaleEdges(gradient, factor);
}

}  // namespace fuseboard::rescale

#endif  // KERNELS_COMMON_RESCALE_CUH_
