// Backward of qk_norm_rope on the GPU of rows that are all heads of a position, with tables of f32.
// The formulas are those of qk_norm_rope_backward.cuh.
//
// Traffic, determinism: as QkNormRopeBackwardKernel.

#ifndef KERNELS_QK_NORM_ROPE_ROW_BACKWARD_CUH_
#define KERNELS_QK_NORM_ROPE_ROW_BACKWARD_CUH_

#include "kernels/qk_norm_rope/packed_backward.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_backward.cuh"
#include "kernels/qk_norm_rope/row_frame.cuh"

namespace fuseboard::qk_norm_rope {

template <int kSide, typename T, typename C>
__device__ __forceinline__ void NormRopeRowGradients(const Call& call, const PackedPlan& plan,
                                                     const HeadRing<T, C>& ring, int block,
                                                     RowSums<2> (&shared)[2][kMaxWarps]) {
  constexpr int kLanes = kPackLanes<T>;
  using Ring = HeadRing<T, C>;
  const Rotation& r = call.rotation;
  const Side& side = call.side[kSide];
  const PackedSide& cut = plan.side[kSide];
  const PackedPlace place(plan, cut, kLanes);
  const auto count = static_cast<int>(side.x.count);
  const int left = place.has ? count - place.head_lane : 0;  // Heads.
  const auto has = [&](int u) { return u * cut.head_lanes < left; };
  // Past the last tile the last one, whose factors may be read.
  const auto token_of = [&](int tile) {
    return PackedToken(r, cut, count, place, C::kUnroll, min(tile, cut.tiles - 1));
  };
  const auto fetch = [&](int stage, const PackedToken& token, bool any) {
    if (any) {
      const PackedHeads<const T> dy(side.upstream, cut, token, place.column);
      const PackedHeads<const T> x(side.x, cut, token, place.column);
#pragma unroll
      for (int u = 0; u < C::kUnroll; ++u) {
        if (!has(u)) break;
        ring.Fetch(stage, u, Ring::kDy, dy.Head(u), r.pairs);
        ring.Fetch(stage, u, Ring::kX, x.Head(u), r.pairs);
      }
    }
    CopyAsyncCommit();
  };
  // Those of the tiles in the ring, the one that is worked on first.
  PackedToken token[C::kStages] = {token_of(block)};
#pragma unroll
  for (int i = 0; i < C::kStages - 1; ++i) {
    const int tile = block + i * cut.blocks;
    token[i] = token_of(tile);
    fetch(i, token[i], tile < cut.tiles);
  }

  const RowWeight<T, kLanes, C::kUnroll> weight(side, cut, r.dim, token[0].head, place.column, has);
  float dscale[C::kUnroll][2][kLanes] = {};
  int stage = 0;
  int parity = 0;
  for (int tile = block; tile < cut.tiles; tile += cut.blocks, parity ^= 1) {
    const int last_stage = stage == 0 ? C::kStages - 1 : stage - 1;
    const int last_tile = tile + (C::kStages - 1) * cut.blocks;
    token[C::kStages - 1] = token_of(last_tile);
    const auto factors = LoadWideFactors<kLanes>(r, token[0], place.column);
    fetch(last_stage, token[C::kStages - 1], last_tile < cut.tiles);
    CopyAsyncWait<C::kStages - 1>();

    RowSums<2> sums = {};  // Of x^2 and of g * x.
#pragma unroll
    for (int u = 0; u < C::kUnroll; ++u) {
      float dy[2][kLanes];
      float turned[2][kLanes];
      float square = 0.0f;
      float product = 0.0f;
#pragma unroll
      for (int j = 0; j < 2; ++j) Unpack<T, kLanes>(ring.Load(stage, u, Ring::kDy + j), dy[j]);
      RotateSlot<T, false, false>(factors, dy, turned);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Lanes<T, kLanes> dv = PackFloats<T, kLanes>(turned[j]);
        ring.Store(stage, u, Ring::kDy + j, dv);
        float x[kLanes];
        float g[kLanes];
        float w[kLanes];
        Unpack<T, kLanes>(ring.Load(stage, u, Ring::kX + j), x);
        Unpack<T, kLanes>(dv, g);
        Unpack<T, kLanes>(weight.run[u][j], w);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          square = fmaf(x[i], x[i], square);
          product = fmaf(g[i] * w[i], x[i], product);
        }
      }
      sums.value[0] += has(u) ? square : 0.0f;
      sums.value[1] += has(u) ? product : 0.0f;
    }
    sums = GroupSums(sums, cut.head_lanes << plan.width_shift, shared[parity]);
    ring.Forget();

    const RowFactors row(sums, cut.inverse_features, call.norm.eps);
    const PackedHeads<T> out(side.out, cut, token[0], place.column);
#pragma unroll
    for (int u = 0; u < C::kUnroll; ++u) {
      if (!token[0].active || !has(u)) break;
      T* head = out.Head(u);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float x[kLanes];
        float dv[kLanes];
        float w[kLanes];
        Unpack<T, kLanes>(ring.Load(stage, u, Ring::kX + j), x);
        Unpack<T, kLanes>(ring.Load(stage, u, Ring::kDy + j), dv);
        Unpack<T, kLanes>(Renewed(weight.run[u][j], plan.zero), w);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          const float n = x[i] * row.rstd;
          x[i] = row.rstd * (dv[i] * w[i] - n * row.mean);
          dscale[u][j][i] = fmaf(dv[i], n, dscale[u][j][i]);
        }
        if (side.out.base != nullptr) StoreFloats<T, kLanes>(head + j * r.pairs, x);
      }
    }
#pragma unroll
    for (int i = 0; i < C::kStages - 1; ++i) token[i] = token[i + 1];
    stage = stage == C::kStages - 1 ? 0 : stage + 1;
  }
  if (cut.partials == nullptr) return;

  const Policy policy = {1 << plan.width_shift, cut.head_lanes, cut.token_lanes};
  const int group = policy.width * policy.head_lanes;
  float* partial = cut.partials + int64_t{block} * count * r.dim;
#pragma unroll
  for (int u = 0; u < C::kUnroll; ++u) {
    StoreBlockSum<kLanes, false, C::kThreads>(r, plan.slots, policy, group, C::kThreads / group,
                                              u * cut.head_lanes, count, dscale[u], partial);
  }
}

// A persistent grid. REQUIRES: TakesRows.
template <typename T, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    QkNormRopeRowBackwardKernel(const __grid_constant__ Call call,
                                const __grid_constant__ PackedPlan plan) {
  extern __shared__ uint4 ring_memory[];
  __shared__ RowSums<2> shared[2][kMaxWarps];
  AllowDependentLaunch();
  const HeadRing<T, C> ring(ring_memory);
  ForPackedSide(plan, [&](auto side, int block) {
    NormRopeRowGradients<side.value, T, C>(call, plan, ring, block, shared);
  });
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_ROW_BACKWARD_CUH_
