// The CPU version of cross_entropy, built once per instruction set, as the library's table sees it.

#ifndef KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CPU_H_
#define KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CPU_H_

#include <stdint.h>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::cross_entropy {

struct CpuEntries {
  int32_t (*forward)(const FbCall* call, void* workspace);
  int32_t (*backward)(const FbCall* call, void* workspace);
  uint64_t (*forward_workspace_bytes)(const FbCall* call);
};

namespace baseline {
extern const CpuEntries kCpuEntries;
}
namespace avx2 {
extern const CpuEntries kCpuEntries;
}
namespace avx512 {
extern const CpuEntries kCpuEntries;
}

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CPU_H_
