// FbKernel::prepare for CUDA: host code that need not be compiled by nvcc.

#ifndef KERNELS_COMMON_PREPARE_H_
#define KERNELS_COMMON_PREPARE_H_

#include <cuda_runtime_api.h>
#include <stdint.h>

#include <initializer_list>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard {

// Makes a device current for the scope.
class ScopedDevice {
 public:
  explicit ScopedDevice(int device) : error_(cudaGetDevice(&previous_)) {
    if (error_ != cudaSuccess) {
      previous_ = -1;
    } else {
      error_ = cudaSetDevice(device);
    }
  }
  ~ScopedDevice() {
    if (previous_ >= 0) (void)cudaSetDevice(previous_);
  }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  cudaError_t error() const { return error_; }

 private:
  int previous_ = -1;
  cudaError_t error_;
};

// Runs each loader with `device` current and returns the first error.
inline int32_t PrepareCuda(int device, std::initializer_list<int32_t (*)()> loaders) {
  const ScopedDevice scope(device);
  if (scope.error() != cudaSuccess) return scope.error();
  for (const auto load : loaders) {
    if (const int32_t error = load()) return error;
  }
  return cudaSuccess;
}

// FbKernel::prepare of a library with these loaders.
template <int32_t (*... kLoaders)()>
int32_t PrepareKernels(int32_t device_type, int32_t device_index) {
  return device_type == FB_CUDA ? PrepareCuda(device_index, {kLoaders...}) : 0;
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_PREPARE_H_
