// Host side of elementwise.cuh: launches a function's kernel for a call, and loads all its kernels.

#ifndef KERNELS_ELEMENTWISE_ELEMENTWISE_LAUNCH_CUH_
#define KERNELS_ELEMENTWISE_ELEMENTWISE_LAUNCH_CUH_

#include <algorithm>
#include <iterator>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/elementwise/elementwise.cuh"

namespace fuseboard::elementwise {

template <template <typename> typename Function>
using ParamsOf = typename Function<float>::Params;

template <template <typename> typename Function>
using Kernel = void (*)(Call, ParamsOf<Function>, Tiles);

template <template <typename> typename Function, typename C>
Kernel<Function> SelectKernel(int32_t dtype, bool packs) {
  return DispatchFloat(dtype, [&](auto tag) -> Kernel<Function> {
    using T = typename decltype(tag)::type;
    if (packs) return ElementwiseKernel<Function, T, kPackLanes<T>, C>;
    return ElementwiseKernel<Function, T, 1, C>;
  });
}

// Whether all rows can be read and written in runs of 16 bytes.
inline bool InPacks(const Call& call, int bytes) {
  const auto aligned = [&](const Matrix& matrix) {
    return reinterpret_cast<uintptr_t>(matrix.base) % 16 == 0 &&
           (call.rows <= 1 || matrix.stride * bytes % 16 == 0);
  };
  return call.cols * bytes % 16 == 0 &&
         std::all_of(std::begin(call.in), std::end(call.in), aligned) &&
         std::all_of(std::begin(call.out), std::end(call.out), aligned);
}

// FbEntry::launch on CUDA. Returns a cudaError_t.
template <template <typename> typename Function, typename C>
int32_t Launch(const FbCall& raw, const ParamsOf<Function>& params) {
  const Call call = CallOf(raw);
  if (call.rows == 0 || call.cols == 0) return cudaSuccess;
  const int bytes = call.dtype == FB_F32 ? 4 : 2;
  const bool packs = InPacks(call, bytes);
  const int64_t row_runs = packs ? call.cols * bytes / 16 : call.cols;
  const Policy policy = SelectPolicy<C>(row_runs);
  const Tiles tiles = TilesOf<C>(policy, call.rows, row_runs);
  const LaunchShape shape = {.blocks = std::min<int64_t>(tiles.count, INT32_MAX),
                             .threads = dim3(policy.threads_per_row, policy.rows_per_block),
                             .stream = static_cast<cudaStream_t>(raw.stream)};
  return LaunchKernel(SelectKernel<Function, C>(call.dtype, packs), shape, call, params, tiles);
}

// Loads every kernel that Launch may pick on the current device. Returns a cudaError_t.
template <template <typename> typename Function, typename C>
int32_t LoadKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const bool packs : {false, true}) {
      const cudaError_t error = LoadKernel(SelectKernel<Function, C>(dtype, packs));
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::elementwise

#endif  // KERNELS_ELEMENTWISE_ELEMENTWISE_LAUNCH_CUH_
