// One phase of one operation, handed to a kernel library.
//
//   KernelCall call(Operation::kSwiglu, kernel, FB_FORWARD, gate.device());
//   call.Inputs({gate.view(), up.view()});
//   call.Outputs({ViewOf(out)});
//   if (const char* reason = call.Run(&params)) ... the composite; `reason` says why
//
// Lives on the stack and allocates nothing but the workspace a kernel asks for. One thread.

#ifndef KERNELS_TORCH_KERNEL_CALL_H_
#define KERNELS_TORCH_KERNEL_CALL_H_

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <initializer_list>

#include "kernels/abi/kernel_abi.h"
#include "kernels/torch/kernel_table.h"

namespace fuseboard::torch_binding {

// Why `Run` was not even tried.
inline constexpr char kNoKernelReason[] = "the plan has no kernel for this call";

class KernelCall {
 public:
  // REQUIRES (CUDA): `device` is the current device, and stays so until Run returns.
  // Errors: c10::Error if `kernel` is no handle, or one of another operation.
  KernelCall(Operation operation, int64_t kernel, FbPhase phase, c10::Device device);

  // Another entry of the library's table. `entry` is of `kernel`.
  KernelCall(const LoadedKernel& kernel, const FbEntry& entry, c10::Device device);

  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;

  void Inputs(std::initializer_list<FbTensor> tensors);
  void Outputs(std::initializer_list<FbTensor> tensors);

  // Enqueues the work on the device's current stream (CUDA) or does it (CPU) and returns null; or
  // returns why the composite must run instead: the library has no such phase, rejects the call,
  // its workspace could not be allocated, or its launch failed in a way that left the device
  // usable. The string is valid until this thread's next call into the same library.
  //
  // Errors: what LibTorch raises for a CUDA error that is not recoverable.
  const char* Run(const void* params);

 private:
  static constexpr size_t kMaxTensors = 8;

  KernelCall(const LoadedKernel& kernel, FbPhase phase, c10::Device device);

  const LoadedKernel& kernel_;
  const FbEntry& entry_;
  c10::Device device_;
  std::array<FbTensor, kMaxTensors> inputs_;
  std::array<FbTensor, kMaxTensors> outputs_;
  FbCall call_{};
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_KERNEL_CALL_H_
