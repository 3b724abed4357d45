// The CPU half of jsd's table, once per instruction set (kernels/common/cpu_isa.h).

#ifndef KERNELS_JSD_JSD_CPU_H_
#define KERNELS_JSD_JSD_CPU_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::jsd {

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

}  // namespace fuseboard::jsd

#endif  // KERNELS_JSD_JSD_CPU_H_
