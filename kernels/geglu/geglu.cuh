// GEGLU on the GPU, elementwise in f32, and its gradient, with gelu in either of its forms.
//
// Traffic: each input read once, each output written once. Determinism: no sums, so trivially.

#ifndef KERNELS_GEGLU_GEGLU_CUH_
#define KERNELS_GEGLU_GEGLU_CUH_

#include "kernels/elementwise/gated.cuh"
#include "kernels/geglu/gelu.cuh"

namespace fuseboard::geglu {

template <typename T>
struct TanhForward : elementwise::GatedForward<T, TanhGelu<T>> {};
template <typename T>
struct TanhBackward : elementwise::GatedBackward<T, TanhGelu<T>> {};
template <typename T>
struct ExactForward : elementwise::GatedForward<T, ExactGelu<T>> {};
template <typename T>
struct ExactBackward : elementwise::GatedBackward<T, ExactGelu<T>> {};

}  // namespace fuseboard::geglu

#endif  // KERNELS_GEGLU_GEGLU_CUH_
