// The CUDA half of rms_norm's table. Host interface only.

#ifndef KERNELS_RMS_NORM_RMS_NORM_CUDA_H_
#define KERNELS_RMS_NORM_RMS_NORM_CUDA_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/rms_norm/rms_norm_policy.h"

namespace fuseboard::rms_norm {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Room for the partial sums of dweight.
uint64_t BackwardCudaWorkspace(const FbCall* call);

// As above, cut as `policy` says: for choosing policies by measurement.
// REQUIRES: the policy covers the row and keeps the kernels' bounds (rms_norm_policy_test.cc);
// packs are not 0 only for rows in 16-byte runs; `workspace` has one row of f32 per group of
// blocks.
int32_t LaunchForward(const FbCall& call, const Policy& policy);
int32_t LaunchBackward(const FbCall& call, const Policy& policy, void* workspace);

// Load all kernels of the phase on the current device. Return a cudaError_t.
int32_t LoadForwardKernels();
int32_t LoadBackwardKernels();

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_RMS_NORM_CUDA_H_
