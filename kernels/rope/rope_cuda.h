// The CUDA half of rope's table. Host interface only.

#ifndef KERNELS_ROPE_ROPE_CUDA_H_
#define KERNELS_ROPE_ROPE_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::rope {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Loads all kernels on the current device. Returns a cudaError_t.
int32_t LoadKernels();

}  // namespace fuseboard::rope

#endif  // KERNELS_ROPE_ROPE_CUDA_H_
