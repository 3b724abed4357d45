// A forward from logits on CUDA (logits_kernel.cuh), which is compiled apart. Host interface only.

#ifndef KERNELS_JSD_LOGITS_CUDA_H_
#define KERNELS_JSD_LOGITS_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::jsd {

// Returns a cudaError_t. REQUIRES: the call is a forward from logits that was not rejected.
int32_t LogitsCuda(const FbCall& call);

// Loads its kernels on the current device. Returns a cudaError_t.
int32_t LoadLogitsKernels();

}  // namespace fuseboard::jsd

#endif  // KERNELS_JSD_LOGITS_CUDA_H_
