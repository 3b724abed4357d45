#include <algorithm>
#include <initializer_list>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/cross_entropy/cross_entropy_cuda.h"
#include "kernels/cross_entropy/entropy_kernel.cuh"
#include "kernels/cross_entropy/ring_launch.h"
#include "kernels/cross_entropy/row_kernel.cuh"

namespace fuseboard::cross_entropy {
namespace {

// Calls fn(Mode<T, general, kEntropy>{}).
template <bool kEntropy = false, typename Fn>
cudaError_t DispatchMode(const Problem& problem, Fn&& fn) {
  return DispatchFloat(problem.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return IsPlain(problem) ? fn(Mode<T, false, kEntropy>{}) : fn(Mode<T, true, kEntropy>{});
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

cudaError_t LaunchEntropy(const Problem& problem, const CudaTarget& target) {
  constexpr int kBlocksPerSm = 8;
  const LaunchShape shape = ShapeOf(problem.rows, 1, kEntropyThreads, kBlocksPerSm, target);
  return DispatchMode(problem, [&](auto mode) {
    return LaunchKernel(EntropyKernel<decltype(mode)>, shape, problem);
  });
}

Pass PassOf(const Problem& problem) {
  if (problem.dlogits == nullptr) return Pass::kLoss;
  if (IsPlain(problem)) return Pass::kPlainGradient;
  return problem.softcap != 0 ? Pass::kCappedGradient : Pass::kGradient;
}

bool NeedsWeightSum(const Problem& problem) {
  return problem.class_weight != nullptr && problem.label_smoothing != 0;
}

cudaError_t FirstError(std::initializer_list<cudaError_t> errors) {
  for (const cudaError_t error : errors) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Calls fn(mode) for every mode of a forward; returns the first error.
template <typename Fn>
cudaError_t ForEachMode(Fn fn) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const float softcap : {0.0f, 1.0f}) {
      Problem problem{};
      problem.dtype = dtype;
      problem.softcap = softcap;
      problem.logit_scale = 1.0f;
      const cudaError_t error = DispatchMode(problem, fn);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
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
  const auto launch = [&](auto mode) {
    using M = decltype(mode);
    return warp ? LaunchKernel(BackwardKernel<M, true>, shape, problem, weight_sum, tiles, units)
                : LaunchKernel(BackwardKernel<M, false>, shape, problem, weight_sum, tiles,
                               kTileUnits);
  };
  return problem.dentropy == nullptr ? DispatchMode(problem, launch)
                                     : DispatchMode<true>(problem, launch);
}

int32_t LoadEntropyKernels() {
  return ForEachMode([](auto mode) {
    using M = decltype(mode);
    using WithEntropy = Mode<typename M::T, M::kGeneral, true>;
    return FirstError({LoadKernel(EntropyKernel<M>), LoadKernel(BackwardKernel<WithEntropy, true>),
                       LoadKernel(BackwardKernel<WithEntropy, false>)});
  });
}

int32_t LoadRowKernels() {
  const cudaError_t error = LoadKernel(SumKernel);
  if (error != cudaSuccess) return error;
  return ForEachMode([](auto mode) {
    using M = decltype(mode);
    return FirstError({LoadKernel(RowKernel<M, true>), LoadKernel(RowKernel<M, false>),
                       LoadKernel(BackwardKernel<M, true>), LoadKernel(BackwardKernel<M, false>)});
  });
}

uint64_t BackwardWorkspaceBytes(const FbCall* call) {
  return NeedsWeightSum(UnpackBackward(*call)) ? sizeof(float) : 0;
}

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  const Problem problem = UnpackForward(*call);
  if (problem.rows == 0) return cudaSuccess;
  const Policy policy =
      SelectPolicy(call->sm, problem.vocab, ElementBytes(problem), PassOf(problem));
  const CudaTarget target{call->device_index, call->sm_count, call->stream};
  const int32_t error = LaunchForward(problem, policy, target);
  if (error != cudaSuccess || problem.entropy == nullptr) return error;
  return LaunchEntropy(problem, target);
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  const Problem problem = UnpackBackward(*call);
  if (problem.rows == 0) return cudaSuccess;
  return LaunchBackward(problem, static_cast<float*>(workspace),
                        {call->device_index, call->sm_count, call->stream});
}

}  // namespace fuseboard::cross_entropy
