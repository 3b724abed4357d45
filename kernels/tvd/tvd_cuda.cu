#include "kernels/common/row_loss_launch.cuh"
#include "kernels/tvd/tvd.cuh"
#include "kernels/tvd/tvd_call.h"
#include "kernels/tvd/tvd_cuda.h"

namespace fuseboard::tvd {
namespace {

int32_t Launch(const FbCall& raw, const row_loss::Call& call, void* workspace) {
  if (row_loss::IsEmpty(call)) return cudaSuccess;
  return row_loss::Launch(raw, call, Distance(), workspace);
}

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* workspace) {
  return Launch(*call, row_loss::ForwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  return Launch(*call, row_loss::BackwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

int32_t LoadKernels() { return row_loss::LoadKernelsOf<Distance>(); }

}  // namespace fuseboard::tvd
