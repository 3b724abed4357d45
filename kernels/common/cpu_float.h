// Blocks of any float dtype to and from float, in loops that the compiler vectorises, and a
// few functions. For CPU kernel sources only: everything lives in the namespace of the
// instruction set it is compiled for (cpu_isa.h).
//
// Rounding is to nearest, ties to even; overflow gives infinity; NaN stays NaN; subnormals are
// kept.

#ifndef KERNELS_COMMON_CPU_FLOAT_H_
#define KERNELS_COMMON_CPU_FLOAT_H_

#ifndef FB_CPU_ISA
#error "cpu_float.h is for sources that fb_kernel compiles per instruction set"
#endif

#if defined(__F16C__)
#include <immintrin.h>
#endif
#include <stdint.h>

#include "kernels/common/float_types.h"

namespace fuseboard::FB_CPU_ISA {

static inline uint32_t FloatBits(float value) { return __builtin_bit_cast(uint32_t, value); }
static inline float FloatFromBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// ---- One value ----

static inline float ToFloat(float value) { return value; }

static inline float ToFloat(BFloat16 value) { return FloatFromBits(uint32_t{value.bits} << 16); }

static inline float ToFloat(Half value) {
  const uint32_t sign = (uint32_t{value.bits} & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  // Exponent and mantissa moved to float's place are the value times 2^-112; this product is exact
  // and also right for subnormals. Infinity and NaN get float's largest exponent by hand.
  const float scaled = FloatFromBits(magnitude << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
  return FloatFromBits(FloatBits(scaled) | special | sign);
}

template <typename T>
static inline T FromFloat(float value);

template <>
inline float FromFloat<float>(float value) {
  return value;
}

template <>
inline BFloat16 FromFloat<BFloat16>(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>(is_nan ? quiet_nan : rounded)};
}

template <>
inline Half FromFloat<Half>(float value) {
  const uint32_t sign = (FloatBits(value) >> 16) & 0x8000u;
  const uint32_t magnitude = FloatBits(value) & 0x7fffffffu;
  // Normal: rebias by 112 and round off 13 bits. Subnormal: adding 0.5 puts the last place of the
  // sum at 2^-24, the step of half's subnormals, so the addition itself rounds.
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t subnormal = FloatBits(FloatFromBits(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // From 65520 on: infinity.
  half = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : half;
  return {static_cast<uint16_t>(half | sign)};
}

// ---- Blocks. `n` elements; `out` and `in` do not overlap. ----

template <typename T>
static inline void LoadBlock(const T* in, float* __restrict__ out, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  if constexpr (__is_same(T, Half)) {
    for (; i + 8 <= n; i += 8) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
    }
  }
#endif
  for (; i < n; ++i) out[i] = ToFloat(in[i]);
}

template <typename T>
static inline void StoreBlock(const float* in, T* __restrict__ out, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  if constexpr (__is_same(T, Half)) {
    for (; i + 8 <= n; i += 8) {
      const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
    }
  }
#endif
  // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): it takes the n of two loops for different.
  for (; i < n; ++i) out[i] = FromFloat<T>(in[i]);
}

// `n` elements as floats: the memory itself if it is float, else converted into `buffer`.
template <typename T>
static inline const float* ViewBlock(const T* in, float* buffer, int64_t n) {
  if constexpr (__is_same(T, float)) {
    return in;
  } else {
    LoadBlock(in, buffer, n);
    return buffer;
  }
}

// Rounds each value to T and back.
template <typename T>
static inline void RoundBlock(float* values, int64_t n) {
  if constexpr (!__is_same(T, float)) {
    for (int64_t i = 0; i < n; ++i) values[i] = ToFloat(FromFloat<T>(values[i]));
  }
}

// ---- Functions: of one value, without branches, so that loops over them are vectorised ----

// e^(x + low) for x <= 0 (or NaN) and |low| < 0.1, within 1 ulp where the result is normal; gradual
// underflow to 0. Without kHasLow, `low` is not looked at.
template <bool kHasLow>
static inline float ExpOfSum(float x, float low) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2Hi = 0.693359375f;  // 9 bits: n * kLn2Hi is exact.
  constexpr float kLn2Lo = -2.12194440e-4f;
  constexpr float kRoundToInt = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer.
  const float clamped = x < -110.0f ? -110.0f : x;
  const float shifted = clamped * kLog2E + kRoundToInt;
  const float n = shifted - kRoundToInt;
  float r = (clamped - n * kLn2Hi) - n * kLn2Lo;
  if constexpr (kHasLow) r += low;
  float p = 1.9875691500e-4f;  // Cephes' expf.
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float exp_r = 1.0f + (r + r * r * p);
  // 2^n in two normal factors, so that results below 2^-126 are rounded once.
  const int32_t exponent = static_cast<int32_t>(FloatBits(shifted) - FloatBits(kRoundToInt));
  const int32_t half = exponent >> 1;
  const float low_factor = FloatFromBits(static_cast<uint32_t>(half + 127) << 23);
  const float high_factor = FloatFromBits(static_cast<uint32_t>(exponent - half + 127) << 23);
  return exp_r * low_factor * high_factor;
}

static inline float ExpNonPositive(float x) { return ExpOfSum<false>(x, 0.0f); }

// 1 / (1 + e^-x) within 2 ulp, in a form that overflows on neither side.
[[gnu::always_inline]] static inline float Sigmoid(float x) {
  const float e = ExpNonPositive(x < 0.0f ? x : -x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

struct NormalValues {
  float cdf;
  float density;
};

// The standard normal distribution: (1 + erf(x / sqrt 2)) / 2 without the cancellation for x < 0,
// within 2 ulp for x >= 0 and 7 ulp (1 on average) below, where it is normal; and its density.
[[gnu::always_inline]] static inline NormalValues Normal(float x) {
  const float magnitude = x < 0.0f ? -x : x;
  const float s = magnitude > 15.0f ? 15.0f : magnitude;  // 15 gives 0, and NaN stays.
  // e^(-s^2 / 2) from the square of s's upper 12 bits, which is exact, and what is left.
  const float upper = FloatFromBits(FloatBits(s) & 0xfffff000u);
  const float e = ExpOfSum<true>(-0.5f * upper * upper, -0.5f * (s - upper) * (s + upper));
  // From 1 on cdf(-s) = e t P(t) with t = 1 / (1 + 0.3 s), fitted on [1, 14.5] to 5e-9 of it.
  const float t = 1.0f / (1.0f + 0.3f * s);
  float p = 0.025278273969888687f;
  p = p * t - 0.06861642748117447f;
  p = p * t + 0.02588619478046894f;
  p = p * t + 0.0282681155949831f;
  p = p * t + 0.05095905065536499f;
  p = p * t + 0.09063640236854553f;
  p = p * t + 0.10817184299230576f;
  p = p * t + 0.11976789683103561f;
  p = p * t + 0.11967868357896805f;
  const float tail = p * t * e;
  const float far = x < 0.0f ? tail : 1.0f - tail;
  // Below 1 it is 1/2 + x Q(x^2), fitted on [0, 1] to 7e-10.
  const float square = s * s;
  float q = -7.654199180251453e-06f;
  q = q * square + 0.0001134863487095572f;
  q = q * square - 0.001186329871416092f;
  q = q * square + 0.009973322972655296f;
  q = q * square - 0.06649035960435867f;
  q = q * square + 0.3989422917366028f;
  return {s < 1.0f ? 0.5f + x * q : far, 0.398942280401432678f * e};
}

}  // namespace fuseboard::FB_CPU_ISA

#endif  // KERNELS_COMMON_CPU_FLOAT_H_
