// The table of tvd.so.

#include "kernels/common/row_loss_table.h"
#include "kernels/tvd/tvd_call.h"
#include "kernels/tvd/tvd_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/tvd/tvd_cuda.h"
#endif

namespace fuseboard::tvd {
namespace {

FbKernel MakeTable() {
  FbKernel table = NewTable("tvd");
  row_loss::AddCpu<RejectForward, RejectBackward>(table, FB_CPU_LAUNCH(ForwardCpu),
                                                  FB_CPU_LAUNCH(BackwardCpu));
#if defined(FB_HAVE_CUDA)
  row_loss::AddCuda<RejectForward, RejectBackward, LoadKernels>(table, ForwardCuda, BackwardCuda);
#endif
  return table;
}

}  // namespace
}  // namespace fuseboard::tvd

extern "C" __attribute__((visibility("default"))) const FbKernel*
fb_get_kernel() {  // NOLINT(readability-identifier-naming): C.
  static const FbKernel table = fuseboard::tvd::MakeTable();
  return &table;
}
