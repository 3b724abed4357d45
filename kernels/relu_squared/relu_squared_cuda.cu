#include "kernels/elementwise/elementwise_launch.cuh"
#include "kernels/relu_squared/relu_squared_call.h"
#include "kernels/relu_squared/relu_squared_cuda.h"

namespace fuseboard::relu_squared {
namespace {

using elementwise::Launch;
using elementwise::NoParams;
using elementwise::OneInputCut;
using elementwise::TwoInputCut;

// The same for every dtype. NaN is not <= 0, and stays.
template <typename T>
struct Forward {
  static constexpr int kInputs = 1;  // x
  static constexpr int kOutputs = 1;
  using Params = NoParams;

  __device__ __forceinline__ static void Apply(const float (&in)[1], const Params& /*params*/,
                                               float (&out)[1]) {
    const float relu = in[0] <= 0.0f ? 0.0f : in[0];
    out[0] = relu * relu;
  }
};

template <typename T>
struct Backward {
  static constexpr int kInputs = 2;  // dy, x
  static constexpr int kOutputs = 1;
  using Params = NoParams;

  // Not dy * 2 relu(x): an infinite dy gives 0 where x is not positive.
  __device__ __forceinline__ static void Apply(const float (&in)[2], const Params& /*params*/,
                                               float (&out)[1]) {
    out[0] = in[1] <= 0.0f ? 0.0f : in[0] * (2.0f * in[1]);
  }
};

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
