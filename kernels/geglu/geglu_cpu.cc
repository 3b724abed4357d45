// geglu on the CPU, compiled once per instruction set.

#include "kernels/geglu/geglu_cpu.h"

#include "kernels/elementwise/gated_cpu.h"
#include "kernels/geglu/geglu_call.h"
#include "kernels/geglu/gelu_math.h"

namespace fuseboard::geglu::FB_CPU_ISA {
namespace {

using elementwise::FB_CPU_ISA::ActivationValues;
using elementwise::FB_CPU_ISA::GatedBackward;
using elementwise::FB_CPU_ISA::GatedForward;
using fuseboard::FB_CPU_ISA::Normal;
using fuseboard::FB_CPU_ISA::NormalValues;
using fuseboard::FB_CPU_ISA::Sigmoid;

// g s with s = sigmoid(2 u) = (1 + tanh(u)) / 2.
struct TanhGelu {
  [[gnu::always_inline]] static float Value(float g) {
    return g * Sigmoid(g * (kTwoU + kTwoUCubic * g * g));
  }

  // s + g s (1 - s) d(2 u)/dg.
  [[gnu::always_inline]] static ActivationValues WithDerivative(float g) {
    // s is 0 or 1 long before the bound; an infinite square would give NaN.
    const float square = g * g > 1e9f ? 1e9f : g * g;
    const float s = Sigmoid(g * (kTwoU + kTwoUCubic * square));
    return {g * s, s + g * s * (1.0f - s) * (kTwoU + 3.0f * kTwoUCubic * square)};
  }
};

// g cdf(g), the normal distribution.
struct ExactGelu {
  [[gnu::always_inline]] static float Value(float g) { return g * Normal(g).cdf; }

  // cdf(g) + g density(g).
  [[gnu::always_inline]] static ActivationValues WithDerivative(float g) {
    const NormalValues normal = Normal(g);
    return {g * normal.cdf, normal.cdf + g * normal.density};
  }
};

}  // namespace

int32_t ForwardCpu(const FbCall* call, void* /*workspace*/) {
  const bool round = ParamsOf(*call).round_activation != 0;
  if (ParamsOf(*call).gelu == FB_GELU_TANH) {
    GatedForward<TanhGelu>(*call, round);
  } else {
    GatedForward<ExactGelu>(*call, round);
  }
  return 0;
}

int32_t BackwardCpu(const FbCall* call, void* /*workspace*/) {
  const bool round = ParamsOf(*call).round_activation != 0;
  if (ParamsOf(*call).gelu == FB_GELU_TANH) {
    GatedBackward<TanhGelu>(*call, round);
  } else {
    GatedBackward<ExactGelu>(*call, round);
  }
  return 0;
}

}  // namespace fuseboard::geglu::FB_CPU_ISA
