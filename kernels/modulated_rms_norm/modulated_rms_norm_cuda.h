// The CUDA half of modulated_rms_norm's table. Host interface only.

#ifndef KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CUDA_H_
#define KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::modulated_rms_norm {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);
uint64_t BackwardCudaWorkspace(const FbCall* call);

// Load all kernels of the phase on the current device. Return a cudaError_t.
int32_t LoadForwardKernels();
int32_t LoadBackwardKernels();

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CUDA_H_
