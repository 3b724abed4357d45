// SwiGLU on the GPU, elementwise in f32: out = silu(gate) * up and its gradient.
//
// Traffic: each input read once, each output written once. Determinism: no sums, so trivially.

#ifndef KERNELS_SWIGLU_SWIGLU_CUH_
#define KERNELS_SWIGLU_SWIGLU_CUH_

#include "kernels/elementwise/gated.cuh"
#include "kernels/elementwise/sigmoid.cuh"

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

}  // namespace fuseboard::swiglu

#endif  // KERNELS_SWIGLU_SWIGLU_CUH_
