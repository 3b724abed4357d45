// The table of a library of a row loss, from what the operation has of its own.

#ifndef KERNELS_COMMON_ROW_LOSS_TABLE_H_
#define KERNELS_COMMON_ROW_LOSS_TABLE_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/reject.h"
#include "kernels/common/row_loss_policy.h"
#include "kernels/common/table.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/common/prepare.h"
#include "kernels/common/rescale.h"
#include "kernels/common/row_loss_cuda.h"
#include "kernels/common/row_totals.h"
#endif

namespace fuseboard::row_loss {

// FbEntry::workspace_bytes of a forward on the CPU: a double for each tile if a row has several.
inline uint64_t CpuForwardWorkspaceBytes(const FbCall* call) {
  const FbTensor& input = call->inputs[0];
  const int64_t tiles = CpuTilesPerRow(input.shape[1]);
  if (IsAbsent(call->outputs[0]) || tiles == 1) return 0;
  return static_cast<uint64_t>(input.shape[0] * tiles) * sizeof(double);
}

using RejectFn = const char* (*)(const FbCall* call, int32_t device_type);

template <RejectFn kRejectForward, RejectFn kRejectBackward>
void AddCpu(FbKernel& table, fuseboard::Launch forward, fuseboard::Launch backward) {
  table.entries[FB_FORWARD][FB_CPU] = {RejectOn<kRejectForward, FB_CPU>, CpuForwardWorkspaceBytes,
                                       forward};
  table.entries[FB_BACKWARD][FB_CPU] = {RejectOn<kRejectBackward, FB_CPU>, NoWorkspace, backward};
}

#if defined(FB_HAVE_CUDA)
// `kLoad` loads the kernels of both launches on the current device.
template <RejectFn kRejectForward, RejectFn kRejectBackward, int32_t (*kLoad)()>
void AddCuda(FbKernel& table, fuseboard::Launch forward, fuseboard::Launch backward) {
  table.prepare = PrepareKernels<kLoad, LoadRescaleKernels, LoadRowTotalsKernels>;
  table.entries[FB_FORWARD][FB_CUDA] = {RejectOn<kRejectForward, FB_CUDA>, ForwardWorkspaceBytes,
                                        forward};
  table.entries[FB_BACKWARD][FB_CUDA] = {RejectOn<kRejectBackward, FB_CUDA>, NoWorkspace, backward};
  table.rescale[FB_CUDA] = {RejectRescaleCuda, RescaleWorkspaceBytes, RescaleCuda};
  table.inverse_divisor[FB_CUDA] = {RejectInverseDivisorCuda, NoWorkspace, InverseDivisorCuda};
  table.total[FB_CUDA] = {RejectTotalCuda, NoWorkspace, TotalCuda};
}
#endif

}  // namespace fuseboard::row_loss

#endif  // KERNELS_COMMON_ROW_LOSS_TABLE_H_
