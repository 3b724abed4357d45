// Exponential of any number and logarithm, in forms that the compiler vectorises. For CPU kernel
// sources only, like cpu_float.h.

#ifndef KERNELS_COMMON_CPU_LOG_H_
#define KERNELS_COMMON_CPU_LOG_H_

#include "kernels/common/cpu_float.h"

namespace fuseboard::FB_CPU_ISA {

// e^x, within 1 ulp where the result is normal; infinity on overflow.
static inline float Exp(float x) {
  return ExpNonPositive(x > 89.0f ? 89.0f : x);  // Its range ends where e^x is infinite.
}

// The natural logarithm, within 1 ulp: -inf of 0, NaN of what is below.
static inline float Log(float x) {
  constexpr float kLn2Hi = 0.693359375f;  // 9 bits: exponent * kLn2Hi is exact.
  constexpr float kLn2Lo = -2.12194440e-4f;
  constexpr float kSqrtHalf = 0.70710678118654752f;
  const bool subnormal = x < 0x1p-126f;
  const uint32_t bits = FloatBits(subnormal ? x * 0x1p24f : x);
  // x = mantissa * 2^exponent with the mantissa in [0.5, 1), then in [sqrt(0.5), sqrt(2)).
  float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 126);
  float mantissa = FloatFromBits((bits & 0x7fffffu) | 0x3f000000u);
  exponent = subnormal ? exponent - 24.0f : exponent;
  const bool low = mantissa < kSqrtHalf;
  exponent = low ? exponent - 1.0f : exponent;
  const float v = low ? mantissa + mantissa - 1.0f : mantissa - 1.0f;
  float p = 7.0376836292e-2f;  // Cephes' logf.
  p = p * v - 1.1514610310e-1f;
  p = p * v + 1.1676998740e-1f;
  p = p * v - 1.2420140846e-1f;
  p = p * v + 1.4249322787e-1f;
  p = p * v - 1.6668057665e-1f;
  p = p * v + 2.0000714765e-1f;
  p = p * v - 2.4999993993e-1f;
  p = p * v + 3.3333331174e-1f;
  const float square = v * v;
  const float rest = v * square * p + exponent * kLn2Lo - 0.5f * square;
  float result = v + rest + exponent * kLn2Hi;
  result = x == __builtin_inff() ? x : result;
  result = x == 0.0f ? -__builtin_inff() : result;
  return x >= 0.0f ? result : __builtin_nanf("");
}

}  // namespace fuseboard::FB_CPU_ISA

#endif  // KERNELS_COMMON_CPU_LOG_H_
