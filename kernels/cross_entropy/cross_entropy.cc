// The entry point of cross_entropy.so.

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/table.h"
#include "kernels/cross_entropy/cross_entropy_check.h"
#include "kernels/cross_entropy/cross_entropy_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/common/prepare.h"
#include "kernels/common/rescale.h"
#include "kernels/common/row_totals.h"
#include "kernels/cross_entropy/cross_entropy_cuda.h"
#endif

namespace fuseboard::cross_entropy {
namespace {

const CpuEntries& SelectedCpuEntries() {
#if defined(FB_HAVE_X86_ISAS)
  static const CpuEntries& selected =
      SelectIsa(baseline::kCpuEntries, avx2::kCpuEntries, avx512::kCpuEntries);
  return selected;
#else
  return baseline::kCpuEntries;
#endif
}

FbKernel MakeTable() {
  const CpuEntries& cpu = SelectedCpuEntries();
  FbKernel table = NewTable("cross_entropy");
  table.entries[FB_FORWARD][FB_CPU] = {RejectOn<ForwardRejectReason, FB_CPU>,
                                       cpu.forward_workspace_bytes, cpu.forward};
  table.entries[FB_BACKWARD][FB_CPU] = {RejectOn<BackwardRejectReason, FB_CPU>, NoWorkspace,
                                        cpu.backward};
#if defined(FB_HAVE_CUDA)
  table.prepare = PrepareKernels<LoadRowKernels, LoadEntropyKernels, LoadRingKernels,
                                 LoadRescaleKernels, LoadRowTotalsKernels>;
  table.entries[FB_FORWARD][FB_CUDA] = {RejectOn<ForwardRejectReason, FB_CUDA>, NoWorkspace,
                                        ForwardCuda};
  table.entries[FB_BACKWARD][FB_CUDA] = {RejectOn<BackwardRejectReason, FB_CUDA>,
                                         BackwardWorkspaceBytes, BackwardCuda};
  table.rescale[FB_CUDA] = {RejectRescaleCuda, RescaleWorkspaceBytes, RescaleCuda};
  table.inverse_divisor[FB_CUDA] = {RejectInverseDivisorCuda, NoWorkspace, InverseDivisorCuda};
  table.total[FB_CUDA] = {RejectTotalCuda, NoWorkspace, TotalCuda};
#endif
  return table;
}

}  // namespace
}  // namespace fuseboard::cross_entropy

extern "C" __attribute__((visibility("default"))) const FbKernel*
fb_get_kernel() {  // NOLINT(readability-identifier-naming): C.
  static const FbKernel table = fuseboard::cross_entropy::MakeTable();
  return &table;
}
