// One geglu problem: its calls with filled tensors, and what they should give, in double.

#ifndef TESTS_KERNELS_GEGLU_GEGLU_CASE_H_
#define TESTS_KERNELS_GEGLU_GEGLU_CASE_H_

#include <cmath>
#include <string>

#include "kernels/abi/geglu.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::geglu {

// In forms without cancellation for g < 0.
inline double Gelu(int32_t gelu, double g) {
  if (gelu == FB_GELU_EXACT) return 0.5 * g * std::erfc(-g * M_SQRT1_2);
  const double u = std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g);
  return g / (1.0 + std::exp(-2.0 * u));
}

inline double GeluDerivative(int32_t gelu, double g) {
  if (gelu == FB_GELU_EXACT) {
    return 0.5 * std::erfc(-g * M_SQRT1_2) + g * std::exp(-0.5 * g * g) / std::sqrt(2.0 * M_PI);
  }
  const double k = std::sqrt(2.0 / M_PI);
  const double u = k * (g + 0.044715 * g * g * g);
  const double s = 1.0 / (1.0 + std::exp(-2.0 * u));
  const double not_s = 1.0 / (1.0 + std::exp(2.0 * u));
  return s + 2.0 * g * s * not_s * k * (1.0 + 3.0 * 0.044715 * g * g);
}

struct Case {
  int64_t rows = 3;
  int64_t cols = 8;
  int32_t dtype = FB_F32;
  int32_t gelu = FB_GELU_TANH;
  int32_t round_activation = 0;
  testing::Layout in_layout = {};
  testing::Layout out_layout = {};

  std::string Name() const {
    return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "], dtype " +
           std::to_string(dtype) + ", gelu " + std::to_string(gelu) + ", round " +
           std::to_string(round_activation);
  }
  FbGegluParams params() const { return {sizeof(FbGegluParams), round_activation, gelu}; }
  testing::TestTensor In(uint32_t seed, double scale) const {
    return testing::TestTensor(dtype, {rows, cols}, in_layout).FillNormal(seed, scale);
  }
  testing::TestTensor Out() const { return testing::TestTensor(dtype, {rows, cols}, out_layout); }

  // gelu(g), rounded where the model rounds it.
  double Activation(double g) const {
    const double value = Gelu(gelu, g);
    return round_activation != 0 ? testing::RoundToDType(dtype, value) : value;
  }
};

// Gates of up to about 12, where both tails have left the range of f16.
inline testing::KernelCall ForwardCall(const Case& c, const FbGegluParams* params) {
  return {FB_FORWARD, {c.In(1, 3.0), c.In(2, 1.0)}, {c.Out()}, params};
}

inline testing::KernelCall BackwardCall(const Case& c, const FbGegluParams* params) {
  return {FB_BACKWARD, {c.In(3, 1.0), c.In(1, 3.0), c.In(2, 1.0)}, {c.Out(), c.Out()}, params};
}

}  // namespace fuseboard::geglu

#endif  // TESTS_KERNELS_GEGLU_GEGLU_CASE_H_
