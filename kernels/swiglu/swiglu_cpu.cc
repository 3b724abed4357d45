// SwiGLU on the CPU, compiled once per instruction set.

#include "kernels/swiglu/swiglu_cpu.h"

#include "kernels/elementwise/gated_cpu.h"
#include "kernels/swiglu/swiglu_call.h"

namespace fuseboard::swiglu::FB_CPU_ISA {
namespace {

using elementwise::FB_CPU_ISA::ActivationValues;
using fuseboard::FB_CPU_ISA::Sigmoid;

struct Silu {
  [[gnu::always_inline]] static float Value(float g) { return g * Sigmoid(g); }

  [[gnu::always_inline]] static ActivationValues WithDerivative(float g) {
    const float s = Sigmoid(g);
    return {g * s, s + g * s * (1.0f - s)};
  }
};

}  // namespace

int32_t ForwardCpu(const FbCall* call, void* /*workspace*/) {
  elementwise::FB_CPU_ISA::GatedForward<Silu>(*call, ParamsOf(*call).round_activation != 0);
  return 0;
}

int32_t BackwardCpu(const FbCall* call, void* /*workspace*/) {
  elementwise::FB_CPU_ISA::GatedBackward<Silu>(*call, ParamsOf(*call).round_activation != 0);
  return 0;
}

}  // namespace fuseboard::swiglu::FB_CPU_ISA
