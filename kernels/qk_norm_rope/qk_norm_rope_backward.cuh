// Backward of qk_norm_rope on the GPU. With dv the gradient dy rotated back and rounded to its
// dtype, n = x * rstd and g = dv * (offset + weight):
//   dx = rstd * (g - n * mean(g * n)),   dweight = sum over rows of dv * n  (n rounded to the dtype
//   of x where the model rounds it)
//
// Traffic: dy and x read once, dx written once; one row of f32 per block written and read for
// dweight, which stays in L2. The sums of x^2 and of g * x are taken together, so that the forward
// saves nothing. Determinism: each thread adds its heads in order, each block its threads, and then
// SumPartialsKernel the blocks, whose number depends on the shape and the number of
// multiprocessors only.

#ifndef KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_BACKWARD_CUH_
#define KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_BACKWARD_CUH_

#include "kernels/qk_norm_rope/norm_rope_frame.cuh"

namespace fuseboard::qk_norm_rope {

// What a row's sums say about its gradient.
struct RowFactors {
  float rstd;
  float mean;  // Of g * n.

  // `sums` of x^2 and g * x.
  __device__ __forceinline__ RowFactors(const RowSums<2>& sums, float inverse_features, float eps)
      : rstd(rsqrtf(sums.value[0] * inverse_features + eps)),
        mean(sums.value[1] * rstd * inverse_features) {}
};

// A thread's part of a row's sums of x^2 and g * x.
template <int kLanes>
__device__ __forceinline__ RowSums<2> SumProducts(const float (&x)[2][kLanes],
                                                  const float (&dv)[2][kLanes],
                                                  const float (&scale)[2][kLanes],
                                                  const Place& place, bool counts) {
  RowSums<2> sums = {};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float square = 0.0f;
    float product = 0.0f;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      square += x[j][i] * x[j][i];
      product += dv[j][i] * scale[j][i] * x[j][i];
    }
    sums.value[0] += place.has[j] && counts ? square : 0.0f;
    sums.value[1] += place.has[j] && counts ? product : 0.0f;
  }
  return sums;
}

// Makes x the gradient of x and adds dv * n to `dscale`.
template <typename X, int kLanes>
__device__ __forceinline__ void BackwardRuns(const Norm& norm, const RowFactors& row,
                                             const float (&dv)[2][kLanes],
                                             const float (&scale)[2][kLanes], float (&x)[2][kLanes],
                                             float (&dscale)[2][kLanes]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float n[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      n[i] = x[j][i] * row.rstd;
      x[j][i] = row.rstd * (dv[j][i] * scale[j][i] - n[i] * row.mean);
    }
    if (norm.round_normed) RoundFloats<X, kLanes>(n);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) dscale[j][i] += dv[j][i] * n[i];
  }
}

// Adds up `dscale` over the threads of the block that have the same features, in their order, and
// writes the sums to `partial` + `begin` of the thread's own head. A row's features are held by
// `group` neighbouring threads; `groups` of them follow one another.
template <int kLanes, bool kWithin, int kThreads>
__device__ __forceinline__ void StoreBlockSum(const Rotation& r, int slots, const Policy& policy,
                                              int group, int groups, int head0, int heads,
                                              const float (&dscale)[2][kLanes], float* partial) {
  __shared__ float sums[kThreads * kLanes];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    __syncthreads();
    StoreFloats<float, kLanes>(sums + threadIdx.x * kLanes, dscale[j]);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < group * kLanes; i += kThreads) {
      const int thread = i / kLanes;
      const int s = thread % policy.width;
      const int head = head0 + thread / policy.width;
      const RotarySlot slot = RotarySlotOf<kLanes, kWithin>(r, min(s, slots - 1));
      if (s >= slots || head >= heads || (j == 1 && !slot.has_second)) continue;
      float sum = 0.0f;
      for (int g = 0; g < groups; ++g) sum += sums[g * group * kLanes + i];
      partial[int64_t{head} * r.dim + (j == 0 ? slot.first : slot.second) + i % kLanes] = sum;
    }
  }
}

// A persistent grid. The same requirements as the forward's.
template <typename X, typename Y, bool kWithin, bool kAllHeads, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    QkNormRopeBackwardKernel(const __grid_constant__ Call call,
                             const __grid_constant__ Plan plans) {
  constexpr int kLanes = kPackLanes<X>;
  __shared__ RowSums<2> shared[2][kMaxWarps];
  AllowDependentLaunch();
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
  float dscale[kAllHeads ? C::kUnroll : 1][2][kLanes] = {};
  int parity = 0;
  for (int64_t tile = block.index; tile < plan.tiles.count; tile += plan.blocks) {
    const Token token(r, plan, place, tile);
    const Y* dy_base = PositionOf<const Y>(side.upstream, token);
    const X* x_base = PositionOf<const X>(side.x, token);
    X* dx_base = PositionOf<X>(side.out, token);
    Turn turn = {place.head_lane, step, heads};
    Runs<Y, kLanes, C::kUnroll> dy_runs;
    Runs<X, kLanes, C::kUnroll> x_runs;
    dy_runs.Load(dy_base, side.upstream.head_stride, place.slot, turn);
    x_runs.Load(x_base, side.x.head_stride, place.slot, turn);
    const auto factors = LoadRotaryFactors<X, kLanes, kWithin>(r, plans.table_runs, token.batch,
                                                               token.position, place.slot);
    for (int base = 0; base < heads; base += C::kUnroll * step, parity ^= 1) {
      RowSums<2> sums[C::kUnroll];
#pragma unroll
      for (int u = 0; u < C::kUnroll; ++u) {
        float x[2][kLanes];
        float dv[2][kLanes];
        dy_runs.Get(u, dv);
        Rotate<Y, kWithin>(r, place.slot, factors, dv);
        RoundRuns<Y, kLanes>(dv);
        dy_runs.Set(u, dv);
        x_runs.Get(u, x);
        if (kAllHeads) {
          const int64_t begin = int64_t{min(turn.Head(u), heads - 1)} * r.dim;
          LoadScale<kLanes>(side.weight, norm.offset, begin, place.slot, scale);
        }
        sums[u] = SumProducts<kLanes>(x, dv, scale, place, !kAllHeads || turn.Has(u));
      }
      x_runs.Repack(plans.zero);
      dy_runs.Repack(plans.zero);
      SumRows<kAllHeads>(plan.policy, sums, shared[parity]);
#pragma unroll
      for (int u = 0; u < C::kUnroll; ++u) {
        if (!token.active || !turn.Has(u)) continue;
        const int head = turn.Head(u);
        if (kAllHeads) {
          LoadScale<kLanes>(side.weight, norm.offset, int64_t{head} * r.dim, place.slot, scale);
        }
        float x[2][kLanes];
        float dv[2][kLanes];
        x_runs.Get(u, x);
        dy_runs.Get(u, dv);
        BackwardRuns<X, kLanes>(norm, RowFactors(sums[u], inverse_features, norm.eps), dv, scale, x,
                                dscale[kAllHeads ? u : 0]);
        if (side.out.base == nullptr) continue;
        StoreRuns<X, kLanes>(dx_base + head * side.out.head_stride, place, x);
      }
      if (kAllHeads || base + C::kUnroll * step >= heads) continue;
      turn.first += C::kUnroll * step;
      dy_runs.Load(dy_base, side.upstream.head_stride, place.slot, turn);
      x_runs.Load(x_base, side.x.head_stride, place.slot, turn);
    }
  }
  if (plan.partials == nullptr) return;

  float* partial = plan.partials + block.index * plan.features;
  const int group = plan.policy.width * (kAllHeads ? step : 1);
#pragma unroll
  for (int u = 0; u < (kAllHeads ? C::kUnroll : 1); ++u) {
    StoreBlockSum<kLanes, kWithin, C::kThreads>(r, plans.slots, plan.policy, group,
                                                C::kThreads / group, u * step,
                                                kAllHeads ? heads : 1, dscale[u], partial);
  }
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_BACKWARD_CUH_
