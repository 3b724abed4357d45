#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/cross_entropy/cross_entropy_cuda.h"
#include "kernels/cross_entropy/ring_launch.h"
#include "kernels/cross_entropy/row_kernel.cuh"

namespace fuseboard::cross_entropy {
namespace {

// Calls fn(Mode<T, general>{}).
template <typename Fn>
cudaError_t DispatchMode(const Problem& problem, Fn&& fn) {
  return DispatchFloat(problem.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return IsPlain(problem) ? fn(Mode<T, false>{}) : fn(Mode<T, true>{});
  });
}

LaunchShape ShapeOf(int64_t groups, int groups_per_block, int threads, int blocks_per_sm,
                    const CudaTarget& target) {
  LaunchShape shape;
  shape.blocks = std::min<int64_t>((groups + groups_per_block - 1) / groups_per_block,
                                   int64_t{target.sm_count} * blocks_per_sm);
  shape.threads = static_cast<unsigned>(threads);
  shape.stream = static_cast<cudaStream_t>(target.stream);
  return shape;
}

cudaError_t LaunchRows(const Problem& problem, const Policy& policy, const CudaTarget& target) {
  const bool warp = policy.algorithm == Algorithm::kWarpPerRow;
  const LaunchShape shape = ShapeOf(problem.rows, warp ? policy.threads / kWarpThreads : 1,
                                    policy.threads, policy.blocks_per_sm, target);
  return DispatchMode(problem, [&](auto mode) {
    using M = decltype(mode);
    return warp ? LaunchKernel(RowKernel<M, true>, shape, problem)
                : LaunchKernel(RowKernel<M, false>, shape, problem);
  });
}

bool NeedsWeightSum(const Problem& problem) {
  return problem.class_weight != nullptr && problem.label_smoothing != 0;
}

}  // namespace

int32_t LaunchForward(const Problem& problem, const Policy& policy, const CudaTarget& target) {
  return policy.algorithm == Algorithm::kRing ? LaunchRing(problem, policy, target)
                                              : LaunchRows(problem, policy, target);
}

int32_t LaunchBackward(const Problem& problem, float* class_weight_sum, const CudaTarget& target) {
  const float* weight_sum = nullptr;
  if (NeedsWeightSum(problem)) {
    LaunchShape shape;
    shape.threads = kMaxRowThreads;
    shape.stream = static_cast<cudaStream_t>(target.stream);
    const cudaError_t error =
        LaunchKernel(SumKernel, shape, problem.class_weight, problem.vocab, class_weight_sum);
    if (error != cudaSuccess) return error;
    weight_sum = class_weight_sum;
  }
  constexpr int kThreads = 256;
  constexpr int kBlocksPerSm = 8;
  constexpr int kTileUnits = 4 * kThreads;  // One batch of loads.
  const bool warp = problem.vocab <= kMaxWarpVocab;
  const int units = problem.vocab / (16 / ElementBytes(problem)) + 1;
  const int tiles = warp ? 1 : (units + kTileUnits - 1) / kTileUnits;
  const LaunchShape shape = ShapeOf(problem.rows * tiles, warp ? kThreads / kWarpThreads : 1,
                                    kThreads, kBlocksPerSm, target);
  return DispatchMode(problem, [&](auto mode) {
    using M = decltype(mode);
    return warp ? LaunchKernel(BackwardKernel<M, true>, shape, problem, weight_sum, tiles, units)
                : LaunchKernel(BackwardKernel<M, false>, shape, problem, weight_sum, tiles,
                               kTileUnits);
  });
}

int32_t LoadRowKernels() {
  cudaError_t error = LoadKernel(SumKernel);
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const float softcap : {0.0f, 1.0f}) {
      Problem problem{};
      problem.dtype = dtype;
      problem.softcap = softcap;
      problem.logit_scale = 1.0f;
      const cudaError_t loaded = DispatchMode(problem, [](auto mode) {
        using M = decltype(mode);
        const cudaError_t errors[] = {
            LoadKernel(RowKernel<M, true>), LoadKernel(RowKernel<M, false>),
            LoadKernel(BackwardKernel<M, true>), LoadKernel(BackwardKernel<M, false>)};
        for (const cudaError_t e : errors) {
          if (e != cudaSuccess) return e;
        }
        return cudaSuccess;
      });
      if (loaded != cudaSuccess) error = loaded;
    }
  }
  return error;
}

uint64_t BackwardWorkspaceBytes(const FbCall* call) {
  return NeedsWeightSum(UnpackBackward(*call)) ? sizeof(float) : 0;
}

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  const Problem problem = UnpackForward(*call);
  if (problem.rows == 0) return cudaSuccess;
  const Policy policy =
      SelectPolicy(call->sm, problem.vocab, ElementBytes(problem), problem.dlogits != nullptr);
  return LaunchForward(problem, policy, {call->device_index, call->sm_count, call->stream});
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  const Problem problem = UnpackBackward(*call);
  if (problem.rows == 0) return cudaSuccess;
  return LaunchBackward(problem, static_cast<float*>(workspace),
                        {call->device_index, call->sm_count, call->stream});
}

}  // namespace fuseboard::cross_entropy
