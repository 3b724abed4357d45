// The square of max(x, 0) on the GPU, elementwise in f32, and its gradient.
//
// Traffic: each input read once, each output written once. Determinism: no sums, so trivially.

#ifndef KERNELS_RELU_SQUARED_RELU_SQUARED_CUH_
#define KERNELS_RELU_SQUARED_RELU_SQUARED_CUH_

#include "kernels/elementwise/elementwise.cuh"

namespace fuseboard::relu_squared {

using elementwise::NoParams;

// The same for every dtype. NaN is not <= 0, and stays.
template <typename T>
struct Forward {
  static constexpr int kInputs = 1;  // x
  static constexpr int kOutputs = 1;
  using Params = NoParams;

  __device__ __forceinline__ static void Apply(const float (&in)[1], const Params& /*params*/,
                                               float (&out)[1]) {
    const float relu = in[0] <= 0.0f ? 0.0f : in[0];
    out[0] = relu * relu;
  }
};

template <typename T>
struct Backward {
  static constexpr int kInputs = 2;  // dy, x
  static constexpr int kOutputs = 1;
  using Params = NoParams;

  // Not dy * 2 relu(x): an infinite dy gives 0 where x is not positive.
  __device__ __forceinline__ static void Apply(const float (&in)[2], const Params& /*params*/,
                                               float (&out)[1]) {
    out[0] = in[1] <= 0.0f ? 0.0f : in[0] * (2.0f * in[1]);
  }
};

}  // namespace fuseboard::relu_squared

#endif  // KERNELS_RELU_SQUARED_RELU_SQUARED_CUH_
