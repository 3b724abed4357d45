#include "kernels/torch/kernel_call.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "kernels/torch/device.h"

namespace fuseboard::torch_binding {
namespace {

void ParallelFor(void* /*pool*/, int64_t begin, int64_t end, int64_t grain, FbRangeFn fn,
                 void* range_context) {
  at::parallel_for(begin, end, grain,
                   [=](int64_t from, int64_t to) { fn(range_context, from, to); });
}

// Of an error that an allocation raised. The CPU's allocator has no type of its own for it, nor
// another reason to fail.
bool IsOutOfMemory(const c10::Error& error, c10::Device device) {
  return device.is_cpu() || dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr;
}

}  // namespace

KernelCall::KernelCall(Operation operation, int64_t kernel, FbPhase phase, c10::Device device)
    : KernelCall(KernelTable::Instance().Find(kernel, operation), phase, device) {}

KernelCall::KernelCall(const LoadedKernel& kernel, FbPhase phase, c10::Device device)
    : KernelCall(kernel, kernel.table->entries[phase][device.is_cuda() ? FB_CUDA : FB_CPU],
                 device) {}

KernelCall::KernelCall(const LoadedKernel& kernel, const FbEntry& entry, c10::Device device)
    : kernel_(kernel), entry_(entry), device_(device) {
  call_.struct_size = sizeof(FbCall);
  call_.num_threads = 1;
  if (device.is_cuda()) {
    const DeviceFacts facts = FactsOf(device);
    call_.device_type = FB_CUDA;
    call_.device_index = int32_t{device.index()};
    call_.sm = facts.sm;
    call_.sm_count = facts.sm_count;
    call_.stream = CurrentStream(device);
  } else {
    call_.device_type = FB_CPU;
    call_.num_threads = at::in_parallel_region() ? 1 : at::get_num_threads();
    call_.parallel_for = ParallelFor;
  }
}

void KernelCall::Inputs(std::initializer_list<FbTensor> tensors) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(tensors.size() <= kMaxTensors);
  std::copy(tensors.begin(), tensors.end(), inputs_.begin());
  call_.inputs = inputs_.data();
  call_.num_inputs = static_cast<int32_t>(tensors.size());
}

void KernelCall::Outputs(std::initializer_list<FbTensor> tensors) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(tensors.size() <= kMaxTensors);
  std::copy(tensors.begin(), tensors.end(), outputs_.begin());
  call_.outputs = outputs_.data();
  call_.num_outputs = static_cast<int32_t>(tensors.size());
}

const char* KernelCall::Run(const void* params) {
  if (entry_.launch == nullptr) {
    return "the kernel library has no version for this device and phase";
  }
  call_.params = params;
  if (const char* reason = entry_.reject_reason(&call_)) return reason;
  at::Tensor workspace;
  if (const uint64_t bytes = entry_.workspace_bytes(&call_); bytes > 0) {
    try {
      workspace = Empty({static_cast<int64_t>(bytes)}, at::kByte, device_);
    } catch (const c10::Error& error) {
      if (!IsOutOfMemory(error, device_)) throw;
      return "no memory for the kernel's workspace";
    }
  }
  const int32_t error = entry_.launch(&call_, workspace.defined() ? workspace.data_ptr() : nullptr);
  if (error == 0) return nullptr;
  if (!RecoverFrom(error)) ThrowCudaError(NameOf(kernel_.operation), error);
  return "the launch failed for lack of resources";
}

}  // namespace fuseboard::torch_binding
