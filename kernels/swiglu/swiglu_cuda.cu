#include "kernels/elementwise/elementwise_launch.cuh"
#include "kernels/swiglu/swiglu.cuh"
#include "kernels/swiglu/swiglu_cuda.h"

namespace fuseboard::swiglu {
namespace {

using elementwise::AlternatingThreeInputCut;
using elementwise::AlternatingTwoInputCut;
using elementwise::Launch;
using elementwise::ThreeInputCut;
using elementwise::TwoInputCut;

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  const Options options = OptionsOf(*call);
  if (elementwise::IsAlternating(*call)) {
    return Launch<GeneralForward, AlternatingTwoInputCut, true>(*call, options);
  }
  if (!IsPlain(options)) return Launch<GeneralForward, TwoInputCut>(*call, options);
  return Launch<Forward, TwoInputCut>(*call, {options.round_activation});
}

int32_t BackwardCuda(const FbCall* call, void* /*workspace*/) {
  if (IsAbsent(call->outputs[0]) && IsAbsent(call->outputs[1])) return cudaSuccess;
  const Options options = OptionsOf(*call);
  if (elementwise::IsAlternating(*call)) {
    return Launch<GeneralBackward, AlternatingThreeInputCut, true>(*call, options);
  }
  if (!IsPlain(options)) return Launch<GeneralBackward, ThreeInputCut>(*call, options);
  return Launch<Backward, ThreeInputCut>(*call, {options.round_activation});
}

int32_t LoadKernels() {
  using elementwise::LoadKernels;
  for (const auto load :
       {LoadKernels<Forward, TwoInputCut>, LoadKernels<Backward, ThreeInputCut>,
        LoadKernels<GeneralForward, TwoInputCut>, LoadKernels<GeneralBackward, ThreeInputCut>,
        LoadKernels<GeneralForward, AlternatingTwoInputCut, true>,
        LoadKernels<GeneralBackward, AlternatingThreeInputCut, true>}) {
    if (const int32_t error = load()) return error;
  }
  return cudaSuccess;
}

}  // namespace fuseboard::swiglu
