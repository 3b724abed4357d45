#include "kernels/common/row_loss_launch.cuh"
#include "kernels/jsd/jsd.cuh"
#include "kernels/jsd/jsd_call.h"
#include "kernels/jsd/jsd_cuda.h"
#include "kernels/jsd/logits_cuda.h"

namespace fuseboard::jsd {
namespace {

int32_t Launch(const FbCall& raw, const row_loss::Call& call, void* workspace) {
  if (row_loss::IsEmpty(call)) return cudaSuccess;
  const double beta = ParamsOf(raw).beta;
  if (beta == 0.0) return row_loss::Launch(raw, call, TargetFromInput(), workspace);
  if (beta == 1.0) return row_loss::Launch(raw, call, InputFromTarget(), workspace);
  return row_loss::Launch(raw, call, Mixture(WeightsOf(beta)), workspace);
}

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* workspace) {
  if (IsFromLogits(*call)) return LogitsCuda(*call);
  return Launch(*call, row_loss::ForwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  return Launch(*call, row_loss::BackwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

int32_t LoadKernels() {
  for (const auto load :
       {row_loss::LoadKernelsOf<TargetFromInput>, row_loss::LoadKernelsOf<InputFromTarget>,
        row_loss::LoadKernelsOf<Mixture>}) {
    if (const int32_t error = load()) return error;
  }
  return cudaSuccess;
}

}  // namespace fuseboard::jsd
