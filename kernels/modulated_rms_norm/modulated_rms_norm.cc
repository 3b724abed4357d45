// The table of modulated_rms_norm.so.

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/table.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_call.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/common/prepare.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_cuda.h"
#endif

namespace fuseboard::modulated_rms_norm {
namespace {

uint64_t BackwardCpuWorkspace(const FbCall* call) {
  return static_cast<uint64_t>(CpuWorkspaceOf(BackwardOf(*call)).size) * sizeof(float);
}

FbKernel MakeTable() {
  FbKernel table = NewTable("modulated_rms_norm");
  table.entries[FB_FORWARD][FB_CPU] = {RejectOn<RejectForward, FB_CPU>, NoWorkspace,
                                       FB_CPU_LAUNCH(ForwardCpu)};
  table.entries[FB_BACKWARD][FB_CPU] = {RejectOn<RejectBackward, FB_CPU>, BackwardCpuWorkspace,
                                        FB_CPU_LAUNCH(BackwardCpu)};
#if defined(FB_HAVE_CUDA)
  table.prepare = PrepareKernels<LoadForwardKernels, LoadBackwardKernels>;
  table.entries[FB_FORWARD][FB_CUDA] = {RejectOn<RejectForward, FB_CUDA>, NoWorkspace, ForwardCuda};
  table.entries[FB_BACKWARD][FB_CUDA] = {RejectOn<RejectBackward, FB_CUDA>, BackwardCudaWorkspace,
                                         BackwardCuda};
#endif
  return table;
}

}  // namespace
}  // namespace fuseboard::modulated_rms_norm

extern "C" __attribute__((visibility("default"))) const FbKernel*
fb_get_kernel() {  // NOLINT(readability-identifier-naming): C.
  static const FbKernel table = fuseboard::modulated_rms_norm::MakeTable();
  return &table;
}
