#include "kernels/elementwise/elementwise_launch.cuh"
#include "kernels/geglu/geglu.cuh"
#include "kernels/geglu/geglu_call.h"
#include "kernels/geglu/geglu_cuda.h"

namespace fuseboard::geglu {
namespace {

using elementwise::GatedParams;
using elementwise::Launch;
using elementwise::ThreeInputCut;
using elementwise::TwoInputCut;

GatedParams Gated(const FbCall& call) { return {ParamsOf(call).round_activation != 0}; }

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  if (ParamsOf(*call).gelu == FB_GELU_TANH) {
    return Launch<TanhForward, TwoInputCut>(*call, Gated(*call));
  }
  return Launch<ExactForward, TwoInputCut>(*call, Gated(*call));
}

int32_t BackwardCuda(const FbCall* call, void* /*workspace*/) {
  if (IsAbsent(call->outputs[0]) && IsAbsent(call->outputs[1])) return cudaSuccess;
  if (ParamsOf(*call).gelu == FB_GELU_TANH) {
    return Launch<TanhBackward, ThreeInputCut>(*call, Gated(*call));
  }
  return Launch<ExactBackward, ThreeInputCut>(*call, Gated(*call));
}

int32_t LoadKernels() {
  for (const auto load : {elementwise::LoadKernels<TanhForward, TwoInputCut>,
                          elementwise::LoadKernels<TanhBackward, ThreeInputCut>,
                          elementwise::LoadKernels<ExactForward, TwoInputCut>,
                          elementwise::LoadKernels<ExactBackward, ThreeInputCut>}) {
    if (const int32_t error = load()) return error;
  }
  return cudaSuccess;
}

}  // namespace fuseboard::geglu
