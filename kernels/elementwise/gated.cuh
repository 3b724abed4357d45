// Gated activations on the GPU: out = act(gate) * up and its gradient. An activation is
//
//   template <typename T>
//   struct Activation {
//     __device__ static float Value(float g);
//     __device__ static ActivationValues WithDerivative(float g);
//   };
//
// dgate takes the derivative of the unrounded activation; rounding counts as the identity, as in
// autograd.

#ifndef KERNELS_ELEMENTWISE_GATED_CUH_
#define KERNELS_ELEMENTWISE_GATED_CUH_

#include "kernels/elementwise/elementwise.cuh"

namespace fuseboard::elementwise {

struct GatedParams {
  bool round_activation;  // To the dtype, before the product.
};

struct ActivationValues {
  float value;
  float derivative;
};

template <typename T, typename Activation>
struct GatedForward {
  static constexpr int kInputs = 2;  // gate, up
  static constexpr int kOutputs = 1;
  using Params = GatedParams;

  __device__ __forceinline__ static void Apply(const float (&in)[2], const Params& params,
                                               float (&out)[1]) {
    out[0] = RoundIf<T>(params.round_activation, Activation::Value(in[0])) * in[1];
  }
};

template <typename T, typename Activation>
struct GatedBackward {
  static constexpr int kInputs = 3;   // dout, gate, up
  static constexpr int kOutputs = 2;  // dgate, dup
  using Params = GatedParams;

  __device__ __forceinline__ static void Apply(const float (&in)[3], const Params& params,
                                               float (&out)[2]) {
    const ActivationValues act = Activation::WithDerivative(in[1]);
    out[0] = in[0] * in[2] * act.derivative;
    out[1] = in[0] * RoundIf<T>(params.round_activation, act.value);
  }
};

}  // namespace fuseboard::elementwise

#endif  // KERNELS_ELEMENTWISE_GATED_CUH_
