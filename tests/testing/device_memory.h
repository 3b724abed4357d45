// Memory of a device type for tests, and what an FbCall says about the device. With FB_CUDA off,
// FB_CUDA aborts.

#ifndef TESTS_TESTING_DEVICE_MEMORY_H_
#define TESTS_TESTING_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::testing {

// 256-byte aligned. Errors: every function ends the program with CUDA's message; a test without its
// device has nothing to go on with.
class DeviceMemory {
 public:
  DeviceMemory(int device_type, size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* get() const { return address_; }
  size_t bytes() const { return bytes_; }
  void Set(uint8_t byte);
  void CopyFrom(const void* host, size_t bytes, size_t offset = 0);
  void CopyTo(void* host, size_t bytes, size_t offset = 0) const;

 private:
  int device_type_;
  size_t bytes_;
  void* address_ = nullptr;
};

// Sets device_type, device_index 0, sm and sm_count.
void DescribeDevice(int device_type, FbCall* call);

// Waits for the device and ends the program if anything on it failed.
void Synchronize(int device_type);

}  // namespace fuseboard::testing

#endif  // TESTS_TESTING_DEVICE_MEMORY_H_
