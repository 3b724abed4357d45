// The CUDA half of layer_norm's table. Host interface only.

#ifndef KERNELS_LAYER_NORM_LAYER_NORM_CUDA_H_
#define KERNELS_LAYER_NORM_LAYER_NORM_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::layer_norm {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Room for the partial sums of dweight and dbias.
uint64_t BackwardCudaWorkspace(const FbCall* call);

// Load all kernels of the phase on the current device. Return a cudaError_t.
int32_t LoadForwardKernels();
int32_t LoadBackwardKernels();

}  // namespace fuseboard::layer_norm

#endif  // KERNELS_LAYER_NORM_LAYER_NORM_CUDA_H_
