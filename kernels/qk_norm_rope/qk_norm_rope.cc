// The table of qk_norm_rope.so.

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/table.h"
#include "kernels/qk_norm_rope/qk_norm_rope_call.h"
#include "kernels/qk_norm_rope/qk_norm_rope_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/common/prepare.h"
#include "kernels/qk_norm_rope/qk_norm_rope_cuda.h"
#endif

namespace fuseboard::qk_norm_rope {
namespace {

FbKernel MakeTable() {
  FbKernel table = NewTable("qk_norm_rope");
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
}  // namespace fuseboard::qk_norm_rope

extern "C" __attribute__((visibility("default"))) const FbKernel*
fb_get_kernel() {  // NOLINT(readability-identifier-naming): C.
  static const FbKernel table = fuseboard::qk_norm_rope::MakeTable();
  return &table;
}
