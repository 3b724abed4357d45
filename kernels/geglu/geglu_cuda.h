// The CUDA half of geglu's table. Host interface only.

#ifndef KERNELS_GEGLU_GEGLU_CUDA_H_
#define KERNELS_GEGLU_GEGLU_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::geglu {

// Traffic: each input read once, each output written once. Determinism: elementwise.
int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Loads all kernels on the current device. Returns a cudaError_t.
int32_t LoadKernels();

}  // namespace fuseboard::geglu

#endif  // KERNELS_GEGLU_GEGLU_CUDA_H_
