// What the binding needs of a device: the only file that knows whether this LibTorch has CUDA.

#ifndef KERNELS_TORCH_DEVICE_H_
#define KERNELS_TORCH_DEVICE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace fuseboard::torch_binding {

struct DeviceFacts {
  int32_t sm = 0;  // 10 * major + minor; 0 for the CPU.
  int32_t sm_count = 0;
};

// Cached by LibTorch. REQUIRES: `device` is the CPU or an existing CUDA device.
DeviceFacts FactsOf(c10::Device device);

// The cudaStream_t that is current on `device` for this thread; null for the CPU.
void* CurrentStream(c10::Device device);

// Whether the current stream of `device` is being captured into a CUDA graph.
bool IsCapturing(c10::Device device);

// Whether a launch that failed with this cudaError_t left the context usable, so that the composite
// may be tried. Clears the error in that case.
bool RecoverFrom(int32_t cuda_error);

// Raises what LibTorch raises for this cudaError_t.
[[noreturn]] void ThrowCudaError(const char* operation, int32_t cuda_error);

// An uninitialised contiguous tensor; without the way through the dispatcher.
at::Tensor Empty(at::IntArrayRef sizes, at::ScalarType dtype, c10::Device device);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_DEVICE_H_
