#include "kernels/rms_norm/rms_norm_cpu.h"

#include "kernels/rms_norm/rms_norm_cpu_rows.h"

namespace fuseboard::rms_norm::FB_CPU_ISA {

int32_t ForwardCpu(const FbCall* call, void* /*workspace*/) {
  return RunForward(*call, ForwardOf(*call));
}

int32_t BackwardCpu(const FbCall* call, void* workspace) {
  return RunBackward(*call, BackwardOf(*call), workspace);
}

}  // namespace fuseboard::rms_norm::FB_CPU_ISA
