// The entry point of cross_entropy.so.

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/cpu_isa.h"
#include "kernels/cross_entropy/cross_entropy_check.h"
#include "kernels/cross_entropy/cross_entropy_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/common/prepare.h"
#include "kernels/common/rescale.h"
#include "kernels/cross_entropy/cross_entropy_cuda.h"
#endif

namespace fuseboard::cross_entropy {
namespace {

uint64_t NoWorkspace(const FbCall* /*call*/) { return 0; }

int32_t Prepare(int32_t device_type, int32_t device_index) {
#if defined(FB_HAVE_CUDA)
  if (device_type == FB_CUDA) return PrepareCuda(device_index, {LoadRowKernels, LoadRingKernels, LoadRescaleKernels});
#endif
  (void)device_type, (void)device_index;
  return 0;
}

const CpuEntries& SelectedCpuEntries() {
#if defined(FB_HAVE_X86_ISAS)
  static const CpuEntries& selected =
      SelectIsa(baseline::kCpuEntries, avx2::kCpuEntries, avx512::kCpuEntries);
  return selected;
#else
  return baseline::kCpuEntries;
#endif
}

FbKernel MakeKernel() {
  const CpuEntries& cpu = SelectedCpuEntries();
  FbKernel kernel = {};
  kernel.struct_size = sizeof(FbKernel);
  kernel.abi_version = FB_ABI_VERSION;
  kernel.name = "cross_entropy";
  kernel.version = FB_VERSION;
  kernel.prepare = Prepare;
  kernel.entries[FB_FORWARD][FB_CPU] = {
      [](const FbCall* call) { return ForwardRejectReason(call, FB_CPU); },
      cpu.forward_workspace_bytes, cpu.forward};
  kernel.entries[FB_BACKWARD][FB_CPU] = {
      [](const FbCall* call) { return BackwardRejectReason(call, FB_CPU); }, NoWorkspace,
      cpu.backward};
#if defined(FB_HAVE_CUDA)
  kernel.entries[FB_FORWARD][FB_CUDA] = {
      [](const FbCall* call) { return ForwardRejectReason(call, FB_CUDA); }, NoWorkspace,
      ForwardCuda};
  kernel.entries[FB_BACKWARD][FB_CUDA] = {
      [](const FbCall* call) { return BackwardRejectReason(call, FB_CUDA); },
      BackwardWorkspaceBytes, BackwardCuda};
  kernel.rescale[FB_CUDA] = {RejectRescaleCuda, NoWorkspace, RescaleCuda};
#endif
  return kernel;
}

}  // namespace
}  // namespace fuseboard::cross_entropy

extern "C" __attribute__((visibility("default"))) const FbKernel*
fb_get_kernel() {  // NOLINT(readability-identifier-naming): C.
  static const FbKernel kernel = fuseboard::cross_entropy::MakeKernel();
  return &kernel;
}
