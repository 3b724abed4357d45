// SwiGLU on the GPU, elementwise in f32, and its gradient: plain, out = silu(gate) * up, and
// general, with the options of kernels/abi/swiglu.h. Apart, so that the plain one pays for no
// option.
//
// Traffic: each input read once, each output written once. Determinism: no sums, so trivially.

#ifndef KERNELS_SWIGLU_SWIGLU_CUH_
#define KERNELS_SWIGLU_SWIGLU_CUH_

#include "kernels/elementwise/gated.cuh"
#include "kernels/elementwise/sigmoid.cuh"
#include "kernels/swiglu/swiglu_call.h"

namespace fuseboard::swiglu {

using elementwise::ActivationValues;
using elementwise::Sigmoid;

// d silu(g) / dg = s + g s (1 - s) with s = sigmoid(g).
template <typename T>
struct Silu {
  __device__ __forceinline__ static float Value(float g) { return g * Sigmoid<T>(g); }

  __device__ __forceinline__ static ActivationValues WithDerivative(float g) {
    const float s = Sigmoid<T>(g);
    const float silu = g * s;
    return {silu, s + silu * (1.0f - s)};
  }
};

template <typename T>
struct Forward : elementwise::GatedForward<T, Silu<T>> {};

template <typename T>
struct Backward : elementwise::GatedBackward<T, Silu<T>> {};

// sigmoid(alpha g). Cheaper than Sigmoid for 16-bit dtypes, and 0 where that is below 2^-126.
template <typename T>
__device__ __forceinline__ float AlphaSigmoid(float g, const Options& p) {
  if constexpr (std::is_same_v<T, float>) {
    return Sigmoid<float>(p.alpha * g);
  } else {
    return ReciprocalApprox(1.0f + Exp2Approx(g * p.minus_alpha_log2e));
  }
}

template <typename T>
struct GeneralForward {
  static constexpr int kInputs = 2;  // gate, up
  static constexpr int kOutputs = 1;
  using Params = Options;

  __device__ __forceinline__ static void Apply(const float (&in)[2], const Params& p,
                                               float (&out)[1]) {
    const float g = MinOrNaN(p.gate_multiplier * in[0], p.limit);
    const float u = MaxOrNaN(MinOrNaN(in[1], p.limit), -p.limit) + p.up_offset;
    const float act = elementwise::RoundIf<T>(p.round_activation, g * AlphaSigmoid<T>(g, p));
    out[0] = act * u * p.out_multiplier;
  }
};

// d act / dg = s + alpha g s (1 - s) with s = sigmoid(alpha g).
template <typename T>
struct GeneralBackward {
  static constexpr int kInputs = 3;   // dout, gate, up
  static constexpr int kOutputs = 2;  // dgate, dup
  using Params = Options;

  __device__ __forceinline__ static void Apply(const float (&in)[3], const Params& p,
                                               float (&out)[2]) {
    const float unlimited = p.gate_multiplier * in[1];
    const float g = MinOrNaN(unlimited, p.limit);
    const float u = MaxOrNaN(MinOrNaN(in[2], p.limit), -p.limit) + p.up_offset;
    const float dout = in[0] * p.out_multiplier;
    const float s = AlphaSigmoid<T>(g, p);
    const float act = g * s;
    const float derivative = fmaf(p.alpha * act, 1.0f - s, s);
    // Before the choice between them and 0: inside it they cost a branch per element, 636
    // instructions instead of 469 for 8 elements of bf16.
    const float dgate = dout * u * derivative * p.gate_multiplier;
    const float dup = dout * elementwise::RoundIf<T>(p.round_activation, act);
    out[0] = !p.limited || unlimited <= p.limit ? dgate : 0.0f;
    out[1] = !p.limited || fabsf(in[2]) <= p.limit ? dup : 0.0f;
  }
};

}  // namespace fuseboard::swiglu

#endif  // KERNELS_SWIGLU_SWIGLU_CUH_
