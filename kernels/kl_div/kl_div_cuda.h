// The CUDA half of kl_div's table. Host interface only.

#ifndef KERNELS_KL_DIV_KL_DIV_CUDA_H_
#define KERNELS_KL_DIV_KL_DIV_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::kl_div {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Loads all kernels but those of rescale.h on the current device. Returns a cudaError_t.
int32_t LoadKernels();

}  // namespace fuseboard::kl_div

#endif  // KERNELS_KL_DIV_KL_DIV_CUDA_H_
