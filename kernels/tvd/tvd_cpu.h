// The CPU half of tvd's table, once per instruction set (kernels/common/cpu_isa.h).

#ifndef KERNELS_TVD_TVD_CPU_H_
#define KERNELS_TVD_TVD_CPU_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::tvd {

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

}  // namespace fuseboard::tvd

#endif  // KERNELS_TVD_TVD_CPU_H_
