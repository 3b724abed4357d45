// Forward of qk_norm_rope on the GPU: rows in registers from their only read to their only write.
//
// Traffic: q and k read once and written once; the tables once per block that takes the position,
// the weights once per block, from L2. Determinism: the order of each row's sum is fixed by the
// policy.

#ifndef KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_FORWARD_CUH_
#define KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_FORWARD_CUH_

#include "kernels/qk_norm_rope/norm_rope_frame.cuh"

namespace fuseboard::qk_norm_rope {

// (x / rms, rounded where the model rounds) * scale, rounded likewise.
template <typename X, typename Y, int kLanes>
__device__ __forceinline__ void Normalise(const Norm& norm, float rstd,
                                          const float (&scale)[2][kLanes], float (&x)[2][kLanes]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) x[j][i] *= rstd;
  }
  if (norm.round_normed) RoundRuns<X, kLanes>(x);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) x[j][i] *= scale[j][i];
  }
  if (norm.round_scaled) RoundRuns<Y, kLanes>(x);
}

// A thread's part of the sums of squares of a turn's heads.
template <bool kAllHeads, typename X, int kLanes, int kHeads>
__device__ __forceinline__ void SumSquares(const Runs<X, kLanes, kHeads>& in, const Place& place,
                                           const Turn& turn, RowSums<1> (&sums)[kHeads]) {
#pragma unroll
  for (int u = 0; u < kHeads; ++u) {
    float x[2][kLanes];
    in.Get(u, x);
    float square[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) square[j] += x[j][i] * x[j][i];
    }
    const bool counts = !kAllHeads || turn.Has(u);
    sums[u].value[0] =
        (place.has[0] && counts ? square[0] : 0.0f) + (place.has[1] && counts ? square[1] : 0.0f);
  }
}

// REQUIRES: heads in aligned runs of kLanes (HasRuns, IsAlignedHeads), and the weights; kWithin if
// and only if they are interleaved. kAllHeads: one turn takes all heads.
template <typename X, typename Y, bool kWithin, bool kAllHeads, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    QkNormRopeForwardKernel(const __grid_constant__ Call call, const __grid_constant__ Plan plans) {
  constexpr int kLanes = kPackLanes<X>;
  __shared__ RowSums<1> shared[2][kMaxWarps];
  const BlockAt block(plans);
  const Side& side = call.side[block.side];
  const SidePlan& plan = plans.side[block.side];
  const Rotation& r = call.rotation;
  const Norm& norm = call.norm;
  const Place place = PlaceOf<kLanes, kWithin>(r, plan, plans.slots);
  const int step = plan.policy.head_lanes;
  const int heads = static_cast<int>(side.x.count);
  const float inverse_features = 1.0f / static_cast<float>(plan.features);

  float scale[2][kLanes];
  if (!kAllHeads) LoadScale<kLanes>(side.weight, norm.offset, 0, place.slot, scale);
  int parity = 0;
  for (int64_t tile = block.index; tile < plan.tiles.count; tile += plan.blocks) {
    const Token token(r, plan, place, tile);
    const X* in = PositionOf<const X>(side.x, token);
    Y* out = PositionOf<Y>(side.out, token);
    // The first heads are under way while the factors come from L2.
    Turn turn = {place.head_lane, step, heads};
    Runs<X, kLanes, C::kUnroll> runs;
    runs.Load(in, side.x.head_stride, place.slot, turn);
    const auto factors = LoadRotaryFactors<X, kLanes, kWithin>(r, plans.table_runs, token.batch,
                                                               token.position, place.slot);
    for (int base = 0; base < heads; base += C::kUnroll * step, parity ^= 1) {
      RowSums<1> sums[C::kUnroll];
      SumSquares<kAllHeads>(runs, place, turn, sums);
      runs.Repack(plans.zero);
      SumRows<kAllHeads>(plan.policy, sums, shared[parity]);
#pragma unroll
      for (int u = 0; u < C::kUnroll; ++u) {
        if (!token.active || !turn.Has(u)) continue;
        const int head = turn.Head(u);
        if (kAllHeads) {
          LoadScale<kLanes>(side.weight, norm.offset, int64_t{head} * r.dim, place.slot, scale);
        }
        const float rstd = rsqrtf(sums[u].value[0] * inverse_features + norm.eps);
        float x[2][kLanes];
        runs.Get(u, x);
        Normalise<X, Y>(norm, rstd, scale, x);
        Rotate<Y, kWithin>(r, place.slot, factors, x);
        StoreRuns<Y, kLanes>(out + head * side.out.head_stride, place, x);
      }
      if (kAllHeads || base + C::kUnroll * step >= heads) continue;
      turn.first += C::kUnroll * step;
      runs.Load(in, side.x.head_stride, place.slot, turn);
    }
  }
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_FORWARD_CUH_
