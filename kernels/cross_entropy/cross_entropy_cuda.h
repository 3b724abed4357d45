// The CUDA version of cross_entropy as the library's table and the tuning program see it. No CUDA
// header, so that host code stays host code.

#ifndef KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CUDA_H_
#define KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CUDA_H_

#include <cstdint>

#include "kernels/abi/kernel_abi.h"
#include "kernels/cross_entropy/cross_entropy_policy.h"
#include "kernels/cross_entropy/cross_entropy_problem.h"

namespace fuseboard::cross_entropy {

// What a launch needs to know of the device, and where to enqueue. `stream` is a cudaStream_t.
struct CudaTarget {
  int device_index;
  int sm_count;
  void* stream;
};

// These return a cudaError_t, enqueue on the stream and never wait.
// REQUIRES: rows > 0; the policy fits the device (SelectPolicy's does).
int32_t LaunchForward(const Problem& problem, const Policy& policy, const CudaTarget& target);

// `class_weight_sum` is one float of device memory, read and written only if the problem has both
// class weights and label smoothing.
int32_t LaunchBackward(const Problem& problem, float* class_weight_sum, const CudaTarget& target);

// Load every instance of the kernels of each kind on the current device. Return a cudaError_t.
int32_t LoadRowKernels();
int32_t LoadEntropyKernels();
int32_t LoadRingKernels();

// The table's entries for FB_CUDA.
uint64_t BackwardWorkspaceBytes(const FbCall* call);
int32_t ForwardCuda(const FbCall* call, void* workspace);
int32_t BackwardCuda(const FbCall* call, void* workspace);

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CUDA_H_
