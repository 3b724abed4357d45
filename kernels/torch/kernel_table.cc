#include "kernels/torch/kernel_table.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace fuseboard::torch_binding {
namespace {

class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    TORCH_CHECK(fd_ >= 0, "kernel library ", path, " cannot be opened: ", std::strerror(errno));
  }
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  [[nodiscard]] int Descriptor() const { return fd_; }
  // Leaves the descriptor open for the life of the process.
  void Keep() { fd_ = -1; }

 private:
  int fd_;
};

// NOTE: the loader takes two libraries of one *name* for the same, even if the file behind the name
// changed: another file renamed over it, or /proc/self/fd/5 closed and opened anew. So we map
// through a descriptor that is never closed, spelt as nobody else spells it ("/./").
void* Map(const std::string& path, int fd) {
  const std::string unique_name = "/proc/self/./fd/" + std::to_string(fd);
  void* library = dlopen(unique_name.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, "kernel library ", path, " cannot be mapped: ", dlerror());
  return library;
}

const FbKernel* TableOf(const std::string& path, void* library) {
  auto entry = reinterpret_cast<FbGetKernelFn>(dlsym(library, FB_GET_KERNEL_SYMBOL));
  TORCH_CHECK(entry != nullptr, "kernel library ", path, " has no symbol ", FB_GET_KERNEL_SYMBOL);
  const FbKernel* table = entry();
  TORCH_CHECK(table != nullptr, "kernel library ", path, " has no table");
  TORCH_CHECK(table->abi_version == FB_ABI_VERSION, "kernel library ", path, " has ABI ",
              table->abi_version, ", want ", FB_ABI_VERSION);
  constexpr size_t kFirstVersionBytes = offsetof(FbKernel, rescale);
  TORCH_CHECK(table->struct_size >= kFirstVersionBytes, "kernel library ", path, " has a table of ",
              table->struct_size, " bytes, want at least ", kFirstVersionBytes);
  return table;
}

Operation OperationOf(const std::string& path, const FbKernel& table) {
  const auto* const found =
      std::find(kOperationNames.begin(), kOperationNames.end(), std::string_view(table.name));
  TORCH_CHECK(found != kOperationNames.end(), "kernel library ", path, " is of operation ",
              table.name, ", which this binding does not have");
  return static_cast<Operation>(found - kOperationNames.begin());
}

}  // namespace

KernelTable& KernelTable::Instance() {
  static auto* const table = new KernelTable;  // Outlives every thread that may still launch.
  return *table;
}

int64_t KernelTable::Load(const std::string& path) {
  OpenFile file(path);
  struct stat status = {};
  TORCH_CHECK(fstat(file.Descriptor(), &status) == 0, "kernel library ", path,
              " cannot be examined: ", std::strerror(errno));
  const std::lock_guard lock(mutex_);
  const int64_t size = size_.load(std::memory_order_relaxed);
  for (int64_t i = 0; i < size; ++i) {
    const LoadedKernel& kernel = kernels_[static_cast<size_t>(i)];
    if (kernel.device == status.st_dev && kernel.inode == status.st_ino) return i;
  }
  TORCH_CHECK(size < kCapacity, "kernel table is full with ", size, " libraries");
  void* library = Map(path, file.Descriptor());
  // From here on the name is in use, even if the library turns out to be of no use.
  file.Keep();
  const FbKernel* table = TableOf(path, library);
  kernels_[static_cast<size_t>(size)] = {table, OperationOf(path, *table), status.st_dev,
                                         status.st_ino};
  size_.store(size + 1, std::memory_order_release);
  return size;
}

void KernelTable::ThrowWrongOperation(int64_t handle, const LoadedKernel& kernel, Operation want) {
  TORCH_CHECK(false, "kernel ", handle, " is of operation ", NameOf(kernel.operation), ", want ",
              NameOf(want));
}

void KernelTable::ThrowNoSuchHandle(int64_t handle) const {
  TORCH_CHECK(false, "kernel ", handle, " does not exist, have ", size_.load(), " and ", kNoKernel,
              " for none");
}

}  // namespace fuseboard::torch_binding
