#include "kernels/elementwise/elementwise_launch.cuh"
#include "kernels/relu_squared/relu_squared.cuh"
#include "kernels/relu_squared/relu_squared_call.h"
#include "kernels/relu_squared/relu_squared_cuda.h"

namespace fuseboard::relu_squared {
namespace {

using elementwise::Launch;
using elementwise::OneInputCut;
using elementwise::TwoInputCut;

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  return Launch<Forward, OneInputCut>(*call, {});
}

int32_t BackwardCuda(const FbCall* call, void* /*workspace*/) {
  return Launch<Backward, TwoInputCut>(*call, {});
}

int32_t LoadKernels() {
  if (const int32_t error = elementwise::LoadKernels<Forward, OneInputCut>()) return error;
  return elementwise::LoadKernels<Backward, TwoInputCut>();
}

}  // namespace fuseboard::relu_squared
