// The pieces that the table of every kernel library is put together from.

#ifndef KERNELS_COMMON_TABLE_H_
#define KERNELS_COMMON_TABLE_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/cpu_isa.h"

namespace fuseboard {

// FbEntry::reject_reason of a check that is written once for all device types.
template <const char* (*kCheck)(const FbCall* call, int32_t device_type), int32_t kDeviceType>
const char* RejectOn(const FbCall* call) {
  return kCheck(call, kDeviceType);
}

inline uint64_t NoWorkspace(const FbCall* /*call*/) { return 0; }

// A table without entries.
inline FbKernel NewTable(const char* name, int32_t (*prepare)(int32_t, int32_t)) {
  FbKernel kernel = {};
  kernel.struct_size = sizeof(FbKernel);
  kernel.abi_version = FB_ABI_VERSION;
  kernel.name = name;
  kernel.version = FB_VERSION;
  kernel.prepare = prepare;
  return kernel;
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_TABLE_H_
