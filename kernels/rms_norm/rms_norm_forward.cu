#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rms_norm/rms_norm_forward_launch.cuh"

namespace fuseboard::rms_norm {

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  return LaunchForward(*call, PolicyOfForward(*call, ForwardOf(*call)));
}

int32_t LaunchForward(const FbCall& call, const Policy& policy) {
  return LaunchForwardAs</*kAdd=*/false>(call, ForwardOf(call), policy);
}

int32_t LoadForwardKernels() { return LoadForwardKernelsAs</*kAdd=*/false>(); }

}  // namespace fuseboard::rms_norm
