// Declares the operators of schemas.h and internal_schemas.h, and implements those without tensors.

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <array>

#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/internal_schemas.h"
#include "kernels/torch/kernel_table.h"
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

std::vector<std::string> Operations() { return {kOperationNames.begin(), kOperationNames.end()}; }

constexpr std::array kDifferentiable = {kRmsNorm, kSwiglu, kCrossEntropy, kFusedLinearCrossEntropy};
constexpr std::array kPairs = {kRmsNormForward,
                               kRmsNormBackward,
                               kSwigluForward,
                               kSwigluBackward,
                               kCrossEntropyForward,
                               kCrossEntropyBackward,
                               kFusedLinearCrossEntropyForward,
                               kFusedLinearCrossEntropyBackward};

}  // namespace

TORCH_LIBRARY(fuseboard, m) {
  m.def(kLoadKernel, LoadKernel);
  m.def(kPrepareKernel, PrepareKernel);
  m.def(kDescribeKernel, DescribeKernel);
  m.def(kCounters, CountersJson);
  m.def(kOperations, Operations);
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  for (const char* schema : kDifferentiable) m.def(schema, tags);
  for (const char* schema : kPairs) m.def(schema, tags);
}

// A second derivative reaches these, and raises with the operator's name.
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  for (const std::string schema : kPairs) {
    m.impl(schema.substr(0, schema.find('(')).c_str(),
           torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace fuseboard::torch_binding
