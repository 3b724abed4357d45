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
  // What was loaded before is loaded again: floats that are kept take twice the registers.
  __device__ __forceinline__ static void Forget() { asm volatile("" ::: "memory"); }
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

template <int kSide, typename T, bool kRoundNormed, typename C>
__device__ __forceinline__ void NormRopePackedGradients(const Call& call, const PackedPlan& plan,
                                                        const HeadRing<T, C>& ring, int block) {
  constexpr int kLanes = kPackLanes<T>;
  using Ring = HeadRing<T, C>;
  const Rotation& r = call.rotation;
  const Side& side = call.side[kSide];
  const PackedSide& cut = plan.side[kSide];
  const PackedPlace place(plan, cut, kLanes);
  const auto count = static_cast<int>(side.x.count);
  const int step = cut.head_lanes;
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
        if (u > 0 && token.head + u * step >= count) break;
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

  float scale[2][kLanes];
  LoadPackedScale<kLanes>(side, call.norm.offset, place.column, r.pairs, scale);
  float dscale[2][kLanes] = {};
  const auto factors_of = [&](const PackedToken& t) {
    return LoadPackedFactors<T, kLanes>(r, t.batch, t.position, place.column);
  };
  auto factors = factors_of(token[0]);
  int stage = 0;
  for (int tile = block; tile < cut.tiles; tile += cut.blocks) {
    const int last_stage = stage == 0 ? C::kStages - 1 : stage - 1;
    const int last_tile = tile + (C::kStages - 1) * cut.blocks;
    token[C::kStages - 1] = token_of(last_tile);
    if (C::kStages == 1) factors = factors_of(token[0]);
    fetch(last_stage, token[C::kStages - 1], last_tile < cut.tiles);
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
    if constexpr (C::kStages > 1) factors = factors_of(token[1]);
    SumHeads(plan.width_shift, sums);
    ring.Forget();

    const PackedHeads<T> out(side.out, cut, token[0], place.column);
#pragma unroll
    for (int u = 0; u < C::kUnroll; ++u) {
      if (!token[0].active || token[0].head + u * step >= count) break;
      const float rstd = rsqrtf(fmaf(sums[2 * u], cut.inverse_features, call.norm.eps));
      const float mean = sums[2 * u + 1] * rstd * cut.inverse_features;  // Of g * n.
      T* head = out.Head(u);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float x[kLanes];
        float dv[kLanes];
        float n[kLanes];
        Unpack<T, kLanes>(ring.Load(stage, u, Ring::kX + j), x);
        Unpack<T, kLanes>(ring.Load(stage, u, Ring::kDy + j), dv);
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
#pragma unroll
    for (int i = 0; i < C::kStages - 1; ++i) token[i] = token[i + 1];
    stage = stage == C::kStages - 1 ? 0 : stage + 1;
  }
  if (cut.partials == nullptr) return;
  StorePackedSum<kLanes, C::kThreads>(plan, r.dim, dscale, cut.partials + int64_t{block} * r.dim);
}

// A persistent grid. The requirements of the forward, but for the weights, which are floats here.
template <typename T, bool kRoundNormed, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    QkNormRopePackedBackwardKernel(const __grid_constant__ Call call,
                                   const __grid_constant__ PackedPlan plan) {
  extern __shared__ uint4 ring_memory[];
  AllowDependentLaunch();
  const HeadRing<T, C> ring(ring_memory);
  ForPackedSide(plan, [&](auto side, int block) {
    NormRopePackedGradients<side.value, T, kRoundNormed, C>(call, plan, ring, block);
  });
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_PACKED_BACKWARD_CUH_
