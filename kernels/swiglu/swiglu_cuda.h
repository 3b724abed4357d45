// The CUDA half of swiglu's table. Host interface only.

#ifndef KERNELS_SWIGLU_SWIGLU_CUDA_H_
#define KERNELS_SWIGLU_SWIGLU_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::swiglu {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Loads all kernels on the current device. Returns a cudaError_t.
int32_t LoadKernels();

}  // namespace fuseboard::swiglu

#endif  // KERNELS_SWIGLU_SWIGLU_CUDA_H_
