// The kernel libraries that this process has mapped, by handle.
//
// A handle is an index, never reused, and a library is never unmapped: a plan may change a site's
// handle between any two steps while launches of the old one are still queued. Thread-safe; `Find`
// takes no lock. The table is one per process because operators registered with LibTorch are.

#ifndef KERNELS_TORCH_KERNEL_TABLE_H_
#define KERNELS_TORCH_KERNEL_TABLE_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "kernels/abi/kernel_abi.h"
#include "kernels/torch/operation.h"

namespace fuseboard::torch_binding {

struct LoadedKernel {
  const FbKernel* table;
  Operation operation;
  dev_t device;
  ino_t inode;
};

// An entry of a library's table that it may lack, for instance &FbKernel::rescale, on a device
// type; null if it does.
inline const FbEntry* OptionalEntryOf(const LoadedKernel& kernel,
                                      FbEntry (FbKernel::*field)[FB_NUM_DEVICE_TYPES],
                                      FbDeviceType device_type) {
  const FbEntry* const entries = kernel.table->*field;
  const auto* const end = reinterpret_cast<const char*>(entries + FB_NUM_DEVICE_TYPES);
  if (end - reinterpret_cast<const char*>(kernel.table) > int64_t{kernel.table->struct_size}) {
    return nullptr;  // Older than the field.
  }
  return entries[device_type].launch != nullptr ? &entries[device_type] : nullptr;
}

class KernelTable {
 public:
  static KernelTable& Instance();

  // Maps the library at `path` and returns its handle; the same file (device and inode) gives the
  // same handle, whatever its name.
  //
  // Errors: c10::Error if it cannot be opened or mapped, lacks the symbol, has another ABI, or is
  // of an operation that this binding does not have.
  int64_t Load(const std::string& path);

  // Errors: c10::Error if there is no such handle, or it is of another operation than `want`.
  const LoadedKernel& Find(int64_t handle, Operation want) const {
    const LoadedKernel& kernel = Find(handle);
    if (kernel.operation != want) [[unlikely]]
      ThrowWrongOperation(handle, kernel, want);
    return kernel;
  }

  // Errors: c10::Error if there is no such handle.
  const LoadedKernel& Find(int64_t handle) const {
    if (handle < 0 || handle >= size_.load(std::memory_order_acquire)) [[unlikely]] {
      ThrowNoSuchHandle(handle);
    }
    return kernels_[static_cast<size_t>(handle)];
  }

 private:
  // Each version of each operation takes one place; a process that sees 1024 of them is restarted.
  static constexpr int64_t kCapacity = 1024;

  [[noreturn]] static void ThrowWrongOperation(int64_t handle, const LoadedKernel& kernel,
                                               Operation want);
  [[noreturn]] void ThrowNoSuchHandle(int64_t handle) const;

  std::mutex mutex_;  // Guards the writing of kernels_ and size_.
  std::array<LoadedKernel, kCapacity> kernels_{};
  std::atomic<int64_t> size_{0};
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_KERNEL_TABLE_H_
