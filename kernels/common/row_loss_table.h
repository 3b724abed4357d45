// The table of a library of a row loss, from what the operation has of its own.

#ifndef KERNELS_COMMON_ROW_LOSS_TABLE_H_
#define KERNELS_COMMON_ROW_LOSS_TABLE_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/table.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/common/rescale.h"
#include "kernels/common/row_loss_cuda.h"
#endif

namespace fuseboard::row_loss {

// The CPU version, built once per instruction set.
struct CpuEntries {
  int32_t (*forward)(const FbCall* call, void* workspace);
  int32_t (*backward)(const FbCall* call, void* workspace);
  uint64_t (*forward_workspace_bytes)(const FbCall* call);
};

// The CUDA version.
struct CudaEntries {
  int32_t (*forward)(const FbCall* call, void* workspace);
  int32_t (*backward)(const FbCall* call, void* workspace);
};

using RejectFn = const char* (*)(const FbCall* call, int32_t device_type);

template <RejectFn kRejectForward, RejectFn kRejectBackward>
void AddCpu(FbKernel& table, const CpuEntries& entries) {
  table.entries[FB_FORWARD][FB_CPU] = {RejectOn<kRejectForward, FB_CPU>,
                                       entries.forward_workspace_bytes, entries.forward};
  table.entries[FB_BACKWARD][FB_CPU] = {RejectOn<kRejectBackward, FB_CPU>, NoWorkspace,
                                        entries.backward};
}

#if defined(FB_HAVE_CUDA)
template <RejectFn kRejectForward, RejectFn kRejectBackward>
void AddCuda(FbKernel& table, const CudaEntries& entries) {
  table.entries[FB_FORWARD][FB_CUDA] = {RejectOn<kRejectForward, FB_CUDA>, ForwardWorkspaceBytes,
                                        entries.forward};
  table.entries[FB_BACKWARD][FB_CUDA] = {RejectOn<kRejectBackward, FB_CUDA>, NoWorkspace,
                                         entries.backward};
  table.rescale[FB_CUDA] = {RejectRescaleCuda, NoWorkspace, RescaleCuda};
}
#endif

}  // namespace fuseboard::row_loss

#endif  // KERNELS_COMMON_ROW_LOSS_TABLE_H_
