#include "kernels/torch/device.h"

#include <ATen/EmptyTensor.h>

#if FB_TORCH_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace fuseboard::torch_binding {

#if FB_TORCH_CUDA

DeviceFacts FactsOf(c10::Device device) {
  if (!device.is_cuda()) return {};
  const cudaDeviceProp* properties = at::cuda::getDeviceProperties(device.index());
  return {.sm = 10 * properties->major + properties->minor,
          .sm_count = properties->multiProcessorCount};
}

void* CurrentStream(c10::Device device) {
  return device.is_cuda() ? c10::cuda::getCurrentCUDAStream(device.index()).stream() : nullptr;
}

bool IsCapturing(c10::Device device) {
  return device.is_cuda() &&
         c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

bool RecoverFrom(int32_t cuda_error) {
  switch (cuda_error) {
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidConfiguration:
    case cudaErrorLaunchOutOfResources:
      (void)cudaGetLastError();
      return true;
    default:
      return false;
  }
}

void ThrowCudaError(const char* operation, int32_t cuda_error) {
  try {
    c10::cuda::c10_cuda_check_implementation(cuda_error, operation, "launch", 0, true);
  } catch (c10::Error& error) {
    // Python shows no source location.
    error.add_context(c10::str("in the launch of ", operation));
    throw;
  }
  TORCH_CHECK(false, operation, ": launch failed with error ", cuda_error);
}

at::Tensor Empty(at::IntArrayRef sizes, at::ScalarType dtype, c10::Device device) {
  return device.is_cuda() ? at::detail::empty_cuda(sizes, dtype, device, std::nullopt)
                          : at::detail::empty_cpu(sizes, dtype);
}

#else

DeviceFacts FactsOf(c10::Device) { return {}; }
void* CurrentStream(c10::Device) { return nullptr; }
bool IsCapturing(c10::Device) { return false; }
bool RecoverFrom(int32_t) { return false; }

void ThrowCudaError(const char* operation, int32_t cuda_error) {
  TORCH_CHECK(false, operation, ": launch failed with error ", cuda_error);
}

at::Tensor Empty(at::IntArrayRef sizes, at::ScalarType dtype, c10::Device) {
  return at::detail::empty_cpu(sizes, dtype);
}

#endif

}  // namespace fuseboard::torch_binding
