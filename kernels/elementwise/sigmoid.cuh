// The logistic function on the GPU, which several activations are made of.

#ifndef KERNELS_ELEMENTWISE_SIGMOID_CUH_
#define KERNELS_ELEMENTWISE_SIGMOID_CUH_

#include <type_traits>

namespace fuseboard::elementwise {

// 1 / (1 + e^-g), without overflow on either side: the denominator lies in [1, 2].
template <typename T>
__device__ __forceinline__ float Sigmoid(float g) {
  if constexpr (std::is_same_v<T, float>) {
    const float e = expf(-fabsf(g));
    return (g >= 0.0f ? 1.0f : e) / (1.0f + e);
  } else {
    // __expf is off by up to 2 + 1.2 |g| ulp of f32; at |g| = 88 that is 1e-5, 1/20 of half an ulp
    // of f16, and less for bf16. NaN passes through e.
    const float e = __expf(-fabsf(g));
    return __fdividef(g >= 0.0f ? 1.0f : e, 1.0f + e);
  }
}

}  // namespace fuseboard::elementwise

#endif  // KERNELS_ELEMENTWISE_SIGMOID_CUH_
