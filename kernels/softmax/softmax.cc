// The table of softmax.so.

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/table.h"
#include "kernels/softmax/softmax_call.h"
#include "kernels/softmax/softmax_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/common/prepare.h"
#include "kernels/softmax/softmax_cuda.h"
#endif

namespace fuseboard::softmax {
namespace {

FbKernel MakeTable() {
  FbKernel table = NewTable("softmax");
  table.entries[FB_FORWARD][FB_CPU] = {RejectOn<RejectForward, FB_CPU>, NoWorkspace,
                                       FB_CPU_LAUNCH(ForwardCpu)};
  table.entries[FB_BACKWARD][FB_CPU] = {RejectOn<RejectBackward, FB_CPU>, NoWorkspace,
                                        FB_CPU_LAUNCH(BackwardCpu)};
#if defined(FB_HAVE_CUDA)
  table.prepare = PrepareKernels<LoadKernels>;
  table.entries[FB_FORWARD][FB_CUDA] = {RejectOn<RejectForward, FB_CUDA>, NoWorkspace, ForwardCuda};
  table.entries[FB_BACKWARD][FB_CUDA] = {RejectOn<RejectBackward, FB_CUDA>, NoWorkspace,
                                         BackwardCuda};
#endif
  return table;
}

}  // namespace
}  // namespace fuseboard::softmax

extern "C" __attribute__((visibility("default"))) const FbKernel*
fb_get_kernel() {  // NOLINT(readability-identifier-naming): C.
  static const FbKernel table = fuseboard::softmax::MakeTable();
  return &table;
}
