#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/swiglu/swiglu.cuh"
#include "kernels/swiglu/swiglu_cuda.h"

namespace fuseboard::swiglu {
namespace {

using Kernel = void (*)(Call, Tiles);

template <template <typename> typename Function, typename C>
Kernel SelectKernel(int32_t dtype, bool packs) {
  return DispatchFloat(dtype, [&](auto tag) -> Kernel {
    using T = typename decltype(tag)::type;
    if (packs) return SwigluKernel<Function, T, kPackLanes<T>, C>;
    return SwigluKernel<Function, T, 1, C>;
  });
}

bool InPacks(const Call& call, int bytes) {
  const auto aligned = [&](const Matrix& matrix) {
    return reinterpret_cast<uintptr_t>(matrix.base) % 16 == 0 &&
           (call.rows <= 1 || matrix.stride * bytes % 16 == 0);
  };
  return call.cols * bytes % 16 == 0 && std::all_of(call.in, call.in + 3, aligned) &&
         std::all_of(call.out, call.out + 2, aligned);
}

template <template <typename> typename Function, typename C>
int32_t Launch(const FbCall& raw) {
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
  return LaunchKernel(SelectKernel<Function, C>(call.dtype, packs), shape, call, tiles);
}

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  return Launch<Forward, ForwardCut>(*call);
}

int32_t BackwardCuda(const FbCall* call, void* /*workspace*/) {
  if (IsAbsent(call->outputs[0]) && IsAbsent(call->outputs[1])) return cudaSuccess;
  return Launch<Backward, BackwardCut>(*call);
}

int32_t LoadKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const bool packs : {false, true}) {
      for (const Kernel kernel : {SelectKernel<Forward, ForwardCut>(dtype, packs),
                                  SelectKernel<Backward, BackwardCut>(dtype, packs)}) {
        if (const cudaError_t error = LoadKernel(kernel); error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::swiglu
