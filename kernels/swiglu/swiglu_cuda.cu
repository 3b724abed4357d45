#include "kernels/elementwise/elementwise_launch.cuh"
#include "kernels/swiglu/swiglu.cuh"
#include "kernels/swiglu/swiglu_call.h"
#include "kernels/swiglu/swiglu_cuda.h"

namespace fuseboard::swiglu {
namespace {

using elementwise::GatedParams;
using elementwise::Launch;
using elementwise::ThreeInputCut;
using elementwise::TwoInputCut;

GatedParams Gated(const FbCall& call) { return {ParamsOf(call).round_activation != 0}; }

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  return Launch<Forward, TwoInputCut>(*call, Gated(*call));
}

int32_t BackwardCuda(const FbCall* call, void* /*workspace*/) {
  if (IsAbsent(call->outputs[0]) && IsAbsent(call->outputs[1])) return cudaSuccess;
  return Launch<Backward, ThreeInputCut>(*call, Gated(*call));
}

int32_t LoadKernels() {
  if (const int32_t error = elementwise::LoadKernels<Forward, TwoInputCut>()) return error;
  return elementwise::LoadKernels<Backward, ThreeInputCut>();
}

}  // namespace fuseboard::swiglu
