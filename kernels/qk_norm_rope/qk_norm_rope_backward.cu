#include "kernels/common/sum_partials.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_backward.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_cuda.h"
#include "kernels/qk_norm_rope/qk_norm_rope_launch.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_looping.cuh"

namespace fuseboard::qk_norm_rope {
namespace {

enum class Form { kLooping, kHalf, kInterleaved, kAllHeads, kManyHeads };
constexpr Form kForms[] = {Form::kLooping, Form::kHalf, Form::kInterleaved, Form::kAllHeads,
                           Form::kManyHeads};

Kernel SelectKernel(int32_t dtype, bool same_result, Form form) {
  return DispatchTypes(dtype, same_result, [&](auto x_tag, auto y_tag) -> Kernel {
    using X = typename decltype(x_tag)::type;
    using Y = typename decltype(y_tag)::type;
    switch (form) {
      case Form::kHalf:
        return QkNormRopeBackwardKernel<X, Y, false, false, BackwardCut>;
      case Form::kInterleaved:
        return QkNormRopeBackwardKernel<X, Y, true, false, BackwardInterleavedCut>;
      case Form::kAllHeads:
        return QkNormRopeBackwardKernel<X, Y, false, true, BackwardAllHeadsCut>;
      case Form::kManyHeads:
        return QkNormRopeBackwardKernel<X, Y, false, true, BackwardManyHeadsCut>;
      default:
        return QkNormRopeBackwardLoopingKernel<X, Y>;
    }
  });
}

struct BackwardPlan {
  Plan plan;
  Form form;
  dim3 threads;
  int64_t sums[2];  // Rows of partials.
};

template <typename C>
bool Fits(const FbCall& raw, const Call& call, BackwardPlan* b) {
  Plan plan = PlanOf(call, 16 / BytesOf(call.dtype));
  if (!CutSides<C>(call, &plan)) return false;
  ShareBlocks({plan.side[0].tiles.count, plan.side[1].tiles.count},
              int64_t{raw.sm_count} * C::kBlocksPerSm, &plan);
  b->plan = plan;
  b->threads = dim3(C::kThreads);
  for (int i = 0; i < 2; ++i) b->sums[i] = plan.side[i].blocks;
  return true;
}

// The form in whole runs, if the call has one; then `b` is cut for it.
Form CutForm(const FbCall& raw, const Call& call, BackwardPlan* b) {
  if (!InRuns(call)) return Form::kLooping;
  const bool interleaved = call.rotation.interleaved;
  if (!call.norm.all_heads) {
    if (interleaved) {
      return Fits<BackwardInterleavedCut>(raw, call, b) ? Form::kInterleaved : Form::kLooping;
    }
    return Fits<BackwardCut>(raw, call, b) ? Form::kHalf : Form::kLooping;
  }
  if (interleaved) return Form::kLooping;
  if (Fits<BackwardAllHeadsCut>(raw, call, b)) return Form::kAllHeads;
  return Fits<BackwardManyHeadsCut>(raw, call, b) ? Form::kManyHeads : Form::kLooping;
}

BackwardPlan BackwardPlanOf(const FbCall& raw, const Call& call) {
  BackwardPlan b = {};
  b.form = CutForm(raw, call, &b);
  if (b.form != Form::kLooping) return b;
  b.plan = PlanOf(call, 1);
  const LoopingPolicy policy = LoopingPolicyOf(b.plan);
  const SidePlan(&side)[2] = b.plan.side;
  b.threads = dim3(policy.threads_per_row, policy.rows_per_block);
  ShareBlocks(
      {CeilDiv(side[0].rows, policy.rows_per_block), CeilDiv(side[1].rows, policy.rows_per_block)},
      LoopingBlocks(policy, std::max(side[0].features, side[1].features),
                    int64_t{raw.sm_count} * kLoopingBlocksPerSm),
      &b.plan);
  for (int i = 0; i < 2; ++i) b.sums[i] = b.plan.side[i].blocks * policy.rows_per_block;
  return b;
}

// Floats of the partials of a side, which begin with those of q.
int64_t PartialsOf(const Call& call, const BackwardPlan& b, int side) {
  const bool wanted = !IsAbsent(call.side[side].dweight);
  return wanted ? b.sums[side] * FeaturesOf(call, call.side[side]) : 0;
}

cudaError_t SumWeights(const FbCall& raw, const Call& call, const BackwardPlan& b, bool launched) {
  bool dependent = raw.sm >= 90 && launched;
  for (int i = 0; i < 2; ++i) {
    const Side& side = call.side[i];
    // A sum over no rows is 0.
    if (IsAbsent(side.dweight) || FeaturesOf(call, side) == 0) continue;
    const cudaError_t error =
        LaunchSumPartials(b.plan.side[i].partials, b.sums[i], FeaturesOf(call, side), side.dweight,
                          dependent, raw.stream);
    if (error != cudaSuccess) return error;
    dependent = false;  // The next one's predecessor is this, which allows no early launch.
  }
  return cudaSuccess;
}

}  // namespace

uint64_t BackwardCudaWorkspace(const FbCall* raw) {
  const Call call = BackwardOf(*raw);
  const BackwardPlan b = BackwardPlanOf(*raw, call);
  return static_cast<uint64_t>(PartialsOf(call, b, 0) + PartialsOf(call, b, 1)) * sizeof(float);
}

int32_t BackwardCuda(const FbCall* raw, void* workspace) {
  const Call call = BackwardOf(*raw);
  BackwardPlan b = BackwardPlanOf(*raw, call);
  auto* partials = static_cast<float*>(workspace);
  for (int i = 0; i < 2; ++i) {
    const bool wanted = !IsAbsent(call.side[i].dweight);
    b.plan.side[i].partials = wanted ? partials : nullptr;
    partials += PartialsOf(call, b, i);
  }
  const int64_t blocks = b.plan.side[0].blocks + b.plan.side[1].blocks;
  if (blocks > 0) {
    const LaunchShape shape = {
        .blocks = blocks, .threads = b.threads, .stream = static_cast<cudaStream_t>(raw->stream)};
    const Kernel kernel = SelectKernel(call.dtype, call.dtype == call.result_dtype, b.form);
    const cudaError_t error = LaunchKernel(kernel, shape, call, b.plan);
    if (error != cudaSuccess) return error;
  }
  return SumWeights(*raw, call, b, blocks > 0);
}

int32_t LoadBackwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const bool same_result : {true, false}) {
      for (const Form form : kForms) {
        const cudaError_t error = LoadKernel(SelectKernel(dtype, same_result, form));
        if (error != cudaSuccess) return error;
      }
    }
  }
  return LoadSumPartials();
}

}  // namespace fuseboard::qk_norm_rope
