// The CUDA half of jsd's table. Host interface only.

#ifndef KERNELS_JSD_JSD_CUDA_H_
#define KERNELS_JSD_JSD_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::jsd {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Loads all kernels but those of rescale.h on the current device. Returns a cudaError_t.
int32_t LoadKernels();

}  // namespace fuseboard::jsd

#endif  // KERNELS_JSD_JSD_CUDA_H_
