// The elements of tvd on the GPU; rows are row_loss.cuh's.

#ifndef KERNELS_TVD_TVD_CUH_
#define KERNELS_TVD_TVD_CUH_

#include "kernels/common/row_loss.cuh"

namespace fuseboard::tvd {

struct Distance {
  template <typename T>
  __device__ __forceinline__ float LossFactor() const {
    return 0.5f;
  }
  template <typename T>
  __device__ __forceinline__ float GradientFactor() const {
    return 0.5f;
  }

  template <typename T>
  __device__ __forceinline__ row_loss::Terms At(float x, float y) const {
    const float above = x > y ? 1.0f : 0.0f;
    return {1.0f, fabsf(x - y), x < y ? -1.0f : above};
  }
};

}  // namespace fuseboard::tvd

#endif  // KERNELS_TVD_TVD_CUH_
