// Rotary position embedding on the GPU, two 16-bit floats at a time: where each product is rounded
// to the dtype of the heads, as in a model's own code (IsPackable).
//
// Traffic, determinism: as RopeKernel.

#ifndef KERNELS_ROPE_ROPE_PACKED_CUH_
#define KERNELS_ROPE_ROPE_PACKED_CUH_

#include "kernels/common/rotary_packed.cuh"
#include "kernels/rope/rope_call.h"
#include "kernels/rope/rope_policy.h"

namespace fuseboard::rope {

template <int kSide, typename T, typename C>
__device__ __forceinline__ void RopePackedTile(const Call& call, const PackedPlan& plan, int tile) {
  constexpr int kLanes = kPackLanes<T>;
  const Rotation& r = call.rotation;
  const PackedSide& cut = plan.side[kSide];
  const PackedPlace place(plan, cut, kLanes);
  const PackedToken token(r, cut, call.in[kSide].count, place, C::kUnroll, tile);
  if (!token.active) return;
  const int left = static_cast<int>(call.in[kSide].count) - token.head;  // Heads.
  const auto has = [&](int u) { return u * cut.head_lanes < left; };

  const PackedHeads<const T> in(call.in[kSide], cut, token, place.column);
  Lanes<T, kLanes> x[C::kUnroll][2];
#pragma unroll
  for (int u = 0; u < C::kUnroll; ++u) {
    const T* head = in.HeadOr(u, has(u));
    x[u][0] = LoadLanes<T, kLanes>(head);
    x[u][1] = LoadLanes<T, kLanes>(head + r.pairs);
  }
  const auto factors = LoadPackedFactors<T, kLanes>(r, token.batch, token.position, place.column);
  const PackedHeads<T> out(call.out[kSide], cut, token, place.column);
#pragma unroll
  for (int u = 0; u < C::kUnroll; ++u) {
    if (!has(u)) break;
    RotatePacked(factors, x[u]);
    T* head = out.Head(u);
    StoreLanes<T, kLanes>(head, x[u][0]);
    StoreLanes<T, kLanes>(head + r.pairs, x[u][1]);
  }
}

// One block per tile. REQUIRES: IsPackable heads in aligned runs of 16 bytes.
template <typename T, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    RopePackedKernel(const __grid_constant__ Call call, const __grid_constant__ PackedPlan plan) {
  ForPackedSide(plan,
                [&](auto side, int tile) { RopePackedTile<side.value, T, C>(call, plan, tile); });
}

}  // namespace fuseboard::rope

#endif  // KERNELS_ROPE_ROPE_PACKED_CUH_
