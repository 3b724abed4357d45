// Forward of qk_norm_rope on the GPU, two 16-bit floats at a time: rows in registers from their
// only read to their only write.
//
// Traffic: as QkNormRopeForwardKernel. Determinism: the order of each row's sum is fixed by the
// policy.

#ifndef KERNELS_QK_NORM_ROPE_PACKED_FORWARD_CUH_
#define KERNELS_QK_NORM_ROPE_PACKED_FORWARD_CUH_

#include "kernels/qk_norm_rope/packed_frame.cuh"

namespace fuseboard::qk_norm_rope {

// The weight as the forward multiplies by it: words of T if n is rounded before, else floats.
template <typename T, bool kRoundNormed, int kLanes>
struct PackedScale {
  Lanes<T, kLanes> word[2];

  __device__ __forceinline__ PackedScale(const Side& side, const Norm& /*norm*/, int column,
                                         int second) {
    float ones[kLanes];
#pragma unroll
    for (float& one : ones) one = 1.0f;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      word[j] = PackFloats<T, kLanes>(ones);
      if (side.weight.data == nullptr) continue;
      word[j] = LoadLanes<T, kLanes>(static_cast<const T*>(side.weight.data) + column + j * second);
    }
  }

  // x * rstd * weight of run j.
  __device__ __forceinline__ Lanes<T, kLanes> Apply(int j, float rstd,
                                                    const float (&x)[kLanes]) const {
    float n[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) n[i] = x[i] * rstd;
    Lanes<T, kLanes> v = PackFloats<T, kLanes>(n);
#pragma unroll
    for (int i = 0; i < Lanes<T, kLanes>::kWords; ++i) {
      v.word[i] = MultiplyWords<T>(v.word[i], word[j].word[i]);
    }
    return v;
  }
};

template <typename T, int kLanes>
struct PackedScale<T, false, kLanes> {
  float value[2][kLanes];

  __device__ __forceinline__ PackedScale(const Side& side, const Norm& norm, int column,
                                         int second) {
    LoadPackedScale<kLanes>(side, norm.offset, column, second, value);
  }

  __device__ __forceinline__ Lanes<T, kLanes> Apply(int j, float rstd,
                                                    const float (&x)[kLanes]) const {
    float v[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) v[i] = x[i] * rstd * value[j][i];
    return PackFloats<T, kLanes>(v);
  }
};

template <int kSide, typename T, bool kRoundNormed, typename C>
__device__ __forceinline__ void NormRopePackedTile(const Call& call, const PackedPlan& plan,
                                                   int tile) {
  constexpr int kLanes = kPackLanes<T>;
  const Rotation& r = call.rotation;
  const Side& side = call.side[kSide];
  const PackedSide& cut = plan.side[kSide];
  const PackedPlace place(plan, cut, kLanes);
  const PackedToken token(r, cut, side.x.count, place, C::kUnroll, tile);
  const int left = static_cast<int>(side.x.count) - token.head;  // Heads.
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
  const auto factors = LoadPackedFactors<T, kLanes>(r, token.batch, token.position, place.column);
  const PackedScale<T, kRoundNormed, kLanes> scale(side, call.norm, place.column, r.pairs);

  float sums[C::kUnroll];
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
    sums[u] = place.has ? squares[0] + squares[1] : 0.0f;
  }
  SumHeads(plan.width_shift, sums);
  if (!token.active) return;

  const PackedHeads<T> out(side.out, cut, token, place.column);
#pragma unroll
  for (int u = 0; u < C::kUnroll; ++u) {
    if (!has(u)) break;
    const float rstd = rsqrtf(fmaf(sums[u], cut.inverse_features, call.norm.eps));
    Lanes<T, kLanes> v[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float x[kLanes];
      Unpack<T, kLanes>(Renewed(held[u][j], plan.zero), x);
      v[j] = scale.Apply(j, rstd, x);
    }
    RotatePacked(factors, v);
    T* head = out.Head(u);
    StoreLanes<T, kLanes>(head, v[0]);
    StoreLanes<T, kLanes>(head + r.pairs, v[1]);
  }
}

// One block per tile: a loop over tiles would cost registers.
// REQUIRES: IsPackable heads in aligned runs of 16 bytes, norm.round_scaled; kRoundNormed as
// norm.round_normed, and then weights of T or none, without an offset.
template <typename T, bool kRoundNormed, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    QkNormRopePackedForwardKernel(const __grid_constant__ Call call,
                                  const __grid_constant__ PackedPlan plan) {
  ForPackedSide(plan, [&](auto side, int tile) {
    NormRopePackedTile<side.value, T, kRoundNormed, C>(call, plan, tile);
  });
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_PACKED_FORWARD_CUH_
