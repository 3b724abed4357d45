// Cross entropy over one block of a row's columns on the CPU: loops that the compiler vectorises,
// over buffers in L1, with float inside a block and double across blocks. Compiled once per
// instruction set (kernels/common/cpu_isa.h).

#ifndef KERNELS_CROSS_ENTROPY_CPU_BLOCK_MATH_H_
#define KERNELS_CROSS_ENTROPY_CPU_BLOCK_MATH_H_

#include <stdint.h>

#include "kernels/common/cpu_float.h"
#include "kernels/cross_entropy/cross_entropy_problem.h"

namespace fuseboard::cross_entropy::FB_CPU_ISA {
namespace {

using fuseboard::FB_CPU_ISA::ExpNonPositive;
using fuseboard::FB_CPU_ISA::FloatBits;
using fuseboard::FB_CPU_ISA::FloatFromBits;
using fuseboard::FB_CPU_ISA::LoadBlock;
using fuseboard::FB_CPU_ISA::StoreBlock;

// Columns: two buffers of floats take half of L1. Fixed, because results must not depend on how
// blocks are spread over threads.
constexpr int kBlock = 2048;
constexpr int kLanes = 16;

// 16 lanes; the compiler cuts it to what the instruction set has.
typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef double DoubleVec __attribute__((vector_size(kLanes * sizeof(double))));

constexpr float kInfinity = __builtin_inff();

// A block's worth of floats, filled up to whole vectors.
struct alignas(64) Buffer {
  float at[kBlock];

  void Pad(int size, float value) {
    const int whole = (size + kLanes - 1) / kLanes * kLanes;
    for (int i = size > 0 ? size : 0; i < whole; ++i) at[i] = value;  // Never less than 0.
  }
};

// Of the first `size`, padded with -inf. NaN is passed over.
float MaxOf(const Buffer& values, int size) {
  Vec most = {};
  most -= kInfinity;
  for (int i = 0; i < size; i += kLanes) {
    Vec v;
    __builtin_memcpy(&v, values.at + i, sizeof(v));
    most = v > most ? v : most;
  }
  float result = -kInfinity;
  for (int lane = 0; lane < kLanes; ++lane) result = most[lane] > result ? most[lane] : result;
  return result;
}

// Of the first `size`, padded with 0. Float for 8 additions, then double: 128 equal terms to a lane
// in float alone were off by 1e-6 of the sum.
double SumOf(const Buffer& values, int size) {
  constexpr int kRun = 8 * kLanes;
  DoubleVec total = {};
  for (int begin = 0; begin < size; begin += kRun) {
    const int end = begin + kRun < size ? begin + kRun : size;
    Vec sum = {};
    for (int i = begin; i < end; i += kLanes) {
      Vec v;
      __builtin_memcpy(&v, values.at + i, sizeof(v));
      sum += v;
    }
    total += __builtin_convertvector(sum, DoubleVec);
  }
  double result = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) result += total[lane];
  return result;
}

// tanh within 2 ulp: a polynomial (Cephes' tanhf) near 0, where 1 - e^-2|v| would cancel.
inline float Tanh(float v) {
  const uint32_t sign = FloatBits(v) & 0x80000000u;
  const float magnitude = FloatFromBits(FloatBits(v) ^ sign);
  const float e = ExpNonPositive(-2.0f * magnitude);
  const float far = (1.0f - e) / (1.0f + e);
  const float s = v * v;
  float poly = -5.70498872745e-3f;
  poly = poly * s + 2.06390887954e-2f;
  poly = poly * s - 5.37397155531e-2f;
  poly = poly * s + 1.33314422036e-1f;
  poly = poly * s - 3.33332819422e-1f;
  const float near = magnitude + magnitude * s * poly;
  return FloatFromBits(FloatBits(magnitude < 0.625f ? near : far) | sign);
}

// z of `size` logits.
template <typename T>
void LoadZ(const Problem& p, const T* logits, int size, Buffer* z) {
  LoadBlock(logits, z->at, size);
  if (p.logit_scale != 1.0f) {
    for (int i = 0; i < size; ++i) z->at[i] *= p.logit_scale;
  }
  if (p.softcap != 0.0f) {
    for (int i = 0; i < size; ++i) z->at[i] = p.softcap * Tanh(z->at[i] / p.softcap);
  }
}

inline float ClassWeight(const Problem& p, int64_t column) {
  return p.class_weight == nullptr ? 1.0f : p.class_weight[column];
}

// Statistics of some columns; sums are relative to Finite(z_max).
struct Stats {
  double z_max = -__builtin_inf();
  double sum = 0.0;               // sum exp(z - z_max)
  double weighted = 0.0;          // sum w (z - z_max), if there is label smoothing
  double weight = 0.0;            // sum w, likewise
  double max = -__builtin_inf();  // Of the logits, or their negatives if logit_scale < 0.
  int64_t argmax = 0;             // Where that first is. These two only if argmax is wanted.
};

// -inf as a reference would make differences NaN where the answer is that nothing was added.
inline double Finite(double z_max) { return z_max == -__builtin_inf() ? 0.0 : z_max; }

template <typename T>
void FindMax(const Problem& p, const T* logits, int64_t begin, int size, Stats* stats) {
  Buffer x;
  LoadBlock(logits + begin, x.at, size);
  if (p.logit_scale < 0.0f) {
    for (int i = 0; i < size; ++i) x.at[i] = -x.at[i];
  }
  x.Pad(size, -kInfinity);
  const float max = MaxOf(x, size);
  if (max == -kInfinity) return;
  int first = 0;
  while (x.at[first] != max) ++first;
  stats->max = static_cast<double>(max);
  stats->argmax = begin + first;
}

// Of columns [begin, begin + size), size <= kBlock.
template <typename T>
Stats StatsOfBlock(const Problem& p, const T* logits, int64_t begin, int size) {
  Stats stats;
  Buffer z;
  LoadZ(p, logits + begin, size, &z);
  z.Pad(size, -kInfinity);
  stats.z_max = static_cast<double>(MaxOf(z, size));
  const auto reference = static_cast<float>(Finite(stats.z_max));
  Buffer term;
  for (int i = 0; i < size; ++i) term.at[i] = ExpNonPositive(z.at[i] - reference);
  term.Pad(size, 0.0f);
  stats.sum = SumOf(term, size);
  if (p.label_smoothing != 0.0f) {
    if (p.class_weight == nullptr) {
      stats.weight = size;
      for (int i = 0; i < size; ++i) term.at[i] = z.at[i] - reference;
    } else {
      const float* w = p.class_weight + begin;
      for (int i = 0; i < size; ++i) term.at[i] = w[i];
      stats.weight = SumOf(term, size);
      for (int i = 0; i < size; ++i) term.at[i] = w[i] * (z.at[i] - reference);
    }
    stats.weighted = SumOf(term, size);
  }
  if (p.argmax != nullptr) FindMax(p, logits, begin, size, &stats);
  return stats;
}

// dlogit_c = (of_exp * exp(z_c - reference) - of_weight * w_c - [c == target] * of_hit) * cap'(z_c)
struct Gradient {
  float reference;
  float of_exp;
  float of_weight;
  float of_hit;
  int64_t target;           // -1: none.
  bool zero;                // The row is ignored.
  float of_entropy = 0.0f;  // Adds of_entropy * (z_c - reference + entropy) to of_exp.
  float entropy = 0.0f;
};

// The exponent in a term e^x * x of an entropy, which is 0 for -inf. The exponential keeps the NaN.
inline float FiniteExponent(float exponent) { return exponent > -1000.0f ? exponent : -1000.0f; }

// sum e^x (rest - x) of the exponents x = z - reference of columns [begin, begin + size), size <=
// kBlock: times e^-rest it is sum p (-log p) if lse = reference + rest.
template <typename T>
double EntropyOfBlock(const Problem& p, const T* logits, int64_t begin, int size, float reference,
                      float rest) {
  Buffer z;
  LoadZ(p, logits + begin, size, &z);
  for (int i = 0; i < size; ++i) {
    const float exponent = z.at[i] - reference;
    z.at[i] = ExpNonPositive(exponent) * (rest - FiniteExponent(exponent));
  }
  z.Pad(size, 0.0f);
  return SumOf(z, size);
}

template <typename T>
void GradientOfBlock(const Problem& p, const Gradient& g, const T* logits, int64_t begin, int size,
                     T* dlogits) {
  Buffer d;
  if (g.zero) {
    for (int i = 0; i < size; ++i) d.at[i] = 0.0f;
    StoreBlock(d.at, dlogits + begin, size);
    return;
  }
  Buffer z;
  LoadZ(p, logits + begin, size, &z);
  if (g.of_entropy == 0.0f) {
    for (int i = 0; i < size; ++i) d.at[i] = g.of_exp * ExpNonPositive(z.at[i] - g.reference);
  } else {
    for (int i = 0; i < size; ++i) {
      const float exponent = z.at[i] - g.reference;
      d.at[i] = ExpNonPositive(exponent) *
                (g.of_exp + g.of_entropy * (FiniteExponent(exponent) + g.entropy));
    }
  }
  if (g.of_weight != 0.0f) {
    for (int i = 0; i < size; ++i) d.at[i] -= g.of_weight * ClassWeight(p, begin + i);
  }
  if (g.target >= begin && g.target < begin + size) d.at[g.target - begin] -= g.of_hit;
  if (p.softcap != 0.0f) {
    for (int i = 0; i < size; ++i) {
      const float t = z.at[i] / p.softcap;
      d.at[i] *= 1.0f - t * t;
    }
  }
  StoreBlock(d.at, dlogits + begin, size);
}

}  // namespace
}  // namespace fuseboard::cross_entropy::FB_CPU_ISA

#endif  // KERNELS_CROSS_ENTROPY_CPU_BLOCK_MATH_H_
