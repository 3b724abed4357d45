#include "kernels/fused_add_rms_norm/fused_add_rms_norm_cpu.h"

#include "kernels/fused_add_rms_norm/fused_add_rms_norm_call.h"
#include "kernels/rms_norm/rms_norm_cpu_rows.h"

namespace fuseboard::fused_add_rms_norm::FB_CPU_ISA {

int32_t ForwardCpu(const FbCall* call, void* /*workspace*/) {
  return rms_norm::FB_CPU_ISA::RunForward(*call, ForwardOf(*call));
}

int32_t BackwardCpu(const FbCall* call, void* workspace) {
  return rms_norm::FB_CPU_ISA::RunBackward(*call, BackwardOf(*call), workspace);
}

}  // namespace fuseboard::fused_add_rms_norm::FB_CPU_ISA
