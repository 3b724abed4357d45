// The CUDA half of softmax's table, and the launches under a given policy, for the program that
// times policies. Host interface only.

#ifndef KERNELS_SOFTMAX_SOFTMAX_CUDA_H_
#define KERNELS_SOFTMAX_SOFTMAX_CUDA_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/softmax/softmax_policy.h"

namespace fuseboard::softmax {

int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Enqueue the call cut by `policy`. Return a cudaError_t. REQUIRES: the policy holds the row; all
// rows of all tensors are aligned alike to 16 bytes unless packs == 0.
int32_t LaunchForward(const FbCall& call, const Policy& policy);
int32_t LaunchBackward(const FbCall& call, const Policy& policy);

// Loads all kernels on the current device. Returns a cudaError_t.
int32_t LoadKernels();

}  // namespace fuseboard::softmax

#endif  // KERNELS_SOFTMAX_SOFTMAX_CUDA_H_
