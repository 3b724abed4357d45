// The table of kl_div.so.

#include "kernels/common/row_loss_table.h"
#include "kernels/kl_div/kl_div_call.h"
#include "kernels/kl_div/kl_div_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/common/prepare.h"
#include "kernels/kl_div/kl_div_cuda.h"
#endif

namespace fuseboard::kl_div {
namespace {

int32_t Prepare(int32_t device_type, int32_t device_index) {
#if defined(FB_HAVE_CUDA)
  if (device_type == FB_CUDA) return PrepareCuda(device_index, {LoadKernels, LoadRescaleKernels});
#endif
  (void)device_type;
  (void)device_index;
  return 0;
}

FbKernel MakeTable() {
  FbKernel table = NewTable("kl_div", Prepare);
#if defined(FB_HAVE_X86_ISAS)
  row_loss::AddCpu<RejectForward, RejectBackward>(
      table, SelectIsa(baseline::kCpuEntries, avx2::kCpuEntries, avx512::kCpuEntries));
#else
  row_loss::AddCpu<RejectForward, RejectBackward>(table, baseline::kCpuEntries);
#endif
#if defined(FB_HAVE_CUDA)
  row_loss::AddCuda<RejectForward, RejectBackward>(table, {ForwardCuda, BackwardCuda});
#endif
  return table;
}

}  // namespace
}  // namespace fuseboard::kl_div

extern "C" __attribute__((visibility("default"))) const FbKernel*
fb_get_kernel() {  // NOLINT(readability-identifier-naming): C.
  static const FbKernel table = fuseboard::kl_div::MakeTable();
  return &table;
}
