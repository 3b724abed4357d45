// Mean and variance of a row held in registers, whichever threads share it, mostly by one sum.
//
// The row's first elements give a reference near its mean. Sums of the distances d from it and of
// d^2 then give both: mean = reference + E[d], variance = E[d^2] - E[d]^2. Where the reference is
// so far off that the subtraction would cost digits, the sums are taken again from the mean.

#ifndef KERNELS_LAYER_NORM_ROW_MOMENTS_CUH_
#define KERNELS_LAYER_NORM_ROW_MOMENTS_CUH_

#include "kernels/common/vector.cuh"
#include "kernels/rms_norm/row_sum.cuh"

namespace fuseboard::layer_norm {

// The mean is base + shift: as one float it would be off where values are many and large (H 1024,
// mean 1000: y off by 1e-4).
struct Moments {
  float base;
  float shift;
  float variance;
};

// A reference this far from the mean, in squared standard deviations, costs two bits of the
// variance. The mean of four independent normal values is that far off for six rows in 100,000.
inline constexpr float kFarReference = 4.0f;

// Of four elements. REQUIRES: a 16-byte run.
template <typename T>
__device__ __forceinline__ float MeanOfRun(const T* x) {
  float v[4];
  LoadFloats<T, 4>(x, v);
  return (v[0] + v[1] + v[2] + v[3]) * 0.25f;
}

// Sums over the row of the distances from `base` and of their squares. `held` are the packs
// `first`, `first` + `step`, ... before `end`. `zero`: see Renewed.
template <typename T, int kPacks, bool kCluster>
__device__ __forceinline__ float2 SumDistances(const Lanes<T, kPackLanes<T>> (&held)[kPacks],
                                               int first, int step, int end, float base,
                                               uint32_t zero,
                                               rms_norm::RowSumPairStorage<kCluster>* shared,
                                               uint32_t turn) {
  constexpr int kLanes = kPackLanes<T>;
  float2 sums[2] = {};  // Two chains of additions, each half as long.
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (first + p * step >= end) break;  // Zeros beyond are no distances.
    float v[kLanes];
    Unpack<T, kLanes>(Renewed(held[p], zero), v);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const float distance = v[i] - base;
      sums[i % 2].x += distance;
      sums[i % 2].y += distance * distance;
    }
  }
  const float2 own = {sums[0].x + sums[1].x, sums[0].y + sums[1].y};
  return rms_norm::RowSumPair<kCluster>(own, shared, turn);
}

template <typename T, int kPacks, bool kCluster>
__device__ __forceinline__ Moments MomentsOf(const Lanes<T, kPackLanes<T>> (&held)[kPacks],
                                             int first, int step, int end, float reference,
                                             float inverse_hidden, uint32_t zero,
                                             rms_norm::RowSumPairStorage<kCluster>* shared) {
  const auto from = [&](float base, uint32_t turn) -> Moments {
    const float2 sums =
        SumDistances<T, kPacks, kCluster>(held, first, step, end, base, zero, shared, turn);
    const float shift = sums.x * inverse_hidden;
    return {base, shift, fmaxf(sums.y * inverse_hidden - shift * shift, 0.0f)};
  };
  Moments m = from(reference, 0);
  // The threads of a row decide alike, and all that meet in the sum's shuffles and barrier must.
  bool again = m.shift * m.shift > kFarReference * m.variance;
  if (blockDim.x <= kWarpThreads) {
    again = __any_sync(0xffffffffu, again);
  } else if (blockDim.y > 1) {
    again = __syncthreads_or(again) != 0;
  }
  if (again) m = from(m.base + m.shift, 1);
  return m;
}

}  // namespace fuseboard::layer_norm

#endif  // KERNELS_LAYER_NORM_ROW_MOMENTS_CUH_
