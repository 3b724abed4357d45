// Backward of qk_norm_rope on the GPU, rotated two 16-bit floats at a time. The formulas are those
// of qk_norm_rope_backward.cuh.
//
// Traffic, determinism: as QkNormRopeBackwardKernel.

#ifndef KERNELS_QK_NORM_ROPE_PACKED_BACKWARD_CUH_
#define KERNELS_QK_NORM_ROPE_PACKED_BACKWARD_CUH_

#include "kernels/qk_norm_rope/packed_frame.cuh"

namespace fuseboard::qk_norm_rope {

// A ring of the heads of kStages tiles in shared memory: for each head two runs of dy and two of x.
// A thread has its own slots, side by side with its neighbours' (no bank conflicts), and touches no
// other's, so that the ring needs no barrier.
template <typename T, typename C>
struct HeadRing {
  static constexpr int kLanes = kPackLanes<T>;
  static constexpr int kBytes = C::kStages * C::kUnroll * 4 * 16 * C::kThreads;
  enum Run { kDy = 0, kX = 2 };

  uint4* base;

  __device__ __forceinline__ explicit HeadRing(uint4* shared) : base(shared + threadIdx.x) {}

  __device__ __forceinline__ T* Slot(int stage, int u, int run) const {
    return reinterpret_cast<T*>(base + ((stage * C::kUnroll + u) * 4 + run) * C::kThreads);
  }
  __device__ __forceinline__ Lanes<T, kLanes> Load(int stage, int u, int run) const {
    return LoadLanes<T, kLanes>(Slot(stage, u, run));
  }
  __device__ __forceinline__ void Store(int stage, int u, int run,
                                        const Lanes<T, kLanes>& lanes) const {
    StoreLanes<T, kLanes>(Slot(stage, u, run), lanes);
  }
  // Starts copying both runs of head `u`.
  __device__ __forceinline__ void Fetch(int stage, int u, int run, const T* head,
                                        int64_t second) const {
    CopyAsync16(Slot(stage, u, run), head);
    CopyAsync16(Slot(stage, u, run + 1), head + second);
  }
};

// Adds up `dscale` over the groups of the block, in their order, and writes the sums to `partial`.
template <int kLanes, int kThreads>
__device__ __forceinline__ void StorePackedSum(const PackedPlan& plan, int dim,
                                               const float (&dscale)[2][kLanes], float* partial) {
  __shared__ float sums[kThreads * kLanes];
  const int width = 1 << plan.width_shift;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    __syncthreads();
    StoreFloats<float, kLanes>(sums + threadIdx.x * kLanes, dscale[j]);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < plan.slots * kLanes; i += kThreads) {
      float sum = 0.0f;
      for (int at = i; at < kThreads * kLanes; at += width * kLanes) sum += sums[at];
      partial[j * dim / 2 + i] = sum;
    }
  }
}

// A persistent grid. The requirements of the forward, but for the weights, which are floats here.
template <typename T, bool kRoundNormed, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    QkNormRopePackedBackwardKernel(const __grid_constant__ Call call,
                                   const __grid_constant__ PackedPlan plan) {
  constexpr int kLanes = kPackLanes<T>;
  using Ring = HeadRing<T, C>;
  extern __shared__ uint4 ring_memory[];
  const Ring ring(ring_memory);
  AllowDependentLaunch();
  const Rotation& r = call.rotation;
  const PackedBlock block(plan);
  const Side& side = call.side[block.side];
  const PackedSide& cut = plan.side[block.side];
  const PackedPlace place(plan, cut, kLanes);
  const auto count = static_cast<int>(side.x.count);
  const int step = cut.head_lanes;
  // Past the last tile the last one, whose factors may be read.
  const auto token_of = [&](int tile) {
    return PackedToken(r, cut, place, C::kUnroll, min(tile, cut.tiles - 1));
  };
  const auto fetch = [&](int stage, int tile) {
    if (tile < cut.tiles) {
      const PackedToken token = token_of(tile);
      const PackedHeads<const T> dy(side.upstream, cut, token, place.column);
      const PackedHeads<const T> x(side.x, cut, token, place.column);
#pragma unroll
      for (int u = 0; u < C::kUnroll; ++u) {
        const bool has = token.head + u * step < count;
        ring.Fetch(stage, u, Ring::kDy, dy.Head(u, has), r.pairs);
        ring.Fetch(stage, u, Ring::kX, x.Head(u, has), r.pairs);
      }
    }
    CopyAsyncCommit();
  };
#pragma unroll
  for (int stage = 0; stage < C::kStages - 1; ++stage) fetch(stage, block.index + stage * cut.blocks);

  float scale[2][kLanes];
  LoadPackedScale<kLanes>(side, call.norm.offset, place.column, r.pairs, scale);
  float dscale[2][kLanes] = {};
  PackedToken token = token_of(block.index);
  auto factors = LoadPackedFactors<T, kLanes>(r, token.batch, token.position, place.column);
  int stage = 0;
  for (int tile = block.index; tile < cut.tiles; tile += cut.blocks) {
    const int last_stage = stage == 0 ? C::kStages - 1 : stage - 1;
    fetch(last_stage, tile + (C::kStages - 1) * cut.blocks);
    CopyAsyncWait<C::kStages - 1>();

    float sums[2 * C::kUnroll];  // Of x^2 and of g * x.
#pragma unroll
    for (int u = 0; u < C::kUnroll; ++u) {
      Lanes<T, kLanes> dv[2] = {ring.Load(stage, u, Ring::kDy), ring.Load(stage, u, Ring::kDy + 1)};
      RotatePacked(factors, dv);
      float square[2] = {0.0f, 0.0f};
      float product[2] = {0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        ring.Store(stage, u, Ring::kDy + j, dv[j]);
        float x[kLanes];
        float g[kLanes];
        Unpack<T, kLanes>(ring.Load(stage, u, Ring::kX + j), x);
        Unpack<T, kLanes>(dv[j], g);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          square[j] = fmaf(x[i], x[i], square[j]);
          product[j] = fmaf(g[i] * scale[j][i], x[i], product[j]);
        }
      }
      sums[2 * u] = place.has ? square[0] + square[1] : 0.0f;
      sums[2 * u + 1] = place.has ? product[0] + product[1] : 0.0f;
    }
    const PackedToken next = token_of(tile + cut.blocks);
    factors = LoadPackedFactors<T, kLanes>(r, next.batch, next.position, place.column);
    SumHeads(plan.width_shift, sums);

    const PackedHeads<T> out(side.out, cut, token, place.column);
#pragma unroll
    for (int u = 0; u < C::kUnroll; ++u) {
      if (!token.active || token.head + u * step >= count) break;
      const float rstd = rsqrtf(fmaf(sums[2 * u], plan.inverse_dim, call.norm.eps));
      const float mean = sums[2 * u + 1] * rstd * plan.inverse_dim;  // Of g * n.
      T* head = out.Head(u, true);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float x[kLanes];
        float dv[kLanes];
        float n[kLanes];
        Unpack<T, kLanes>(Renewed(ring.Load(stage, u, Ring::kX + j), plan.zero), x);
        Unpack<T, kLanes>(Renewed(ring.Load(stage, u, Ring::kDy + j), plan.zero), dv);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          n[i] = x[i] * rstd;
          x[i] = rstd * (dv[i] * scale[j][i] - n[i] * mean);
        }
        if (side.out.base != nullptr) StoreFloats<T, kLanes>(head + j * r.pairs, x);
        if (kRoundNormed) RoundFloats<T, kLanes>(n);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dscale[j][i] = fmaf(dv[i], n[i], dscale[j][i]);
      }
    }
    token = next;
    stage = stage == C::kStages - 1 ? 0 : stage + 1;
  }
  if (cut.partials == nullptr) return;
  StorePackedSum<kLanes, C::kThreads>(plan, r.dim, dscale, cut.partials + int64_t{block.index} * r.dim);
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_PACKED_BACKWARD_CUH_
