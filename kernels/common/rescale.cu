#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reject.h"
#include "kernels/common/rescale.cuh"
#include "kernels/common/rescale.h"

namespace fuseboard {
namespace {

using rescale::DefaultCut;
using rescale::Plan;

template <typename T>
rescale::Gradient<T> GradientOf(const FbTensor& tensor) {
  constexpr int kLanes = kPackLanes<T>;
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data) % 16 / sizeof(T));
  const int64_t head = std::min<int64_t>((kLanes - past) % kLanes, tensor.shape[0]);
  const int64_t runs = (tensor.shape[0] - head) / kLanes;
  return {static_cast<T*>(tensor.data), runs, static_cast<int32_t>(head),
          static_cast<int32_t>(tensor.shape[0] - runs * kLanes)};
}

Plan PlanOf(const FbCall& call) {
  const FbTensor& gradient = call.outputs[0];
  const int64_t bytes = gradient.shape[0] * (gradient.dtype == FB_F32 ? 4 : 2);
  return rescale::PlanOf(bytes, call.sm_count, DefaultCut());
}

template <typename T>
cudaError_t Launch(const FbCall& call, uint32_t* drawn) {
  const rescale::Gradient<T> gradient = GradientOf<T>(call.outputs[0]);
  const auto* factor = static_cast<const float*>(call.inputs[0].data);
  const Plan plan = PlanOf(call);
  const LaunchShape shape = {.blocks = plan.Grid(),
                             .threads = DefaultCut::kThreads,
                             .dependent = call.sm >= 90,
                             .stream = static_cast<cudaStream_t>(call.stream)};
  if (plan.rounds > 0) {
    return LaunchKernel(rescale::RescaleKernel<T, DefaultCut>, shape, gradient, plan, factor);
  }
  const cudaError_t error = cudaMemsetAsync(drawn, 0, sizeof(*drawn), shape.stream);
  if (error != cudaSuccess) return cudaGetLastError();
  return LaunchKernel(rescale::RescaleDrawnKernel<T, DefaultCut>, shape, gradient, plan, factor,
                      drawn);
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

uint64_t RescaleWorkspaceBytes(const FbCall* call) {
  return PlanOf(*call).rounds == 0 ? sizeof(uint32_t) : 0;
}

int32_t RescaleCuda(const FbCall* call, void* workspace) {
  const FbTensor& gradient = call->outputs[0];
  if (gradient.shape[0] == 0) return cudaSuccess;
  return DispatchFloat(gradient.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Launch<T>(*call, static_cast<uint32_t*>(workspace));
  });
}

int32_t LoadRescaleKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const cudaError_t error = DispatchFloat(dtype, [](auto tag) {
      using T = typename decltype(tag)::type;
      const cudaError_t rounds = LoadKernel(rescale::RescaleKernel<T, DefaultCut>);
      const cudaError_t drawn = LoadKernel(rescale::RescaleDrawnKernel<T, DefaultCut>);
      return rounds != cudaSuccess ? rounds : drawn;
    });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fuseboard
