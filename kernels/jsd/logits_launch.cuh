// Launching LogitsKernel. Included by one .cu of the library.

#ifndef KERNELS_JSD_LOGITS_LAUNCH_CUH_
#define KERNELS_JSD_LOGITS_LAUNCH_CUH_

#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/row_loss_cuda.h"
#include "kernels/jsd/logits_kernel.cuh"
#include "kernels/jsd/logits_policy.h"

namespace fuseboard::jsd {

template <typename Function>
using LogitsKernelFn = void (*)(row_loss::Call, Function, float);

template <typename Function, int kThreads>
LogitsKernelFn<Function> LogitsKernelOf(int32_t dtype, bool alike) {
  return DispatchFloat(dtype, [&](auto tag) -> LogitsKernelFn<Function> {
    using T = typename decltype(tag)::type;
    return alike ? LogitsKernel<Function, T, kPackLanes<T>, kThreads>
                 : LogitsKernel<Function, T, 1, kThreads>;
  });
}

// Enqueues a forward from logits that is not empty.
template <int kThreads, typename Function>
int32_t LaunchLogits(const FbCall& raw, const row_loss::Call& call, const Function& function,
                     float inverse_temperature, const LogitsPolicy& policy) {
  constexpr int64_t kMaxClusters = row_loss::kMaxBlocks / kMaxClusterBlocks;
  const LaunchShape shape = {.blocks = std::min(call.rows, kMaxClusters) * policy.cluster,
                             .threads = static_cast<unsigned>(policy.threads),
                             .cluster = policy.cluster,
                             .stream = static_cast<cudaStream_t>(raw.stream)};
  return LaunchKernel(LogitsKernelOf<Function, kThreads>(call.dtype, row_loss::InUnits(raw)), shape,
                      call, function, inverse_temperature);
}

template <typename Function>
int32_t LaunchLogits(const FbCall& raw, const row_loss::Call& call, const Function& function,
                     float inverse_temperature) {
  const int64_t bytes = call.dtype == FB_F32 ? 4 : 2;
  const int64_t lanes = row_loss::InUnits(raw) ? 16 / bytes : 1;
  return LaunchLogits<kLogitsThreads>(
      raw, call, function, inverse_temperature,
      SelectLogitsPolicy(raw.sm, call.cols / lanes, call.cols * bytes));
}

template <typename Function>
int32_t LoadLogitsKernelsOf() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const bool alike : {false, true}) {
      const cudaError_t error = LoadKernel(LogitsKernelOf<Function, kLogitsThreads>(dtype, alike));
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::jsd

#endif  // KERNELS_JSD_LOGITS_LAUNCH_CUH_
