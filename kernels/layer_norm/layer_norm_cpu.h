// The CPU half of layer_norm's table, once per instruction set (kernels/common/cpu_isa.h).

#ifndef KERNELS_LAYER_NORM_LAYER_NORM_CPU_H_
#define KERNELS_LAYER_NORM_LAYER_NORM_CPU_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/layer_norm/layer_norm_call.h"
#include "kernels/rms_norm/rms_norm_cpu.h"

namespace fuseboard::layer_norm {

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

// dweight and then dbias, each as far as it is wanted, per block of rows (rms_norm::RowBlocksOf).
inline uint64_t BackwardCpuWorkspaceOf(const BackwardCall& b) {
  const int64_t parameters = (IsAbsent(b.dweight) ? 0 : 1) + (IsAbsent(b.dbias) ? 0 : 1);
  return static_cast<uint64_t>(parameters * rms_norm::RowBlocksOf(b.rows).count * b.hidden) *
         sizeof(float);
}

}  // namespace fuseboard::layer_norm

#endif  // KERNELS_LAYER_NORM_LAYER_NORM_CPU_H_
