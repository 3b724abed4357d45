#include "kernels/qk_norm_rope/packed_forward.cuh"
#include "kernels/qk_norm_rope/packed_launch.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_cuda.h"
#include "kernels/qk_norm_rope/qk_norm_rope_forward.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_launch.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_looping.cuh"

namespace fuseboard::qk_norm_rope {
namespace {

enum class Form { kLooping, kHalf, kInterleaved, kAllHeads };
constexpr Form kForms[] = {Form::kLooping, Form::kHalf, Form::kInterleaved, Form::kAllHeads};

Kernel SelectKernel(int32_t dtype, bool same_result, Form form) {
  return DispatchTypes(dtype, same_result, [&](auto x_tag, auto y_tag) -> Kernel {
    using X = typename decltype(x_tag)::type;
    using Y = typename decltype(y_tag)::type;
    switch (form) {
      case Form::kHalf:
        return QkNormRopeForwardKernel<X, Y, false, false, ForwardCut>;
      case Form::kInterleaved:
        return QkNormRopeForwardKernel<X, Y, true, false, ForwardCut>;
      case Form::kAllHeads:
        return QkNormRopeForwardKernel<X, Y, false, true, ForwardAllHeadsCut>;
      default:
        return QkNormRopeForwardLoopingKernel<X, Y>;
    }
  });
}

// The form in whole runs, if the call has one; then `plan` is cut for it.
Form CutForm(const Call& call, Plan* plan) {
  if (!InRuns(call)) return Form::kLooping;
  const bool interleaved = call.rotation.interleaved;
  if (call.norm.all_heads) {
    return !interleaved && CutSides<ForwardAllHeadsCut>(call, plan) ? Form::kAllHeads
                                                                    : Form::kLooping;
  }
  if (!CutSides<ForwardCut>(call, plan)) return Form::kLooping;
  return interleaved ? Form::kInterleaved : Form::kHalf;
}

PackedKernel SelectPacked(int32_t dtype, bool round_normed) {
  return DispatchPacked(dtype, [&](auto tag) -> PackedKernel {
    using X = typename decltype(tag)::type;
    return round_normed ? QkNormRopePackedForwardKernel<X, true, PackedForwardCut>
                        : QkNormRopePackedForwardKernel<X, false, PackedForwardCut>;
  });
}

// Whether the call takes the kernels that rotate two floats at a time; then `plan` is cut for them.
bool FitsPacked(const Call& call, PackedPlan* plan) {
  return TakesPacked(call) && (!call.norm.round_normed || HasPlainWeights(call)) &&
         CutPacked<PackedForwardCut>(call, plan);
}

}  // namespace

int32_t ForwardCuda(const FbCall* raw, void* /*workspace*/) {
  const Call call = ForwardOf(*raw);
  if (PackedPlan plan; FitsPacked(call, &plan)) {
    const LaunchShape shape = {.blocks = plan.blocks(),
                               .threads = dim3(PackedForwardCut::kThreads),
                               .stream = static_cast<cudaStream_t>(raw->stream)};
    if (shape.blocks == 0) return cudaSuccess;
    return LaunchKernel(SelectPacked(call.dtype, call.norm.round_normed), shape, call, plan);
  }
  Plan plan = PlanOf(call, 16 / BytesOf(call.dtype));
  if (plan.side[0].rows + plan.side[1].rows == 0) return cudaSuccess;
  const Form form = CutForm(call, &plan);
  dim3 threads(form == Form::kAllHeads ? ForwardAllHeadsCut::kThreads : ForwardCut::kThreads);
  if (form == Form::kLooping) {
    plan = PlanOf(call, 1);
    const LoopingPolicy policy = LoopingPolicyOf(plan);
    threads = dim3(policy.threads_per_row, policy.rows_per_block);
    for (SidePlan& side : plan.side) {
      side.blocks = std::min(CeilDiv(side.rows, policy.rows_per_block), kMaxBlocks);
    }
  } else {
    for (SidePlan& side : plan.side) side.blocks = std::min(side.tiles.count, kMaxBlocks);
  }
  const LaunchShape shape = {.blocks = plan.side[0].blocks + plan.side[1].blocks,
                             .threads = threads,
                             .stream = static_cast<cudaStream_t>(raw->stream)};
  return LaunchKernel(SelectKernel(call.dtype, call.dtype == call.result_dtype, form), shape, call,
                      plan);
}

int32_t LoadForwardKernels() {
  for (const int32_t dtype : {FB_F16, FB_BF16}) {
    for (const bool round_normed : {true, false}) {
      const cudaError_t error = LoadKernel(SelectPacked(dtype, round_normed));
      if (error != cudaSuccess) return error;
    }
  }
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const bool same_result : {true, false}) {
      for (const Form form : kForms) {
        const cudaError_t error = LoadKernel(SelectKernel(dtype, same_result, form));
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::qk_norm_rope
