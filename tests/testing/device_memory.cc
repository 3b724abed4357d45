#include "tests/testing/device_memory.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(FB_HAVE_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace fuseboard::testing {
namespace {

constexpr std::align_val_t kAlignment{256};

#if defined(FB_HAVE_CUDA)
void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(EXIT_FAILURE);
}
#endif

}  // namespace

DeviceMemory::DeviceMemory(int device_type, size_t bytes)
    : device_type_(device_type), bytes_(bytes) {
  if (device_type_ == FB_CPU) {
    address_ = ::operator new(bytes, kAlignment);
    return;
  }
#if defined(FB_HAVE_CUDA)
  Check(cudaMalloc(&address_, bytes == 0 ? 1 : bytes), "cudaMalloc");
#else
  std::fprintf(stderr, "this test program was built without CUDA\n");
  std::exit(EXIT_FAILURE);
#endif
}

DeviceMemory::~DeviceMemory() {
  if (device_type_ == FB_CPU) {
    ::operator delete(address_, kAlignment);
    return;
  }
#if defined(FB_HAVE_CUDA)
  Check(cudaFree(address_), "cudaFree");
#endif
}

void DeviceMemory::Set(uint8_t byte) {
  if (device_type_ == FB_CPU) std::memset(address_, byte, bytes_);
#if defined(FB_HAVE_CUDA)
  if (device_type_ == FB_CUDA) Check(cudaMemset(address_, byte, bytes_), "cudaMemset");
#endif
}

void DeviceMemory::CopyFrom(const void* host, size_t bytes, size_t offset) {
  void* to = static_cast<uint8_t*>(address_) + offset;
  if (device_type_ == FB_CPU) std::memcpy(to, host, bytes);
#if defined(FB_HAVE_CUDA)
  if (device_type_ == FB_CUDA) Check(cudaMemcpy(to, host, bytes, cudaMemcpyDefault), "cudaMemcpy");
#endif
}

void DeviceMemory::CopyTo(void* host, size_t bytes, size_t offset) const {
  const void* from = static_cast<const uint8_t*>(address_) + offset;
  if (device_type_ == FB_CPU) std::memcpy(host, from, bytes);
#if defined(FB_HAVE_CUDA)
  if (device_type_ == FB_CUDA) {
    Check(cudaMemcpy(host, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  }
#endif
}

void DescribeDevice(int device_type, FbCall* call) {
  call->device_type = device_type;
  call->device_index = 0;
  call->sm = 0;
  call->sm_count = 0;
#if defined(FB_HAVE_CUDA)
  if (device_type != FB_CUDA) return;
  int major = 0;
  int minor = 0;
  Check(cudaSetDevice(0), "cudaSetDevice");
  Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "attribute");
  Check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "attribute");
  Check(cudaDeviceGetAttribute(&call->sm_count, cudaDevAttrMultiProcessorCount, 0), "attribute");
  call->sm = 10 * major + minor;
#endif
}

void Synchronize(int device_type) {
#if defined(FB_HAVE_CUDA)
  if (device_type == FB_CUDA) Check(cudaDeviceSynchronize(), "kernel");
#else
  (void)device_type;
#endif
}

}  // namespace fuseboard::testing
