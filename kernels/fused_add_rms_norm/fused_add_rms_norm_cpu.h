// The CPU half of fused_add_rms_norm's table, once per instruction set (kernels/common/cpu_isa.h).

#ifndef KERNELS_FUSED_ADD_RMS_NORM_FUSED_ADD_RMS_NORM_CPU_H_
#define KERNELS_FUSED_ADD_RMS_NORM_FUSED_ADD_RMS_NORM_CPU_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::fused_add_rms_norm {

namespace baseline {
int32_t ForwardCpu(const FbCall* call, void* workspace);
int32_t BackwardCpu(const FbCall* call, void* workspace);
}  // namespace baseline

namespace avx2 {
int32_t ForwardCpu(const FbCall* call, void* workspace);
int32_t BackwardCpu(const FbCall* call, void* workspace);
}  // namespace avx2

namespace avx512 {
int32_t ForwardCpu(const FbCall* call, void* workspace);
int32_t BackwardCpu(const FbCall* call, void* workspace);
}  // namespace avx512

}  // namespace fuseboard::fused_add_rms_norm

#endif  // KERNELS_FUSED_ADD_RMS_NORM_FUSED_ADD_RMS_NORM_CPU_H_
