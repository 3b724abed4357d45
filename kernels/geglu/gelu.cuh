// gelu and its derivative on the GPU, in both forms, in f32: exact functions for f32, those of
// gelu_math.h for 16-bit dtypes.

#ifndef KERNELS_GEGLU_GELU_CUH_
#define KERNELS_GEGLU_GELU_CUH_

#include "kernels/common/ptx.cuh"
#include "kernels/elementwise/gated.cuh"
#include "kernels/elementwise/sigmoid.cuh"
#include "kernels/geglu/gelu_math.h"

namespace fuseboard::geglu {

using elementwise::ActivationValues;

struct SpecialFunctionUnit {
  __device__ __forceinline__ static float Exp2(float x) { return Exp2Approx(x); }
  __device__ __forceinline__ static float Reciprocal(float x) { return ReciprocalApprox(x); }
};

// g s with s = sigmoid(2 u).
template <typename T>
struct TanhGelu {
  __device__ __forceinline__ static float Weight(float g, float square) {
    if constexpr (std::is_same_v<T, float>) {
      return elementwise::Sigmoid<float>(g * fmaf(square, kTwoUCubic, kTwoU));
    } else {
      return TanhWeight<SpecialFunctionUnit>(g, square);
    }
  }

  __device__ __forceinline__ static float Value(float g) { return g * Weight(g, g * g); }

  // s + g s (1 - s) d(2 u)/dg.
  __device__ __forceinline__ static ActivationValues WithDerivative(float g) {
    const float square = fminf(g * g, 1e9f);  // s is 0 or 1 long before; infinity would give NaN.
    const float s = Weight(g, square);
    const float value = g * s;
    return {value, fmaf(value * (1.0f - s), fmaf(square, 3.0f * kTwoUCubic, kTwoU), s)};
  }
};

// g cdf(g), the normal distribution.
template <typename T>
struct ExactGelu {
  __device__ __forceinline__ static float Weight(float g, float* exponential) {
    if constexpr (std::is_same_v<T, float>) {
      *exponential = expf(-0.5f * g * g);
      return normcdff(g);
    } else {
      return NormalWeight<SpecialFunctionUnit>(g, exponential);
    }
  }

  __device__ __forceinline__ static float Value(float g) {
    float exponential;
    return g * Weight(g, &exponential);
  }

  // cdf(g) + g density(g).
  __device__ __forceinline__ static ActivationValues WithDerivative(float g) {
    float exponential;
    const float weight = Weight(g, &exponential);
    return {g * weight, fmaf(g * kInverseSqrtTwoPi, exponential, weight)};
  }
};

}  // namespace fuseboard::geglu

#endif  // KERNELS_GEGLU_GELU_CUH_
