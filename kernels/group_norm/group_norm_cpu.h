// The CPU half of group_norm's table, once per instruction set (kernels/common/cpu_isa.h).

#ifndef KERNELS_GROUP_NORM_GROUP_NORM_CPU_H_
#define KERNELS_GROUP_NORM_GROUP_NORM_CPU_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/group_norm/group_norm_call.h"

namespace fuseboard::group_norm {

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

// dweight and then dbias, each as far as it is wanted, of each example.
inline uint64_t BackwardCpuWorkspaceOf(const BackwardCall& b) {
  const int64_t parameters = (IsAbsent(b.dweight) ? 0 : 1) + (IsAbsent(b.dbias) ? 0 : 1);
  return static_cast<uint64_t>(parameters * b.shape.examples * b.shape.channels) * sizeof(float);
}

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_GROUP_NORM_CPU_H_
