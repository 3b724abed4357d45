// Declares the operators of schemas.h and internal_schemas.h, and implements those without tensors.
// Further operations declare themselves in their own files (registration.h).

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/internal_schemas.h"
#include "kernels/torch/kernel_table.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/schemas.h"

namespace fuseboard::torch_binding {
namespace {

int64_t LoadKernel(const std::string& path) { return KernelTable::Instance().Load(path); }

void PrepareKernel(int64_t kernel, c10::Device device) {
  const FbKernel& table = *KernelTable::Instance().Find(kernel).table;
  TORCH_CHECK(device.is_cpu() || device.is_cuda(), "prepare_kernel: device is ", device,
              ", want cpu or cuda");
  const auto type = device.is_cuda() ? FB_CUDA : FB_CPU;
  const auto index = device.is_cuda() && device.has_index() ? device.index() : c10::DeviceIndex{0};
  if (const int32_t error = table.prepare(type, index)) ThrowCudaError(table.name, error);
}

std::vector<std::string> DescribeKernel(int64_t kernel) {
  const FbKernel& table = *KernelTable::Instance().Find(kernel).table;
  return {table.name, table.version};
}

std::string CountersJson() { return Counters::Instance().ToJson(); }

std::vector<std::string> Operations() {
  std::vector<std::string> registered;
  for (const char* name : kOperationNames) {
    const c10::OperatorName operator_name(std::string("fuseboard::") + name, "");
    if (c10::Dispatcher::singleton().findOp(operator_name)) registered.emplace_back(name);
  }
  return registered;
}

}  // namespace

TORCH_LIBRARY(fuseboard, m) {
  m.def(kLoadKernel, LoadKernel);
  m.def(kPrepareKernel, PrepareKernel);
  m.def(kDescribeKernel, DescribeKernel);
  m.def(kCounters, CountersJson);
  m.def(kOperations, Operations);
  Define(m, {kRmsNorm, kRmsNormForward, kRmsNormBackward});
  Define(m, {kCrossEntropy, kCrossEntropyForward, kCrossEntropyBackward});
  Define(m, {kFusedLinearCrossEntropy, kFusedLinearCrossEntropyForward,
             kFusedLinearCrossEntropyBackward});
}

TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  RefuseSecondDerivatives(m, {"rms_norm_forward", "rms_norm_backward", "cross_entropy_forward",
                              "cross_entropy_backward", "fused_linear_cross_entropy_forward",
                              "fused_linear_cross_entropy_backward"});
}

}  // namespace fuseboard::torch_binding
