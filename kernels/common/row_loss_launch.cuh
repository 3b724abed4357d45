// Launching the kernels of row_loss.cuh for an operation's function. Included by one .cu of each
// operation.

#ifndef KERNELS_COMMON_ROW_LOSS_LAUNCH_CUH_
#define KERNELS_COMMON_ROW_LOSS_LAUNCH_CUH_

#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reject.h"
#include "kernels/common/row_alignment.h"
#include "kernels/common/row_loss.cuh"
#include "kernels/common/row_loss_cuda.h"

namespace fuseboard::row_loss {

template <typename Function>
using Kernel = void (*)(Call, Function, int64_t, int, int, float*);

template <typename Function, typename C, typename T, int kLanes>
Kernel<Function> KernelOf(Mode mode) {
  switch (mode) {
    case Mode::kLoss:
      return RowLossKernel<Function, T, kLanes, Mode::kLoss, C>;
    case Mode::kGradient:
      return RowLossKernel<Function, T, kLanes, Mode::kGradient, C>;
    case Mode::kElements:
      return RowLossKernel<Function, T, kLanes, Mode::kElements, C>;
    case Mode::kBackward:
      break;
  }
  return RowLossKernel<Function, T, kLanes, Mode::kBackward, C>;
}

template <typename Function, typename C>
Kernel<Function> KernelOf(Mode mode, int32_t dtype, bool alike) {
  return DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return alike ? KernelOf<Function, C, T, kPackLanes<T>>(mode)
                 : KernelOf<Function, C, T, 1>(mode);
  });
}

// Enqueues a call that is not empty, cut by `policy`, with a kernel for its mode and dtype.
// `workspace` is of ForwardWorkspaceBytes for that policy.
template <typename Function>
int32_t LaunchCut(Kernel<Function> kernel, const Policy& policy, const FbCall& raw,
                  const Call& call, const Function& function, void* workspace) {
  const bool in_tiles = policy.tiles_per_row > 1 && call.loss != nullptr;
  float* sums = in_tiles ? static_cast<float*>(workspace) : call.loss;
  const auto stream = static_cast<cudaStream_t>(raw.stream);
  const int64_t tiles = TilesOf(policy, call.rows);
  const LaunchShape shape = {.blocks = std::min(tiles, kMaxBlocks),
                             .threads = dim3(policy.threads_per_row, policy.rows_per_block),
                             .stream = stream};
  const cudaError_t error = LaunchKernel(kernel, shape, call, function, tiles, policy.tiles_per_row,
                                         policy.tile_units, sums);
  if (error != cudaSuccess || !in_tiles) return error;
  constexpr int kThreads = 256;
  const LaunchShape sum_shape = {
      .blocks = std::min<int64_t>((call.rows + 7) / 8, int64_t{raw.sm_count} * 8),
      .threads = kThreads,
      .dependent = raw.sm >= 90,
      .stream = stream};
  return LaunchKernel(SumTilesKernel, sum_shape, static_cast<const float*>(sums), call.rows,
                      policy.tiles_per_row, call.loss);
}

// Enqueues a call that is not empty. `workspace` is of ForwardWorkspaceBytes.
template <typename Function>
int32_t Launch(const FbCall& raw, const Call& call, const Function& function, void* workspace) {
  const auto kernel = KernelOf<Function, DefaultCut>(ModeOf(call), call.dtype, InUnits(raw));
  return LaunchCut(kernel, PolicyFor<DefaultCut>(raw, call.cols), raw, call, function, workspace);
}

template <typename Function>
int32_t LoadKernelsOf() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const Mode mode : {Mode::kLoss, Mode::kGradient, Mode::kElements, Mode::kBackward}) {
      for (const bool alike : {false, true}) {
        const cudaError_t error = LoadKernel(KernelOf<Function, DefaultCut>(mode, dtype, alike));
        if (error != cudaSuccess) return error;
      }
    }
  }
  return LoadKernel(SumTilesKernel);
}

}  // namespace fuseboard::row_loss

#endif  // KERNELS_COMMON_ROW_LOSS_LAUNCH_CUH_
