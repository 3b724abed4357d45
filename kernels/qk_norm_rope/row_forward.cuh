// Forward of qk_norm_rope on the GPU of rows that are all heads of a position, with tables of f32.
//
// Traffic, determinism: as QkNormRopeForwardKernel.

#ifndef KERNELS_QK_NORM_ROPE_ROW_FORWARD_CUH_
#define KERNELS_QK_NORM_ROPE_ROW_FORWARD_CUH_

#include "kernels/qk_norm_rope/row_frame.cuh"

namespace fuseboard::qk_norm_rope {

template <int kSide, typename T, typename C>
__device__ __forceinline__ void NormRopeRowTile(const Call& call, const PackedPlan& plan, int tile,
                                                RowSums<1>* shared) {
  constexpr int kLanes = kPackLanes<T>;
  const Rotation& r = call.rotation;
  const Side& side = call.side[kSide];
  const PackedSide& cut = plan.side[kSide];
  const PackedPlace place(plan, cut, kLanes);
  const PackedToken token(r, cut, side.x.count, place, C::kUnroll, tile);
  const int left = place.has ? static_cast<int>(side.x.count) - place.head_lane : 0;  // Heads.
  const auto has = [&](int u) { return u * cut.head_lanes < left; };

  const PackedHeads<const T> in(side.x, cut, token, place.column);
  Lanes<T, kLanes> held[C::kUnroll][2];
#pragma unroll
  for (int u = 0; u < C::kUnroll; ++u) {
    const T* head = in.HeadOr(u, has(u));
    held[u][0] = LoadLanes<T, kLanes>(head);
    held[u][1] = LoadLanes<T, kLanes>(head + r.pairs);
  }
  // On their way from L2 while the sums are taken.
  const RowWeight<T, kLanes, C::kUnroll> weight(side, cut, r.dim, token.head, place.column, has);
  const auto factors = LoadWideFactors<kLanes>(r, token, place.column);

  RowSums<1> sum = {{0.0f}};
#pragma unroll
  for (int u = 0; u < C::kUnroll; ++u) {
    float squares[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float x[kLanes];
      Unpack<T, kLanes>(held[u][j], x);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) squares[j] = fmaf(x[i], x[i], squares[j]);
    }
    sum.value[0] += has(u) ? squares[0] + squares[1] : 0.0f;
  }
  sum = GroupSums(sum, cut.head_lanes << plan.width_shift, shared);
  if (!token.active) return;

  const PackedHeads<T> out(side.out, cut, token, place.column);
  const float rstd = rsqrtf(fmaf(sum.value[0], cut.inverse_features, call.norm.eps));
#pragma unroll
  for (int u = 0; u < C::kUnroll; ++u) {
    if (!has(u)) break;
    float v[2][kLanes];
    float turned[2][kLanes];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float w[kLanes];
      Unpack<T, kLanes>(Renewed(held[u][j], plan.zero), v[j]);
      Unpack<T, kLanes>(weight.run[u][j], w);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) v[j][i] = v[j][i] * rstd * w[i];
      RoundFloats<T, kLanes>(v[j]);
    }
    RotateSlot<T, false, false>(factors, v, turned);
    T* head = out.Head(u);
    StoreFloats<T, kLanes>(head, turned[0]);
    StoreFloats<T, kLanes>(head + r.pairs, turned[1]);
  }
}

// One block per tile. REQUIRES: TakesRows.
template <typename T, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    QkNormRopeRowForwardKernel(const __grid_constant__ Call call,
                               const __grid_constant__ PackedPlan plan) {
  __shared__ RowSums<1> shared[kMaxWarps];
  ForPackedSide(plan, [&](auto side, int tile) {
    NormRopeRowTile<side.value, T, C>(call, plan, tile, shared);
  });
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_ROW_FORWARD_CUH_
