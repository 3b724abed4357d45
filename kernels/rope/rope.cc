// The table of rope.so.

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/table.h"
#include "kernels/rope/rope_call.h"
#include "kernels/rope/rope_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/common/prepare.h"
#include "kernels/rope/rope_cuda.h"
#endif

namespace fuseboard::rope {
namespace {

using Launch = int32_t (*)(const FbCall* call, void* workspace);

// The builds for this machine.
Launch ForwardCpuHere() {
#if defined(FB_HAVE_X86_ISAS)
  return SelectIsa<Launch>(baseline::ForwardCpu, avx2::ForwardCpu, avx512::ForwardCpu);
#else
  return baseline::ForwardCpu;
#endif
}

Launch BackwardCpuHere() {
#if defined(FB_HAVE_X86_ISAS)
  return SelectIsa<Launch>(baseline::BackwardCpu, avx2::BackwardCpu, avx512::BackwardCpu);
#else
  return baseline::BackwardCpu;
#endif
}

int32_t Prepare(int32_t device_type, int32_t device_index) {
#if defined(FB_HAVE_CUDA)
  if (device_type == FB_CUDA) {
    return PrepareCuda(device_index, {LoadKernels});
  }
#endif
  (void)device_type;
  (void)device_index;
  return 0;
}

FbKernel MakeTable() {
  FbKernel table = NewTable("rope", Prepare);
  table.entries[FB_FORWARD][FB_CPU] = {RejectOn<RejectForward, FB_CPU>, NoWorkspace,
                                       ForwardCpuHere()};
  table.entries[FB_BACKWARD][FB_CPU] = {RejectOn<RejectBackward, FB_CPU>, NoWorkspace,
                                        BackwardCpuHere()};
#if defined(FB_HAVE_CUDA)
  table.entries[FB_FORWARD][FB_CUDA] = {RejectOn<RejectForward, FB_CUDA>, NoWorkspace, ForwardCuda};
  table.entries[FB_BACKWARD][FB_CUDA] = {RejectOn<RejectBackward, FB_CUDA>, NoWorkspace,
                                         BackwardCuda};
#endif
  return table;
}

}  // namespace
}  // namespace fuseboard::rope

extern "C" __attribute__((visibility("default"))) const FbKernel*
fb_get_kernel() {  // NOLINT(readability-identifier-naming): C.
  static const FbKernel table = fuseboard::rope::MakeTable();
  return &table;
}
