#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reject.h"
#include "kernels/common/rescale.cuh"
#include "kernels/common/rescale.h"

namespace fuseboard {
namespace {

using rescale::DefaultCut;
using rescale::Rounds;

template <typename T>
rescale::Gradient<T> GradientOf(const FbTensor& tensor) {
  constexpr int kLanes = kPackLanes<T>;
  const int64_t past = reinterpret_cast<uintptr_t>(tensor.data) % 16 / sizeof(T);
  const int64_t head = std::min<int64_t>((kLanes - past) % kLanes, tensor.shape[0]);
  const int64_t runs = (tensor.shape[0] - head) / kLanes;
  return {static_cast<T*>(tensor.data), runs, static_cast<int32_t>(head),
          static_cast<int32_t>(tensor.shape[0] - runs * kLanes)};
}

template <typename T>
cudaError_t Launch(const FbCall& call) {
  const rescale::Gradient<T> gradient = GradientOf<T>(call.outputs[0]);
  const Rounds rounds = RoundsOf(gradient.runs, call.sm_count, DefaultCut());
  const LaunchShape shape = {.blocks = int64_t{rounds.blocks} * rounds.count,
                             .threads = DefaultCut::kThreads,
                             .dependent = call.sm >= 90,
                             .stream = static_cast<cudaStream_t>(call.stream)};
  return LaunchKernel(rescale::RescaleKernel<T, DefaultCut>, shape, gradient, rounds,
                      static_cast<const float*>(call.inputs[0].data));
}

}  // namespace

const char* RejectRescaleCuda(const FbCall* call) {
  if (const char* why = CheckBareCall(call, FB_CUDA, 1, 1)) return why;
  const FbTensor& factor = call->inputs[0];
  if (const char* why = CheckVector(*call, "factor", factor, 1, VectorStride::kAny)) return why;
  if (const char* why = CheckDType("factor", factor, FB_F32)) return why;
  const FbTensor& gradient = call->outputs[0];
  if (const char* why = CheckFloatDType("gradient", gradient)) return why;
  return CheckVector(*call, "gradient", gradient, gradient.shape[0], VectorStride::kOne);
}

int32_t RescaleCuda(const FbCall* call, void* /*workspace*/) {
  const FbTensor& gradient = call->outputs[0];
  if (gradient.shape[0] == 0) return cudaSuccess;
  return DispatchFloat(gradient.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Launch<T>(*call);
  });
}

int32_t LoadRescaleKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const cudaError_t error = DispatchFloat(dtype, [](auto tag) {
      return LoadKernel(rescale::RescaleKernel<typename decltype(tag)::type, DefaultCut>);
    });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fuseboard
