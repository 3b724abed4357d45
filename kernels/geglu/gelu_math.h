// The formulas of gelu for 16-bit dtypes on the GPU, over the device's exponential and reciprocal,
// in a header that a test on the CPU can read with its own:
//
//   struct Unit { static float Exp2(float x); static float Reciprocal(float x); };
//
// Their relative error wherever the result is normal stays below 1/20 of half an ulp of the dtype
// (f16 2.4e-5, bf16 9.8e-5): tests/kernels/geglu/gelu_math_test.cc.

#ifndef KERNELS_GEGLU_GELU_MATH_H_
#define KERNELS_GEGLU_GELU_MATH_H_

#include <math.h>

#if defined(__CUDACC__)
#define FB_DEVICE __device__ __forceinline__
#else
#define FB_DEVICE inline
#endif

namespace fuseboard::geglu {

inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kInverseSqrtTwoPi = 0.398942280401432678f;

// 2 u = g (kTwoU + kTwoUCubic g^2) for u = sqrt(2 / pi) (g + 0.044715 g^3).
inline constexpr float kTwoU = 1.59576912160573071f;
inline constexpr float kTwoUCubic = 1.59576912160573071f * 0.044715f;

// (1 + tanh(u)) / 2 = sigmoid(2 u), which has no cancellation for u < 0. `square` is g^2.
template <typename Unit>
FB_DEVICE float TanhWeight(float g, float square) {
  // For u << 0 the power is infinite where the result is below 2^-126: g * 0.
  const float power = g * fmaf(square, -kTwoUCubic * kLog2E, -kTwoU * kLog2E);
  return Unit::Reciprocal(1.0f + Unit::Exp2(power));
}

// The normal distribution's integral, from the tail on g's side: no cancellation for g < 0.
// `exponential` becomes e^(-g^2 / 2).
template <typename Unit>
FB_DEVICE float NormalWeight(float g, float* exponential) {
  *exponential = Unit::Exp2(g * g * (-0.5f * kLog2E));
  // cdf(-s) = e^(-s^2 / 2) t P(t) with t = 1 / (1 + 0.3 s), to 8.3e-6 of it for s in [0, 14].
  const float t = Unit::Reciprocal(fmaf(fabsf(g), 0.3f, 1.0f));
  float p = -0.0770973339676857f;
  p = fmaf(p, t, 0.2160368114709854f);
  p = fmaf(p, t, -0.016947835683822632f);
  p = fmaf(p, t, 0.1441962718963623f);
  p = fmaf(p, t, 0.11374194920063019f);
  p = fmaf(p, t, 0.12007422745227814f);
  const float tail = p * t * *exponential;
  return g < 0.0f ? tail : 1.0f - tail;
}

}  // namespace fuseboard::geglu

#undef FB_DEVICE

#endif  // KERNELS_GEGLU_GELU_MATH_H_
