// The table of rms_norm.so.

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/cpu_isa.h"
#include "kernels/rms_norm/rms_norm_call.h"
#include "kernels/rms_norm/rms_norm_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/common/prepare.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#endif

namespace fuseboard::rms_norm {
namespace {

uint64_t NoWorkspace(const FbCall* /*call*/) { return 0; }

uint64_t BackwardCpuWorkspace(const FbCall* call) {
  const BackwardCall b = BackwardOf(*call);
  if (IsAbsent(b.dweight)) return 0;
  return static_cast<uint64_t>(RowBlocksOf(b.norm.rows).count * b.norm.hidden) * sizeof(float);
}

template <int32_t kDevice>
const char* RejectForwardOn(const FbCall* call) {
  return RejectForward(call, kDevice);
}

template <int32_t kDevice>
const char* RejectBackwardOn(const FbCall* call) {
  return RejectBackward(call, kDevice);
}

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
    return PrepareCuda(device_index, {LoadForwardKernels, LoadBackwardKernels});
  }
#endif
  (void)device_type;
  (void)device_index;
  return 0;
}

const FbKernel* Table() {
  static const FbKernel table = [] {
    FbKernel kernel = {};
    kernel.struct_size = sizeof(FbKernel);
    kernel.abi_version = FB_ABI_VERSION;
    kernel.name = "rms_norm";
    kernel.version = "0.1.0";
    kernel.prepare = Prepare;
    kernel.entries[FB_FORWARD][FB_CPU] = {RejectForwardOn<FB_CPU>, NoWorkspace, ForwardCpuHere()};
    kernel.entries[FB_BACKWARD][FB_CPU] = {RejectBackwardOn<FB_CPU>, BackwardCpuWorkspace,
                                           BackwardCpuHere()};
#if defined(FB_HAVE_CUDA)
    kernel.entries[FB_FORWARD][FB_CUDA] = {RejectForwardOn<FB_CUDA>, NoWorkspace, ForwardCuda};
    kernel.entries[FB_BACKWARD][FB_CUDA] = {RejectBackwardOn<FB_CUDA>, BackwardCudaWorkspace,
                                            BackwardCuda};
#endif
    return kernel;
  }();
  return &table;
}

}  // namespace
}  // namespace fuseboard::rms_norm

extern "C" __attribute__((visibility("default"))) const FbKernel*
fb_get_kernel() {  // NOLINT(readability-identifier-naming): C.
  return fuseboard::rms_norm::Table();
}
