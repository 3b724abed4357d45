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

using Launch = int32_t (*)(const FbCall* call, void* workspace);

// FbEntry::launch on the CPU: the build of `function` for this machine. A macro because namespaces,
// of which each build has its own, are no template arguments.
#if defined(FB_HAVE_X86_ISAS)
#define FB_CPU_LAUNCH(function) \
  ::fuseboard::SelectIsa<::fuseboard::Launch>(baseline::function, avx2::function, avx512::function)
#else
#define FB_CPU_LAUNCH(function) \
  ::fuseboard::Launch { baseline::function }
#endif

// FbKernel::prepare where there is nothing to load.
inline int32_t PrepareNothing(int32_t /*device_type*/, int32_t /*device_index*/) { return 0; }

// A table without entries, of a library without device code.
inline FbKernel NewTable(const char* name) {
  FbKernel kernel = {};
  kernel.struct_size = sizeof(FbKernel);
  kernel.abi_version = FB_ABI_VERSION;
  kernel.name = name;
  kernel.version = FB_VERSION;
  kernel.prepare = PrepareNothing;
  return kernel;
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_TABLE_H_
