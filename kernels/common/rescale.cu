#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reject.h"
#include "kernels/common/rescale.h"
#include "kernels/common/vector.cuh"

namespace fuseboard {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // Runs of one thread that are under way at once.
// A grid that is resident at once: with factor 1 every block only looks at the factor.
constexpr int kBlocksPerSm = 6;  // sm_86 has room for 1,536 threads.

template <typename T, int kLanes>
__device__ __forceinline__ void ScaleRun(T* address, const Lanes<T, kLanes>& run, float factor) {
  float x[kLanes];
  Unpack<T, kLanes>(run, x);
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) x[lane] *= factor;
  StoreFloats<T, kLanes>(address, x);
}

// `runs` runs of kLanes elements.
template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    RescaleKernel(T* __restrict__ gradient, int64_t runs, const float* __restrict__ factor_at) {
  const float factor = *factor_at;
  if (factor == 1.0f) return;
  constexpr int64_t kTile = int64_t{kThreads} * kUnroll;
  for (int64_t tile = blockIdx.x * kTile; tile < runs; tile += gridDim.x * kTile) {
    Lanes<T, kLanes> in[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t run = tile + u * kThreads + threadIdx.x;
      if (run < runs) in[u] = LoadLanes<T, kLanes>(gradient + run * kLanes);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t run = tile + u * kThreads + threadIdx.x;
      if (run < runs) ScaleRun<T, kLanes>(gradient + run * kLanes, in[u], factor);
    }
  }
}

template <typename T>
cudaError_t Launch(const FbCall& call, bool packs) {
  const FbTensor& gradient = call.outputs[0];
  const int64_t runs = packs ? gradient.shape[0] / kPackLanes<T> : gradient.shape[0];
  const int64_t tiles = (runs + kThreads * kUnroll - 1) / (kThreads * kUnroll);
  const LaunchShape shape = {
      .blocks = std::min<int64_t>(tiles, int64_t{call.sm_count} * kBlocksPerSm),
      .threads = kThreads,
      .stream = static_cast<cudaStream_t>(call.stream)};
  const auto kernel = packs ? RescaleKernel<T, kPackLanes<T>> : RescaleKernel<T, 1>;
  return LaunchKernel(kernel, shape, static_cast<T*>(gradient.data), runs,
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
    const bool aligned = reinterpret_cast<uintptr_t>(gradient.data) % 16 == 0;
    return Launch<T>(*call, aligned && gradient.shape[0] % kPackLanes<T> == 0);
  });
}

int32_t LoadRescaleKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const cudaError_t error = DispatchFloat(dtype, [](auto tag) {
      using T = typename decltype(tag)::type;
      const cudaError_t packs = LoadKernel(RescaleKernel<T, kPackLanes<T>>);
      const cudaError_t singles = LoadKernel(RescaleKernel<T, 1>);
      return packs != cudaSuccess ? packs : singles;
    });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fuseboard
