#include "kernels/rms_norm/rms_norm_backward_launch.cuh"
#include "kernels/rms_norm/rms_norm_cuda.h"

namespace fuseboard::rms_norm {

uint64_t BackwardCudaWorkspace(const FbCall* call) {
  return BackwardWorkspaceOf(*call, BackwardOf(*call));
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  return LaunchBackward(*call, PolicyOfBackward(*call, BackwardOf(*call)), workspace);
}

int32_t LaunchBackward(const FbCall& call, const Policy& policy, void* workspace) {
  return LaunchBackwardAs</*kAdd=*/false>(call, BackwardOf(call), policy, workspace);
}

int32_t LoadBackwardKernels() { return LoadBackwardKernelsAs</*kAdd=*/false>(); }

}  // namespace fuseboard::rms_norm
