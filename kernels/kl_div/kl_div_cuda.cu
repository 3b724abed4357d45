#include "kernels/common/row_loss_launch.cuh"
#include "kernels/kl_div/kl_div.cuh"
#include "kernels/kl_div/kl_div_call.h"
#include "kernels/kl_div/kl_div_cuda.h"

namespace fuseboard::kl_div {
namespace {

int32_t Launch(const FbCall& raw, const row_loss::Call& call, void* workspace) {
  if (row_loss::IsEmpty(call)) return cudaSuccess;
  const FbKlDivParams& params = ParamsOf(raw);
  if (params.log_target != 0) {
    return row_loss::Launch(raw, call, OfLogProbabilities(), workspace);
  }
  return row_loss::Launch(raw, call, OfProbabilities(FloorOf(params)), workspace);
}

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* workspace) {
  return Launch(*call, row_loss::ForwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  return Launch(*call, row_loss::BackwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

int32_t LoadKernels() {
  const int32_t error = row_loss::LoadKernelsOf<OfLogProbabilities>();
  return error != cudaSuccess ? error : row_loss::LoadKernelsOf<OfProbabilities>();
}

}  // namespace fuseboard::kl_div
