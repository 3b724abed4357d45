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
  double gate_multiplier = 1.0;
  double out_multiplier = 1.0;
  double alpha = 1.0;
  double limit = 0.0;
  double up_offset = 0.0;

  std::string Name() const {
    return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "], dtype " +
           std::to_string(dtype) + ", round " + std::to_string(round_activation) + ", gate *" +
           std::to_string(gate_multiplier) + ", out *" + std::to_string(out_multiplier) +
           ", alpha " + std::to_string(alpha) + ", limit " + std::to_string(limit) + ", up +" +
           std::to_string(up_offset);
  }
  FbSwigluParams params() const {
    return {sizeof(FbSwigluParams),
            round_activation,
            gate_multiplier,
            out_multiplier,
            alpha,
            limit,
            up_offset};
  }
  bool Passes(double value) const { return limit == 0.0 || value <= limit; }
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

// What is multiplied, after multiplier, limit and offset.
inline double GateOf(const Case& c, double gate) {
  const double g = c.gate_multiplier * gate;
  return c.Passes(g) ? g : c.limit;
}

inline double UpOf(const Case& c, double up) {
  return (c.Passes(std::fabs(up)) ? up : std::copysign(c.limit, up)) + c.up_offset;
}

// The activation of a gate, rounded where the model rounds it.
inline double Activation(const Case& c, double gate) {
  const double g = GateOf(c, gate);
  const double act = g * Sigmoid(c.alpha * g);
  return c.round_activation != 0 ? testing::RoundToDType(c.dtype, act) : act;
}

// By the gate itself.
inline double ActivationDerivative(const Case& c, double gate) {
  if (!c.Passes(c.gate_multiplier * gate)) return 0.0;
  const double g = GateOf(c, gate);
  const double s = Sigmoid(c.alpha * g);
  return c.gate_multiplier * s * (1.0 + c.alpha * g * (1.0 - s));
}

inline double Out(const Case& c, double gate, double up) {
  return Activation(c, gate) * UpOf(c, up) * c.out_multiplier;
}

inline double DGate(const Case& c, double dout, double gate, double up) {
  return dout * c.out_multiplier * UpOf(c, up) * ActivationDerivative(c, gate);
}

inline double DUp(const Case& c, double dout, double gate, double up) {
  return c.Passes(std::fabs(up)) ? dout * c.out_multiplier * Activation(c, gate) : 0.0;
}

}  // namespace fuseboard::swiglu

#endif  // TESTS_KERNELS_SWIGLU_SWIGLU_CASE_H_
