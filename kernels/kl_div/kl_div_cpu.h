// The CPU half of kl_div's table, once per instruction set (kernels/common/cpu_isa.h).

#ifndef KERNELS_KL_DIV_KL_DIV_CPU_H_
#define KERNELS_KL_DIV_KL_DIV_CPU_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::kl_div {

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

}  // namespace fuseboard::kl_div

#endif  // KERNELS_KL_DIV_KL_DIV_CPU_H_
