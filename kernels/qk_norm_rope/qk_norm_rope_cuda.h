// The CUDA half of qk_norm_rope's table. Host interface only.

#ifndef KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CUDA_H_
#define KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CUDA_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::qk_norm_rope {

int32_t ForwardCuda(const FbCall* call, void* workspace);
// Room for the partial sums of the weights' gradients.
uint64_t BackwardCudaWorkspace(const FbCall* call);
int32_t BackwardCuda(const FbCall* call, void* workspace);

// Load all kernels of a phase on the current device. Each returns a cudaError_t.
int32_t LoadForwardKernels();
int32_t LoadBackwardKernels();

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CUDA_H_
