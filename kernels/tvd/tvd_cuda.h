// The CUDA half of tvd's table. Host interface only.

#ifndef KERNELS_TVD_TVD_CUDA_H_
#define KERNELS_TVD_TVD_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::tvd {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Loads all kernels but those of rescale.h on the current device. Returns a cudaError_t.
int32_t LoadKernels();

}  // namespace fuseboard::tvd

#endif  // KERNELS_TVD_TVD_CUDA_H_
