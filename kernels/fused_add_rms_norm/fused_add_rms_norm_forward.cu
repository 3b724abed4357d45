#include "kernels/fused_add_rms_norm/fused_add_rms_norm_call.h"
#include "kernels/fused_add_rms_norm/fused_add_rms_norm_cuda.h"
#include "kernels/rms_norm/rms_norm_forward_launch.cuh"

namespace fuseboard::fused_add_rms_norm {

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  const rms_norm::ForwardCall f = ForwardOf(*call);
  return rms_norm::LaunchForwardAs</*kAdd=*/true>(*call, f, rms_norm::PolicyOfForward(*call, f));
}

int32_t LoadForwardKernels() { return rms_norm::LoadForwardKernelsAs</*kAdd=*/true>(); }

}  // namespace fuseboard::fused_add_rms_norm
