// SwiGLU on the CPU, compiled once per instruction set.

#include "kernels/swiglu/swiglu_cpu.h"

#include "kernels/elementwise/gated_cpu.h"
#include "kernels/swiglu/swiglu_call.h"

namespace fuseboard::swiglu::FB_CPU_ISA {
namespace {

using elementwise::Call;
using elementwise::FB_CPU_ISA::ActivationValues;
using elementwise::FB_CPU_ISA::ForEachBlock;
using elementwise::FB_CPU_ISA::GatedBackward;
using elementwise::FB_CPU_ISA::GatedForward;
using elementwise::FB_CPU_ISA::kBlock;
using elementwise::FB_CPU_ISA::ReadBlock;
using elementwise::FB_CPU_ISA::WriteBlock;
using fuseboard::FB_CPU_ISA::RoundBlock;
using fuseboard::FB_CPU_ISA::Sigmoid;

struct Silu {
  [[gnu::always_inline]] static float Value(float g) { return g * Sigmoid(g); }

  [[gnu::always_inline]] static ActivationValues WithDerivative(float g) {
    const float s = Sigmoid(g);
    return {g * s, s + g * s * (1.0f - s)};
  }
};

// ---- With the options of kernels/abi/swiglu.h ----

// min(g, limit) and max(min(u, limit), -limit). NaN stays, as it is neither larger nor smaller.
[[gnu::always_inline]] inline float LimitGate(float g, float limit) {
  return g > limit ? limit : g;
}

[[gnu::always_inline]] inline float LimitUp(float u, float limit) {
  const float below = u > limit ? limit : u;
  return below < -limit ? -limit : below;
}

void GeneralForward(const FbCall& raw, const Options& p) {
  ForEachBlock(raw, [&](auto tag, const Call& call, int64_t row, int64_t col, int64_t n) {
    using T = decltype(tag)::type;
    float gate_buffer[kBlock];
    float up_buffer[kBlock];
    float result[kBlock];
    const float* gate = ReadBlock<T>(call.in[0], row, col, n, gate_buffer);
    const float* up = ReadBlock<T>(call.in[1], row, col, n, up_buffer);
    for (int64_t i = 0; i < n; ++i) {
      const float g = LimitGate(p.gate_multiplier * gate[i], p.limit);
      result[i] = g * Sigmoid(p.alpha * g);
    }
    if (p.round_activation) RoundBlock<T>(result, n);
    for (int64_t i = 0; i < n; ++i) {
      result[i] = result[i] * (LimitUp(up[i], p.limit) + p.up_offset) * p.out_multiplier;
    }
    WriteBlock<T>(result, call.out[0], row, col, n);
  });
}

// d act / dg = s + alpha g s (1 - s) with s = sigmoid(alpha g).
void GeneralBackward(const FbCall& raw, const Options& p) {
  ForEachBlock(raw, [&](auto tag, const Call& call, int64_t row, int64_t col, int64_t n) {
    using T = decltype(tag)::type;
    float dout_buffer[kBlock];
    float gate_buffer[kBlock];
    float up_buffer[kBlock];
    float act[kBlock];
    float result[kBlock];
    const float* dout = ReadBlock<T>(call.in[0], row, col, n, dout_buffer);
    const float* gate = ReadBlock<T>(call.in[1], row, col, n, gate_buffer);
    const float* up = ReadBlock<T>(call.in[2], row, col, n, up_buffer);
    for (int64_t i = 0; i < n; ++i) {
      const float unlimited = p.gate_multiplier * gate[i];
      const float g = LimitGate(unlimited, p.limit);
      const float u = LimitUp(up[i], p.limit) + p.up_offset;
      const float s = Sigmoid(p.alpha * g);
      act[i] = g * s;
      const float derivative = s + p.alpha * g * s * (1.0f - s);
      const float dgate = dout[i] * p.out_multiplier * u * derivative * p.gate_multiplier;
      result[i] = !p.limited || unlimited <= p.limit ? dgate : 0.0f;
    }
    if (call.out[0].base != nullptr) WriteBlock<T>(result, call.out[0], row, col, n);
    if (call.out[1].base == nullptr) return;
    if (p.round_activation) RoundBlock<T>(act, n);
    for (int64_t i = 0; i < n; ++i) {
      const bool passes = !p.limited || (up[i] <= p.limit && up[i] >= -p.limit);
      result[i] = passes ? dout[i] * p.out_multiplier * act[i] : 0.0f;
    }
    WriteBlock<T>(result, call.out[1], row, col, n);
  });
}

}  // namespace

int32_t ForwardCpu(const FbCall* call, void* /*workspace*/) {
  const Options options = OptionsOf(*call);
  if (IsPlain(options)) {
    GatedForward<Silu>(*call, options.round_activation);
  } else {
    GeneralForward(*call, options);
  }
  return 0;
}

int32_t BackwardCpu(const FbCall* call, void* /*workspace*/) {
  const Options options = OptionsOf(*call);
  if (IsPlain(options)) {
    GatedBackward<Silu>(*call, options.round_activation);
  } else {
    GeneralBackward(*call, options);
  }
  return 0;
}

}  // namespace fuseboard::swiglu::FB_CPU_ISA
