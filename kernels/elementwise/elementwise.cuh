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

// StoreFloats in one access: nvcc 13.0 makes four stores of 4 bytes of one of 16 here, though not
// in other kernels.
template <typename T, int kLanes>
__device__ __forceinline__ void StoreOnce(T* address, const float (&in)[kLanes]) {
  const Lanes<T, kLanes> run = PackFloats<T, kLanes>(in);
  if constexpr (run.kBytes == 16) {
    StoreGlobal16(address, run.word[0], run.word[1], run.word[2], run.word[3]);
  } else if constexpr (run.kBytes == 8) {
    StoreGlobal8(address, run.word[0], run.word[1]);
  } else {
    StoreLanes<T, kLanes>(address, run);
  }
}

// Two runs of kLanes elements, alternating in memory: even columns, odd columns. One access if they
// are more than one, and then aligned to it.
template <typename T, int kLanes>
__device__ __forceinline__ Lanes<T, 2 * kLanes> LoadAlternating(const T* address) {
  if constexpr (kLanes > 1) {
    return LoadLanes<T, 2 * kLanes>(address);
  } else {
    Lanes<T, 2> both;
    const uint32_t even = LoadLanes<T, 1>(address).word[0];
    const uint32_t odd = LoadLanes<T, 1>(address + 1).word[0];
    both.word[0] = sizeof(T) == 2 ? even | odd << 16 : even;
    if constexpr (sizeof(T) == 4) both.word[1] = odd;
    return both;
  }
}

template <typename T, int kLanes>
__device__ __forceinline__ void StoreAlternating(T* address, const float (&even)[kLanes],
                                                 const float (&odd)[kLanes]) {
  if constexpr (kLanes > 1) {
    float both[2 * kLanes];
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      both[2 * lane] = even[lane];
      both[2 * lane + 1] = odd[lane];
    }
    StoreOnce<T, 2 * kLanes>(address, both);
  } else {
    StoreFloats<T, 1>(address, even);
    StoreFloats<T, 1>(address + 1, odd);
  }
}

template <typename T>
__device__ __forceinline__ T* AddressOf(const Matrix& matrix, int64_t row, int64_t offset) {
  return static_cast<T*>(matrix.base) + row * matrix.stride + offset;
}

// One run of kLanes elements of each input, held as loaded.
template <typename T, int kLanes, int kInputs, bool kAlternating>
struct Runs {
  Lanes<T, kLanes> in[kInputs];

  __device__ __forceinline__ void Load(const Call& call, int64_t row, int64_t col) {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      in[i] = LoadLanes<T, kLanes>(AddressOf<const T>(call.in[i], row, col));
    }
  }

  __device__ __forceinline__ void ToFloats(float (&out)[kInputs][kLanes]) const {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) Unpack<T, kLanes>(in[i], out[i]);
  }
};

// The last two inputs alternate.
template <typename T, int kLanes, int kInputs>
struct Runs<T, kLanes, kInputs, true> {
  static_assert(kInputs == 2 || kInputs == 3);
  static constexpr int kEven = kInputs - 2;
  Lanes<T, kLanes> first;  // If there are three.
  Lanes<T, 2 * kLanes> both;

  __device__ __forceinline__ void Load(const Call& call, int64_t row, int64_t col) {
    if constexpr (kEven == 1) {
      first = LoadLanes<T, kLanes>(AddressOf<const T>(call.in[0], row, col));
    }
    both = LoadAlternating<T, kLanes>(AddressOf<const T>(call.in[kEven], row, 2 * col));
  }

  __device__ __forceinline__ void ToFloats(float (&out)[kInputs][kLanes]) const {
    if constexpr (kEven == 1) Unpack<T, kLanes>(first, out[0]);
    float floats[2 * kLanes];
    Unpack<T, 2 * kLanes>(both, floats);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      out[kEven][lane] = floats[2 * lane];
      out[kEven + 1][lane] = floats[2 * lane + 1];
    }
  }
};

// The function of each element of a run.
template <typename F, int kLanes>
__device__ __forceinline__ void ApplyToRun(const float (&in)[F::kInputs][kLanes],
                                           const typename F::Params& params,
                                           float (&out)[F::kOutputs][kLanes]) {
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
}

template <template <typename> typename Function, typename T, int kLanes, bool kAlternating>
__device__ __forceinline__ void StoreRun(
    const Runs<T, kLanes, Function<T>::kInputs, kAlternating>& runs, const Call& call,
    const typename Function<T>::Params& params, int64_t row, int64_t col) {
  using F = Function<T>;
  float in[F::kInputs][kLanes];
  float out[F::kOutputs][kLanes];
  runs.ToFloats(in);
  ApplyToRun<F, kLanes>(in, params, out);
  if constexpr (kAlternating && F::kOutputs == 2) {
    StoreAlternating<T, kLanes>(AddressOf<T>(call.out[0], row, 2 * col), out[0], out[1]);
  } else {
#pragma unroll
    for (int i = 0; i < F::kOutputs; ++i) {
      if (call.out[i].base == nullptr) continue;
      StoreOnce<T, kLanes>(AddressOf<T>(call.out[i], row, col), out[i]);
    }
  }
}

// blockDim = (threads per row, rows per block); see Tiles. REQUIRES: kLanes divides cols, and rows
// are aligned to runs.
template <template <typename> typename Function, typename T, int kLanes, typename C,
          bool kAlternating>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    ElementwiseKernel(const __grid_constant__ Call call,
                      const __grid_constant__ typename Function<T>::Params params, Tiles tiles) {
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const int64_t row_tile = tiles.per_row == tiles.count ? 0 : tile / tiles.per_row;
    const int64_t row = row_tile * blockDim.y + threadIdx.y;
    if (row >= call.rows) continue;
    const int64_t first =
        ((tile - row_tile * tiles.per_row) * C::kUnroll * blockDim.x + threadIdx.x) * kLanes;
    const int64_t step = int64_t{blockDim.x} * kLanes;

    Runs<T, kLanes, Function<T>::kInputs, kAlternating> runs[C::kUnroll];
#pragma unroll
    for (int u = 0; u < C::kUnroll; ++u) {
      const int64_t col = first + u * step;
      if (col >= call.cols) break;
      runs[u].Load(call, row, col);
    }
#pragma unroll
    for (int u = 0; u < C::kUnroll; ++u) {
      const int64_t col = first + u * step;
      if (col >= call.cols) break;
      StoreRun<Function, T, kLanes, kAlternating>(runs[u], call, params, row, col);
    }
  }
}

// What FewElementsKernel is told: where a call's matrices of one row each are, and their runs.
// Short, as each line of arguments that is fetched takes its time.
struct FewElements {
  const void* in[kMaxInputs];
  void* out[kMaxOutputs];  // NULL: absent.
  int32_t runs;
};

// The same for few elements, where what happens once per block counts: a run to a thread, no rows,
// no tiles. May be launched dependent. REQUIRES: runs of 16 bytes, one row after the other.
template <template <typename> typename Function, typename T>
__global__ void __launch_bounds__(kFewElementsThreads)
    FewElementsKernel(const __grid_constant__ FewElements call,
                      const __grid_constant__ typename Function<T>::Params params) {
  using F = Function<T>;
  constexpr int kLanes = kPackLanes<T>;
  WaitForPredecessor();
  const auto run = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (run >= call.runs) return;
  Lanes<T, kLanes> loaded[F::kInputs];
  float in[F::kInputs][kLanes];
  float out[F::kOutputs][kLanes];
#pragma unroll
  for (int i = 0; i < F::kInputs; ++i) {
    loaded[i] = LoadLanes<T, kLanes>(static_cast<const T*>(call.in[i]) + run * kLanes);
  }
#pragma unroll
  for (int i = 0; i < F::kInputs; ++i) Unpack<T, kLanes>(loaded[i], in[i]);
  ApplyToRun<F, kLanes>(in, params, out);
#pragma unroll
  for (int i = 0; i < F::kOutputs; ++i) {
    if (call.out[i] == nullptr) continue;
    StoreOnce<T, kLanes>(static_cast<T*>(call.out[i]) + run * kLanes, out[i]);
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
