// One kernel for every elementwise operation: reads each input once, calls a function on the
// elements as f32, writes each output once with one rounding.
//
//   template <typename T>        // The storage type; a function may be more exact for float.
//   struct Function {
//     static constexpr int kInputs, kOutputs;
//     using Params = ...;        // Plain data, the same type for every T.
//     __device__ static void Apply(const float (&in)[kInputs], const Params& params,
//                                  float (&out)[kOutputs]);
//   };
//
// Determinism: no sums, so trivially.

#ifndef KERNELS_ELEMENTWISE_ELEMENTWISE_CUH_
#define KERNELS_ELEMENTWISE_ELEMENTWISE_CUH_

#include "kernels/common/vector.cuh"
#include "kernels/elementwise/elementwise_call.h"
#include "kernels/elementwise/elementwise_policy.h"

namespace fuseboard::elementwise {

// Of a function without parameters.
struct NoParams {};

// One run of kLanes elements of each input, held as loaded.
template <typename T, int kLanes, int kInputs>
struct Runs {
  Lanes<T, kLanes> in[kInputs];
};

template <template <typename> typename Function, typename T, int kLanes>
__device__ __forceinline__ void StoreRun(const Runs<T, kLanes, Function<T>::kInputs>& runs,
                                         const Call& call,
                                         const typename Function<T>::Params& params, int64_t row,
                                         int64_t col) {
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
    F::Apply(arguments, params, results);
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
    ElementwiseKernel(const __grid_constant__ Call call,
                      const __grid_constant__ typename Function<T>::Params params, Tiles tiles) {
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
      StoreRun<Function, T, kLanes>(runs[u], call, params, row, col);
    }
  }
}

// Rounds to T and back, if asked to.
template <typename T>
__device__ __forceinline__ float RoundIf(bool round, float value) {
  if (!round) return value;
  float values[1] = {value};
  RoundFloats<T>(values);
  return values[0];
}

}  // namespace fuseboard::elementwise

#endif  // KERNELS_ELEMENTWISE_ELEMENTWISE_CUH_
