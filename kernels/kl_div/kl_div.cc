// The table of kl_div.so.

#include "kernels/common/row_loss_table.h"
#include "kernels/kl_div/kl_div_call.h"
#include "kernels/kl_div/kl_div_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/kl_div/kl_div_cuda.h"
#endif

namespace fuseboard::kl_div {
namespace {

FbKernel MakeTable() {
  FbKernel table = NewTable("kl_div");
  row_loss::AddCpu<RejectForward, RejectBackward>(table, FB_CPU_LAUNCH(ForwardCpu),
                                                  FB_CPU_LAUNCH(BackwardCpu));
#if defined(FB_HAVE_CUDA)
  row_loss::AddCuda<RejectForward, RejectBackward, LoadKernels>(table, ForwardCuda, BackwardCuda);
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
