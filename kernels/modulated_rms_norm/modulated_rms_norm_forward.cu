#include "kernels/modulated_rms_norm/modulated_rms_norm_call.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_cuda.h"
#include "kernels/rms_norm/rms_norm_forward_launch.cuh"

namespace fuseboard::modulated_rms_norm {

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  const rms_norm::ForwardCall f = ForwardOf(*call);
  return rms_norm::LaunchForwardAs</*kAdd=*/false, /*kModulate=*/true>(
      *call, f, rms_norm::PolicyOfForward(*call, f));
}

int32_t LoadForwardKernels() {
  return rms_norm::LoadForwardKernelsAs</*kAdd=*/false, /*kModulate=*/true>();
}

}  // namespace fuseboard::modulated_rms_norm
