// The CUDA half of relu_squared's table. Host interface only.

#ifndef KERNELS_RELU_SQUARED_RELU_SQUARED_CUDA_H_
#define KERNELS_RELU_SQUARED_RELU_SQUARED_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::relu_squared {

// Traffic: each input read once, each output written once. Determinism: elementwise.
int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Loads all kernels on the current device. Returns a cudaError_t.
int32_t LoadKernels();

}  // namespace fuseboard::relu_squared

#endif  // KERNELS_RELU_SQUARED_RELU_SQUARED_CUDA_H_
