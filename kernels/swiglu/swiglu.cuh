// SwiGLU on the GPU, elementwise in f32: out = silu(gate) * up and its gradient.
//
// Traffic: each input read once, each output written once. Determinism: no sums, so trivially.

#ifndef KERNELS_SWIGLU_SWIGLU_CUH_
#define KERNELS_SWIGLU_SWIGLU_CUH_

#include "kernels/common/vector.cuh"
#include "kernels/swiglu/swiglu_call.h"
#include "kernels/swiglu/swiglu_policy.h"

namespace fuseboard::swiglu {

// 1 / (1 + e^-g), without overflow on either side: the denominator lies in [1, 2].
template <typename T>
__device__ __forceinline__ float Sigmoid(float g) {
  if constexpr (std::is_same_v<T, float>) {
    const float e = expf(-fabsf(g));
    return (g >= 0.0f ? 1.0f : e) / (1.0f + e);
  } else {
    // __expf is off by up to 2 + 1.2 |g| ulp of f32; at |g| = 88 that is 1e-5, 1/20 of half an ulp
    // of f16, and less for bf16. NaN passes through e.
    const float e = __expf(-fabsf(g));
    return __fdividef(g >= 0.0f ? 1.0f : e, 1.0f + e);
  }
}

template <typename T>
__device__ __forceinline__ float RoundIf(bool round, float value) {
  if (!round) return value;
  float values[1] = {value};
  RoundFloats<T>(values);
  return values[0];
}

template <typename T>
struct Forward {
  static constexpr int kInputs = 2;  // gate, up
  static constexpr int kOutputs = 1;

  __device__ __forceinline__ static void Apply(const float (&in)[2], bool round, float (&out)[1]) {
    out[0] = RoundIf<T>(round, in[0] * Sigmoid<T>(in[0])) * in[1];
  }
};

// d silu(g) / dg = s + g s (1 - s) with s = sigmoid(g). dgate is the derivative of the unrounded
// silu; rounding counts as the identity, as in autograd.
template <typename T>
struct Backward {
  static constexpr int kInputs = 3;  // dout, gate, up
  static constexpr int kOutputs = 2;

  __device__ __forceinline__ static void Apply(const float (&in)[3], bool round, float (&out)[2]) {
    const float s = Sigmoid<T>(in[1]);
    const float silu = in[1] * s;
    out[0] = in[0] * in[2] * (s + silu * (1.0f - s));
    out[1] = in[0] * RoundIf<T>(round, silu);
  }
};

// One run of kLanes elements of each input, held as loaded.
template <typename T, int kLanes, int kInputs>
struct Runs {
  Lanes<T, kLanes> in[kInputs];
};

template <template <typename> typename Function, typename T, int kLanes>
__device__ __forceinline__ void StoreRun(const Runs<T, kLanes, Function<T>::kInputs>& runs,
                                         const Call& call, int64_t row, int64_t col) {
  using F = Function<T>;
  float in[F::kInputs][kLanes];
  float out[F::kOutputs][kLanes];
#pragma unroll
  for (int i = 0; i < F::kInputs; ++i) Unpack<T, kLanes>(runs.in[i], in[i]);
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    float arguments[F::kInputs];
    float results[F::kOutputs];
#pragma unroll
    for (int i = 0; i < F::kInputs; ++i) arguments[i] = in[i][lane];
    F::Apply(arguments, call.round_activation, results);
#pragma unroll
    for (int i = 0; i < F::kOutputs; ++i) out[i][lane] = results[i];
  }
#pragma unroll
  for (int i = 0; i < F::kOutputs; ++i) {
    if (call.out[i].base == nullptr) continue;
    StoreFloats<T, kLanes>(static_cast<T*>(call.out[i].base) + row * call.out[i].stride + col,
                           out[i]);
  }
}

// blockDim = (threads per row, rows per block); see Tiles. REQUIRES: kLanes divides cols, and rows
// are aligned to runs.
template <template <typename> typename Function, typename T, int kLanes, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    SwigluKernel(const __grid_constant__ Call call, Tiles tiles) {
  constexpr int kInputs = Function<T>::kInputs;
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const int64_t row_tile = tiles.per_row == tiles.count ? 0 : tile / tiles.per_row;
    const int64_t row = row_tile * blockDim.y + threadIdx.y;
    if (row >= call.rows) continue;
    const int64_t first =
        ((tile - row_tile * tiles.per_row) * C::kUnroll * blockDim.x + threadIdx.x) * kLanes;
    const int64_t step = int64_t{blockDim.x} * kLanes;

    Runs<T, kLanes, kInputs> runs[C::kUnroll];
#pragma unroll
    for (int u = 0; u < C::kUnroll; ++u) {
      const int64_t col = first + u * step;
      if (col >= call.cols) break;
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        runs[u].in[i] = LoadLanes<T, kLanes>(static_cast<const T*>(call.in[i].base) +
                                             row * call.in[i].stride + col);
      }
    }
#pragma unroll
    for (int u = 0; u < C::kUnroll; ++u) {
      const int64_t col = first + u * step;
      if (col >= call.cols) break;
      StoreRun<Function, T, kLanes>(runs[u], call, row, col);
    }
  }
}

}  // namespace fuseboard::swiglu

#endif  // KERNELS_SWIGLU_SWIGLU_CUH_
