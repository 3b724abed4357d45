#include <algorithm>

#include "kernels/common/launch.cuh"
#include "kernels/rms_norm/rms_norm_backward.cuh"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rms_norm/rms_norm_policy.h"

namespace fuseboard::rms_norm {

__global__ void __launch_bounds__(kDweightColumns* kDweightLanes)
    RmsNormDweightKernel(const float* partials, int64_t count, int64_t hidden, void* dweight,
                         int32_t dtype) {
  __shared__ float sums[kDweightLanes][kDweightColumns];
  WaitForPredecessor();
  const int64_t column = int64_t{blockIdx.x} * kDweightColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < hidden) {
#pragma unroll 8
    for (int64_t i = threadIdx.y; i < count; i += kDweightLanes) {
      sum += partials[i * hidden + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= hidden) return;
  for (int lane = 1; lane < kDweightLanes; ++lane) sum += sums[lane][threadIdx.x];
  StoreFloatOf(dtype, dweight, column, sum);
}

namespace {

using BackwardKernel = void (*)(BackwardArgs);

template <typename X, typename DY>
BackwardKernel SelectKernel(int packs) {
  switch (packs) {
    case 1:
      return RmsNormBackwardKernel<X, DY, 1>;
    case 2:
      return RmsNormBackwardKernel<X, DY, 2>;
    case 4:
      return RmsNormBackwardKernel<X, DY, 4>;
    case 8:
      return RmsNormBackwardKernel<X, DY, 8>;
    default:
      return RmsNormBackwardLoopingKernel<X, DY>;
  }
}

// dy has the dtype of x or f32.
BackwardKernel SelectKernel(int32_t x_dtype, bool same_dy, int packs) {
  return DispatchFloat(x_dtype, [&](auto tag) {
    using X = typename decltype(tag)::type;
    return same_dy ? SelectKernel<X, X>(packs) : SelectKernel<X, float>(packs);
  });
}

// How a call is cut, and the number of partial sums of dweight.
struct Plan {
  Policy policy;
  int64_t blocks;
  int64_t sums;
  int shared_bytes;
};

bool InPacks(const BackwardCall& b, int x_bytes, int dy_bytes) {
  const bool weight = IsAbsent(b.weight) || reinterpret_cast<uintptr_t>(b.weight.data) % 16 == 0;
  const bool dx = IsAbsent(b.dx) || IsAlignedRows(b.dx, x_bytes, 16);
  return b.norm.hidden % (16 / x_bytes) == 0 && IsAlignedRows(b.x, x_bytes, 16) &&
         IsAlignedRows(b.dy, dy_bytes, 16) && weight && dx;
}

Policy SelectPolicy(const FbCall& call, const BackwardCall& b) {
  const int x_bytes = b.x.dtype == FB_F32 ? 4 : 2;
  const int dy_bytes = b.dy.dtype == FB_F32 ? 4 : 2;
  Policy policy = {};
  if (InPacks(b, x_bytes, dy_bytes)) {
    policy = SelectBackward(call.sm, b.norm.hidden * x_bytes / 16, x_bytes, dy_bytes);
  }
  return policy.packs == 0 ? SelectLooping(b.norm.hidden) : policy;
}

Plan PlanOf(const FbCall& call, const BackwardCall& b, const Policy& policy) {
  const auto [rows, hidden] = std::pair{b.norm.rows, b.norm.hidden};
  Plan plan = {};
  plan.policy = policy;
  if (policy.packs == 0) {
    plan.blocks = LoopingBackwardBlocks(policy, rows, hidden, call.sm_count);
    plan.sums = plan.blocks * policy.rows_per_block;
    return plan;
  }
  plan.blocks = BackwardBlocks(policy, rows, call.sm_count);
  plan.sums = plan.blocks / policy.cluster;
  plan.shared_bytes = static_cast<int>(
      BackwardSharedBytes(policy, b.x.dtype == FB_F32 ? 4 : 2, b.dy.dtype == FB_F32 ? 4 : 2));
  return plan;
}

}  // namespace

uint64_t BackwardCudaWorkspace(const FbCall* call) {
  const BackwardCall b = BackwardOf(*call);
  if (IsAbsent(b.dweight)) return 0;
  return static_cast<uint64_t>(PlanOf(*call, b, SelectPolicy(*call, b)).sums * b.norm.hidden) *
         sizeof(float);
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  return LaunchBackward(*call, SelectPolicy(*call, BackwardOf(*call)), workspace);
}

int32_t LaunchBackward(const FbCall& call, const Policy& policy, void* workspace) {
  const BackwardCall b = BackwardOf(call);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const bool has_dweight = !IsAbsent(b.dweight);
  if (IsAbsent(b.dx) && !has_dweight) return cudaSuccess;

  const Plan plan = PlanOf(call, b, policy);
  if (plan.blocks > 0) {
    const LaunchShape shape = {
        .blocks = plan.blocks,
        .threads = dim3(plan.policy.threads_per_row, plan.policy.rows_per_block),
        .cluster = plan.policy.cluster,
        .shared_bytes = plan.shared_bytes,
        .stream = stream};
    const BackwardArgs args = {.dy = b.dy.data,
                               .x = b.x.data,
                               .weight = IsAbsent(b.weight) ? nullptr : b.weight.data,
                               .rstd = static_cast<const float*>(b.rstd.data),
                               .dx = IsAbsent(b.dx) ? nullptr : b.dx.data,
                               .partials = has_dweight ? static_cast<float*>(workspace) : nullptr,
                               .dy_stride = b.dy.stride[0],
                               .x_stride = b.x.stride[0],
                               .dx_stride = b.dx.stride[0],
                               .weight_dtype = b.weight.dtype,
                               .stages = plan.policy.stages,
                               .shared_weight = plan.policy.shared_weight,
                               .norm = b.norm};
    const BackwardKernel kernel =
        SelectKernel(b.x.dtype, b.dy.dtype == b.x.dtype, plan.policy.packs);
    if (const cudaError_t error = LaunchKernel(kernel, shape, args)) return error;
  }
  if (!has_dweight) return cudaSuccess;
  const LaunchShape shape = {.blocks = CeilDiv(b.norm.hidden, kDweightColumns),
                             .threads = dim3(kDweightColumns, kDweightLanes),
                             .dependent = call.sm >= 90 && plan.blocks > 0,
                             .stream = stream};
  return LaunchKernel(RmsNormDweightKernel, shape, static_cast<const float*>(workspace), plan.sums,
                      b.norm.hidden, b.dweight.data, b.dweight.dtype);
}

int32_t LoadBackwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int packs : {0, 1, 2, 4, 8}) {
      for (const bool same_dy : {true, false}) {
        const cudaError_t error = LoadKernel(SelectKernel(dtype, same_dy, packs));
        if (error != cudaSuccess) return error;
      }
    }
  }
  return LoadKernel(RmsNormDweightKernel);
}

}  // namespace fuseboard::rms_norm
