#include "kernels/qk_norm_rope/packed_forward.cuh"
#include "kernels/qk_norm_rope/packed_launch.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_cuda.h"
#include "kernels/qk_norm_rope/qk_norm_rope_forward.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_launch.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_looping.cuh"
#include "kernels/qk_norm_rope/row_forward.cuh"

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

// Kernels that work on two floats at a time, or on rows of all heads with tables of f32.
enum class Packing { kNone, kRoundNormed, kHeads, kRows };
constexpr Packing kPackings[] = {Packing::kRoundNormed, Packing::kHeads, Packing::kRows};

PackedKernel SelectPacked(int32_t dtype, Packing packing) {
  return DispatchPacked(dtype, [&](auto tag) -> PackedKernel {
    using X = typename decltype(tag)::type;
    if (packing == Packing::kRows) return QkNormRopeRowForwardKernel<X, RowForwardCut>;
    return packing == Packing::kRoundNormed
               ? QkNormRopePackedForwardKernel<X, true, PackedForwardCut>
               : QkNormRopePackedForwardKernel<X, false, PackedForwardCut>;
  });
}

// Which of them the call takes; then `plan` is cut for it.
Packing CutPacking(const Call& call, PackedPlan* plan) {
  if (TakesRows(call)) return CutRows<RowForwardCut>(call, plan) ? Packing::kRows : Packing::kNone;
  const bool round_normed = call.norm.round_normed;
  const bool fits = TakesPacked(call) && (!round_normed || HasPlainWeights(call)) &&
                    CutPacked<PackedForwardCut>(call, plan);
  if (!fits) return Packing::kNone;
  return round_normed ? Packing::kRoundNormed : Packing::kHeads;
}

}  // namespace

int32_t ForwardCuda(const FbCall* raw, void* /*workspace*/) {
  const Call call = ForwardOf(*raw);
  PackedPlan packed;
  if (const Packing packing = CutPacking(call, &packed); packing != Packing::kNone) {
    const bool rows = packing == Packing::kRows;
    const LaunchShape shape = {
        .blocks = packed.blocks(),
        .threads = dim3(rows ? RowForwardCut::kThreads : PackedForwardCut::kThreads),
        .stream = static_cast<cudaStream_t>(raw->stream)};
    if (shape.blocks == 0) return cudaSuccess;
    return LaunchKernel(SelectPacked(call.dtype, packing), shape, call, packed);
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
    for (const Packing packing : kPackings) {
      const cudaError_t error = LoadKernel(SelectPacked(dtype, packing));
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
