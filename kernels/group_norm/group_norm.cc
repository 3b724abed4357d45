// The table of group_norm.so.

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/table.h"
#include "kernels/group_norm/group_norm_call.h"
#include "kernels/group_norm/group_norm_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/common/prepare.h"
#include "kernels/group_norm/group_norm_cuda.h"
#endif

namespace fuseboard::group_norm {
namespace {

uint64_t BackwardCpuWorkspace(const FbCall* call) {
  return BackwardCpuWorkspaceOf(BackwardOf(*call));
}

FbKernel MakeTable() {
  FbKernel table = NewTable("group_norm");
  table.entries[FB_FORWARD][FB_CPU] = {RejectOn<RejectForward, FB_CPU>, NoWorkspace,
                                       FB_CPU_LAUNCH(ForwardCpu)};
  table.entries[FB_BACKWARD][FB_CPU] = {RejectOn<RejectBackward, FB_CPU>, BackwardCpuWorkspace,
                                        FB_CPU_LAUNCH(BackwardCpu)};
#if defined(FB_HAVE_CUDA)
  table.prepare = PrepareKernels<LoadForwardKernels, LoadBackwardKernels>;
  table.entries[FB_FORWARD][FB_CUDA] = {RejectOn<RejectForward, FB_CUDA>, ForwardCudaWorkspace,
                                        ForwardCuda};
  table.entries[FB_BACKWARD][FB_CUDA] = {RejectOn<RejectBackward, FB_CUDA>, BackwardCudaWorkspace,
                                         BackwardCuda};
#endif
  return table;
}

}  // namespace
}  // namespace fuseboard::group_norm

extern "C" __attribute__((visibility("default"))) const FbKernel*
fb_get_kernel() {  // NOLINT(readability-identifier-naming): C.
  static const FbKernel table = fuseboard::group_norm::MakeTable();
  return &table;
}
