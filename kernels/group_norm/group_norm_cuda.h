// The CUDA half of group_norm's table. Host interface only.

#ifndef KERNELS_GROUP_NORM_GROUP_NORM_CUDA_H_
#define KERNELS_GROUP_NORM_GROUP_NORM_CUDA_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/group_norm/group_norm_policy.h"

namespace fuseboard::group_norm {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Forward: the statistics of the pieces of groups that no block holds. Backward: the channels'
// sums, per example and per block that shares a group.
uint64_t ForwardCudaWorkspace(const FbCall* call);
uint64_t BackwardCudaWorkspace(const FbCall* call);

// The same, cut in this way: for the program that times cuts. REQUIRES: a policy that holds the
// groups; the call was not rejected, and its tensors fit HeldPacks.
int32_t LaunchForward(const FbCall& call, const Policy& policy);
int32_t LaunchBackward(const FbCall& call, const Policy& policy, void* workspace);
uint64_t BackwardWorkspaceOf(const FbCall& call, const Policy& policy);

// Load all kernels of the phase on the current device. Return a cudaError_t.
int32_t LoadForwardKernels();
int32_t LoadBackwardKernels();

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_GROUP_NORM_CUDA_H_
