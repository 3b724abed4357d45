// Launches the ring kernel (ring_kernel.cuh), which is compiled apart: it is half the build time.

#ifndef KERNELS_CROSS_ENTROPY_RING_LAUNCH_H_
#define KERNELS_CROSS_ENTROPY_RING_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/cross_entropy/cross_entropy_cuda.h"

namespace fuseboard::cross_entropy {

// REQUIRES: policy.algorithm is kRing; a device of sm_90 or newer; rows > 0.
cudaError_t LaunchRing(const Problem& problem, const Policy& policy, const CudaTarget& target);

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_RING_LAUNCH_H_
