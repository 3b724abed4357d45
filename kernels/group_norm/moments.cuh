// Mean and variance from sums of distances, and of their squares, from a value near the mean.

#ifndef KERNELS_GROUP_NORM_MOMENTS_CUH_
#define KERNELS_GROUP_NORM_MOMENTS_CUH_

#include <cuda_runtime.h>

namespace fuseboard::group_norm {

struct Moments {
  float shift;  // Of the mean from the reference.
  float variance;
};

// `sums`: of the distances from a reference, and of their squares. NaN stays NaN.
__device__ __forceinline__ Moments MomentsOf(float2 sums, float inverse_count) {
  const float shift = sums.x * inverse_count;
  const float variance = fmaf(-shift, shift, sums.y * inverse_count);
  return {shift, variance < 0.0f ? 0.0f : variance};
}

// Whether the difference of MomentsOf has cost more than about three bits: the sums are then to be
// taken again, from the mean.
__device__ __forceinline__ bool IsFar(const Moments& moments) {
  return moments.shift * moments.shift > 8.0f * moments.variance;
}

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_MOMENTS_CUH_
