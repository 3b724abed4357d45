// Gated activations on the CPU: out = act(gate) * up and its gradient, one block at a time. An
// activation is
//
//   struct Activation {
//     static float Value(float g);
//     static ActivationValues WithDerivative(float g);
//   };
//
// of branch-free functions that are always inlined, so that the loops over them are vectorised (and
// as GCC 12 takes a call with a converted block for a use of uninitialised memory).

#ifndef KERNELS_ELEMENTWISE_GATED_CPU_H_
#define KERNELS_ELEMENTWISE_GATED_CPU_H_

#include "kernels/elementwise/elementwise_cpu.h"

namespace fuseboard::elementwise::FB_CPU_ISA {

struct ActivationValues {
  float value;
  float derivative;
};

// The whole of a FbEntry::launch. `round_activation`: to the dtype, before the product.
template <typename Activation>
void GatedForward(const FbCall& raw, bool round_activation) {
  ForEachBlock(raw, [&](auto tag, const Call& call, int64_t row, int64_t col, int64_t n) {
    using T = typename decltype(tag)::type;
    float gate_buffer[kBlock];
    float up_buffer[kBlock];
    float result[kBlock];
    const float* gate = ReadBlock<T>(call.in[0], row, col, n, gate_buffer);
    const float* up = ReadBlock<T>(call.in[1], row, col, n, up_buffer);
    for (int64_t i = 0; i < n; ++i) result[i] = Activation::Value(gate[i]);
    if (round_activation) RoundBlock<T>(result, n);
    for (int64_t i = 0; i < n; ++i) result[i] *= up[i];
    WriteBlock<T>(result, call.out[0], row, col, n);
  });
}

template <typename Activation>
void GatedBackward(const FbCall& raw, bool round_activation) {
  ForEachBlock(raw, [&](auto tag, const Call& call, int64_t row, int64_t col, int64_t n) {
    using T = typename decltype(tag)::type;
    float dout_buffer[kBlock];
    float gate_buffer[kBlock];
    float up_buffer[kBlock];
    float activation[kBlock];
    float dgate[kBlock];
    const float* dout = ReadBlock<T>(call.in[0], row, col, n, dout_buffer);
    const float* gate = ReadBlock<T>(call.in[1], row, col, n, gate_buffer);
    const float* up = ReadBlock<T>(call.in[2], row, col, n, up_buffer);
    for (int64_t i = 0; i < n; ++i) {
      const ActivationValues act = Activation::WithDerivative(gate[i]);
      activation[i] = act.value;
      dgate[i] = dout[i] * up[i] * act.derivative;
    }
    if (call.out[0].base != nullptr) WriteBlock<T>(dgate, call.out[0], row, col, n);
    if (call.out[1].base == nullptr) return;
    if (round_activation) RoundBlock<T>(activation, n);
    for (int64_t i = 0; i < n; ++i) activation[i] *= dout[i];
    WriteBlock<T>(activation, call.out[1], row, col, n);
  });
}

}  // namespace fuseboard::elementwise::FB_CPU_ISA

#endif  // KERNELS_ELEMENTWISE_GATED_CPU_H_
