// The CUDA half of rms_norm's table. Host interface only.

#ifndef KERNELS_RMS_NORM_RMS_NORM_CUDA_H_
#define KERNELS_RMS_NORM_RMS_NORM_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::rms_norm {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Room for the partial sums of dweight.
uint64_t BackwardCudaWorkspace(const FbCall* call);

// Load all kernels of the phase on the current device. Return a cudaError_t.
int32_t LoadForwardKernels();
int32_t LoadBackwardKernels();

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_RMS_NORM_CUDA_H_
