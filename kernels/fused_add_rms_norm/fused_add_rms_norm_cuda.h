// The CUDA half of fused_add_rms_norm's table. Host interface only.

#ifndef KERNELS_FUSED_ADD_RMS_NORM_FUSED_ADD_RMS_NORM_CUDA_H_
#define KERNELS_FUSED_ADD_RMS_NORM_FUSED_ADD_RMS_NORM_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::fused_add_rms_norm {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);
uint64_t BackwardCudaWorkspace(const FbCall* call);

// Load all kernels of the phase on the current device. Return a cudaError_t.
int32_t LoadForwardKernels();
int32_t LoadBackwardKernels();

}  // namespace fuseboard::fused_add_rms_norm

#endif  // KERNELS_FUSED_ADD_RMS_NORM_FUSED_ADD_RMS_NORM_CUDA_H_
