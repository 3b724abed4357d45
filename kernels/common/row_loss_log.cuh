// Logarithms and exponentials of row losses of inputs of type T on the GPU, in the unit in which
// they are cheapest: CUDA's expf and logf for f32, and the hardware's powers of two, within 2e-7,
// for 16-bit floats.

#ifndef KERNELS_COMMON_ROW_LOSS_LOG_CUH_
#define KERNELS_COMMON_ROW_LOSS_LOG_CUH_

#include "kernels/common/float_types.h"
#include "kernels/common/ptx.cuh"

namespace fuseboard::row_loss {

template <typename T>
struct LogUnit {
  static constexpr float kPerNat = 1.44269504088896341f;  // Units in log(e).
  static constexpr float kNats = 0.693147180559945309f;   // One unit.
  // Of a number of units.
  static __device__ __forceinline__ float Exp(float units) { return Exp2Approx(units); }
  // In units; subnormal numbers count as 0.
  static __device__ __forceinline__ float Log(float x) { return Log2Approx(x); }
};

template <>
struct LogUnit<float> {
  static constexpr float kPerNat = 1.0f;
  static constexpr float kNats = 1.0f;
  static __device__ __forceinline__ float Exp(float units) { return expf(units); }
  static __device__ __forceinline__ float Log(float x) { return logf(x); }
};

}  // namespace fuseboard::row_loss

#endif  // KERNELS_COMMON_ROW_LOSS_LOG_CUH_
