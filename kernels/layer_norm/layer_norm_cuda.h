// The CUDA half of layer_norm's table. Host interface only.

#ifndef KERNELS_LAYER_NORM_LAYER_NORM_CUDA_H_
#define KERNELS_LAYER_NORM_LAYER_NORM_CUDA_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/rms_norm/rms_norm_policy.h"

namespace fuseboard::layer_norm {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Room for the partial sums of dweight and dbias.
uint64_t BackwardCudaWorkspace(const FbCall* call);

// As above, cut as `policy` says: for choosing policies by measurement; see rms_norm_cuda.h.
int32_t LaunchForward(const FbCall& call, const rms_norm::Policy& policy);
int32_t LaunchBackward(const FbCall& call, const rms_norm::Policy& policy, void* workspace);

// Load all kernels of the phase on the current device. Return a cudaError_t.
int32_t LoadForwardKernels();
int32_t LoadBackwardKernels();

}  // namespace fuseboard::layer_norm

#endif  // KERNELS_LAYER_NORM_LAYER_NORM_CUDA_H_
