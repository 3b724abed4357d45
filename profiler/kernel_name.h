// How a kernel is called in reports.

#ifndef PROFILER_KERNEL_NAME_H_
#define PROFILER_KERNEL_NAME_H_

#include <cstddef>
#include <string>

namespace fuseboard::profiler {

// 512: ATen's template names reach several thousand characters, and a report carries up to 256 of
// them; the first 512 tell them apart in practice. Longer names end in "...".
inline constexpr size_t kMaxKernelNameBytes = 512;

// Returns `symbol` demangled, without return type and function arguments: template arguments stay,
// since they are what tells two ATen kernels apart. A name that is not mangled comes back as it is.
std::string ReadableKernelName(const std::string& symbol);

}  // namespace fuseboard::profiler

#endif  // PROFILER_KERNEL_NAME_H_
