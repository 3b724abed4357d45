// Host side of elementwise.cuh: launches a function's kernel for a call, and loads all its kernels.

#ifndef KERNELS_ELEMENTWISE_ELEMENTWISE_LAUNCH_CUH_
#define KERNELS_ELEMENTWISE_ELEMENTWISE_LAUNCH_CUH_

#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/elementwise/elementwise.cuh"

namespace fuseboard::elementwise {

template <template <typename> typename Function>
using ParamsOf = typename Function<float>::Params;

template <template <typename> typename Function>
using Kernel = void (*)(Call, ParamsOf<Function>, Tiles);

// Elements of a run: what alternates is 16 bytes, the rest half of that.
template <typename T, bool kAlternating>
inline constexpr int kRunLanes = kAlternating ? kPackLanes<T> / 2 : kPackLanes<T>;

template <template <typename> typename Function, typename C, bool kAlternating>
Kernel<Function> SelectKernel(int32_t dtype, bool packs) {
  return DispatchFloat(dtype, [&](auto tag) -> Kernel<Function> {
    using T = typename decltype(tag)::type;
    if (packs) return ElementwiseKernel<Function, T, kRunLanes<T, kAlternating>, C, kAlternating>;
    return ElementwiseKernel<Function, T, 1, C, kAlternating>;
  });
}

// Whether all rows can be read and written in runs of `lanes` elements.
template <template <typename> typename Function, bool kAlternating>
bool InPacks(const Call& call, int lanes, int bytes) {
  using F = Function<float>;
  const auto aligned = [&](const Matrix& matrix) {
    const int64_t run_bytes = matrix.step * lanes * bytes;
    return reinterpret_cast<uintptr_t>(matrix.base) % run_bytes == 0 &&
           (call.rows <= 1 || matrix.stride * bytes % run_bytes == 0);
  };
  // The second of an alternating pair is read and written with the first.
  const int inputs = kAlternating ? F::kInputs - 1 : F::kInputs;
  const int outputs = kAlternating ? 1 : F::kOutputs;
  return call.cols % lanes == 0 && std::all_of(call.in, call.in + inputs, aligned) &&
         std::all_of(call.out, call.out + outputs, aligned);
}

template <template <typename> typename Function>
using FewKernel = void (*)(FewElements, ParamsOf<Function>);

template <template <typename> typename Function>
FewKernel<Function> SelectFewKernel(int32_t dtype) {
  return DispatchFloat(dtype, [](auto tag) -> FewKernel<Function> {
    return FewElementsKernel<Function, typename decltype(tag)::type>;
  });
}

// REQUIRES: one row, in `runs` runs of 16 bytes.
template <template <typename> typename Function>
int32_t LaunchFew(const FbCall& raw, const Call& call, int64_t runs,
                  const ParamsOf<Function>& params) {
  FewElements few = {};
  few.runs = static_cast<int32_t>(runs);
  for (int i = 0; i < Function<float>::kInputs; ++i) few.in[i] = call.in[i].base;
  for (int i = 0; i < Function<float>::kOutputs; ++i) few.out[i] = call.out[i].base;
  const LaunchShape shape = {.blocks = FewElementsBlocks(runs),
                             .threads = kFewElementsThreads,
                             .dependent = raw.sm >= 90,
                             .stream = static_cast<cudaStream_t>(raw.stream)};
  return LaunchKernel(SelectFewKernel<Function>(call.dtype), shape, few, params);
}

// FbEntry::launch on CUDA. Returns a cudaError_t. REQUIRES: IsAlternating(raw) == kAlternating.
template <template <typename> typename Function, typename C, bool kAlternating = false>
int32_t Launch(const FbCall& raw, const ParamsOf<Function>& params) {
  const Call call = CallOf(raw);
  if (call.rows == 0 || call.cols == 0) return cudaSuccess;
  const int bytes = call.dtype == FB_F32 ? 4 : 2;
  const int lanes = (kAlternating ? 8 : 16) / bytes;
  const bool packs = InPacks<Function, kAlternating>(call, lanes, bytes);
  const int64_t row_runs = packs ? call.cols / lanes : call.cols;
  if constexpr (!kAlternating) {
    if (packs && call.rows == 1 && row_runs <= kFewElementsRuns) {
      return LaunchFew<Function>(raw, call, row_runs, params);
    }
  }
  const Policy policy = SelectPolicy<C>(row_runs);
  const Tiles tiles = TilesOf<C>(policy, call.rows, row_runs);
  const LaunchShape shape = {.blocks = std::min<int64_t>(tiles.count, INT32_MAX),
                             .threads = dim3(policy.threads_per_row, policy.rows_per_block),
                             .stream = static_cast<cudaStream_t>(raw.stream)};
  return LaunchKernel(SelectKernel<Function, C, kAlternating>(call.dtype, packs), shape, call,
                      params, tiles);
}

// Loads every kernel that Launch may pick on the current device. Returns a cudaError_t.
template <template <typename> typename Function, typename C, bool kAlternating = false>
int32_t LoadKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const bool packs : {false, true}) {
      const auto kernel = SelectKernel<Function, C, kAlternating>(dtype, packs);
      if (const cudaError_t error = LoadKernel(kernel); error != cudaSuccess) return error;
    }
    if constexpr (!kAlternating) {
      const cudaError_t error = LoadKernel(SelectFewKernel<Function>(dtype));
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::elementwise

#endif  // KERNELS_ELEMENTWISE_ELEMENTWISE_LAUNCH_CUH_
