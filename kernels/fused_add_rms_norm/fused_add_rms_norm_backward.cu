#include "kernels/fused_add_rms_norm/fused_add_rms_norm_call.h"
#include "kernels/fused_add_rms_norm/fused_add_rms_norm_cuda.h"
#include "kernels/rms_norm/rms_norm_backward_launch.cuh"

namespace fuseboard::fused_add_rms_norm {

uint64_t BackwardCudaWorkspace(const FbCall* call) {
  return rms_norm::BackwardWorkspaceOf(*call, BackwardOf(*call));
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  const rms_norm::BackwardCall b = BackwardOf(*call);
  return rms_norm::LaunchBackwardAs</*kAdd=*/true>(*call, b, rms_norm::PolicyOfBackward(*call, b),
                                                   workspace);
}

int32_t LoadBackwardKernels() { return rms_norm::LoadBackwardKernelsAs</*kAdd=*/true>(); }

}  // namespace fuseboard::fused_add_rms_norm
