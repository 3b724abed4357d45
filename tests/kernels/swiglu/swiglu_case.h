// One swiglu problem: its calls with filled tensors, and what they should give, in double.

#ifndef TESTS_KERNELS_SWIGLU_SWIGLU_CASE_H_
#define TESTS_KERNELS_SWIGLU_SWIGLU_CASE_H_

#include <cmath>
#include <string>

#include "kernels/abi/swiglu.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::swiglu {

struct Case {
  int64_t rows = 3;
  int64_t cols = 8;
  int32_t dtype = FB_F32;
  int32_t round_activation = 0;
  testing::Layout in_layout = {};
  testing::Layout out_layout = {};

  std::string Name() const {
    return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "], dtype " +
           std::to_string(dtype) + ", round " + std::to_string(round_activation);
  }
  FbSwigluParams params() const { return {sizeof(FbSwigluParams), round_activation}; }
  testing::TestTensor In(uint32_t seed, double scale) const {
    return testing::TestTensor(dtype, {rows, cols}, in_layout).FillNormal(seed, scale);
  }
  testing::TestTensor Out() const { return testing::TestTensor(dtype, {rows, cols}, out_layout); }
};

// Gates of up to about 12, where sigmoid has saturated for 16-bit floats.
inline testing::KernelCall ForwardCall(const Case& c, const FbSwigluParams* params) {
  return {FB_FORWARD, {c.In(1, 3.0), c.In(2, 1.0)}, {c.Out()}, params};
}

inline testing::KernelCall BackwardCall(const Case& c, const FbSwigluParams* params) {
  return {FB_BACKWARD, {c.In(3, 1.0), c.In(1, 3.0), c.In(2, 1.0)}, {c.Out(), c.Out()}, params};
}

inline double Sigmoid(double g) { return 1.0 / (1.0 + std::exp(-g)); }

// silu(g), rounded where the model rounds it.
inline double Activation(const Case& c, double g) {
  const double silu = g * Sigmoid(g);
  return c.round_activation != 0 ? testing::RoundToDType(c.dtype, silu) : silu;
}

inline double SiluDerivative(double g) {
  const double s = Sigmoid(g);
  return s * (1.0 + g * (1.0 - s));
}

}  // namespace fuseboard::swiglu

#endif  // TESTS_KERNELS_SWIGLU_SWIGLU_CASE_H_
