// The table of jsd.so.

#include "kernels/common/row_loss_table.h"
#include "kernels/jsd/jsd_call.h"
#include "kernels/jsd/jsd_cpu.h"
#if defined(FB_HAVE_CUDA)
#include "kernels/jsd/jsd_cuda.h"
#include "kernels/jsd/logits_cuda.h"
#endif

namespace fuseboard::jsd {
namespace {

FbKernel MakeTable() {
  FbKernel table = NewTable("jsd");
  row_loss::AddCpu<RejectForward, RejectBackward>(table, FB_CPU_LAUNCH(ForwardCpu),
                                                  FB_CPU_LAUNCH(BackwardCpu));
  table.entries[FB_FORWARD][FB_CPU].workspace_bytes =
      ForwardWorkspaceBytes<row_loss::CpuForwardWorkspaceBytes>;
#if defined(FB_HAVE_CUDA)
  row_loss::AddCuda<RejectForward, RejectBackward, LoadKernels>(table, ForwardCuda, BackwardCuda);
  table.entries[FB_FORWARD][FB_CUDA].workspace_bytes =
      ForwardWorkspaceBytes<row_loss::ForwardWorkspaceBytes>;
  table.prepare = PrepareKernels<LoadKernels, LoadLogitsKernels, LoadRescaleKernels>;
#endif
  return table;
}

}  // namespace
}  // namespace fuseboard::jsd

extern "C" __attribute__((visibility("default"))) const FbKernel*
fb_get_kernel() {  // NOLINT(readability-identifier-naming): C.
  static const FbKernel table = fuseboard::jsd::MakeTable();
  return &table;
}
