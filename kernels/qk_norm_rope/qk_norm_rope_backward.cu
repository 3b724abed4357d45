#include "kernels/common/sum_partials.cuh"
#include "kernels/qk_norm_rope/packed_backward.cuh"
#include "kernels/qk_norm_rope/packed_launch.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_backward.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_cuda.h"
#include "kernels/qk_norm_rope/qk_norm_rope_launch.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_looping.cuh"
#include "kernels/qk_norm_rope/row_backward.cuh"

namespace fuseboard::qk_norm_rope {
namespace {

// The first two work on 16-bit floats: two at a time, or rows of all heads with tables of f32.
enum class Form { kPacked, kRows, kLooping, kHalf, kInterleaved, kAllHeads, kManyHeads };
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

PackedKernel SelectPacked(int32_t dtype, bool round_normed, Form form) {
  return DispatchPacked(dtype, [&](auto tag) -> PackedKernel {
    using X = typename decltype(tag)::type;
    if (form == Form::kRows) return QkNormRopeRowBackwardKernel<X, RowBackwardCut>;
    return round_normed ? QkNormRopePackedBackwardKernel<X, true, PackedBackwardCut>
                        : QkNormRopePackedBackwardKernel<X, false, PackedBackwardCut>;
  });
}

struct BackwardPlan {
  Plan plan;
  PackedPlan packed;  // Of the forms that are packed, in place of `plan`.
  Form form;
  dim3 threads;
  int64_t sums[2];  // Rows of partials, one or more per block.

  bool is_packed() const { return form == Form::kPacked || form == Form::kRows; }
};

// Completes a plan that is cut already.
template <typename C>
void SharePlan(const FbCall& raw, const Call& call, Form form, BackwardPlan* b) {
  SharePacked(call, int64_t{raw.sm_count} * C::kBlocksPerSm, &b->packed);
  b->form = form;
  b->threads = dim3(C::kThreads);
  for (int i = 0; i < 2; ++i) b->sums[i] = b->packed.side[i].blocks;
}

bool FitsPacked(const FbCall& raw, const Call& call, BackwardPlan* b) {
  if (TakesRows(call) && CutRows<RowBackwardCut>(call, &b->packed)) {
    SharePlan<RowBackwardCut>(raw, call, Form::kRows, b);
    return true;
  }
  if (!TakesPacked(call) || !CutPacked<PackedBackwardCut>(call, &b->packed)) return false;
  SharePlan<PackedBackwardCut>(raw, call, Form::kPacked, b);
  return true;
}

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
  if (FitsPacked(raw, call, &b)) return b;
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

// `partials`: those of q, then those of k.
cudaError_t SumWeights(const FbCall& raw, const Call& call, const BackwardPlan& b,
                       const float* partials, bool launched) {
  const auto of = [&](int i, const float* first) {
    const Side& side = call.side[i];
    // A sum over no rows is 0.
    if (IsAbsent(side.dweight)) return PartialSums{};
    return PartialSums{first, b.sums[i], FeaturesOf(call, side), side.dweight.data,
                       side.dweight.dtype};
  };
  return LaunchTwoSums(of(0, partials), of(1, partials + PartialsOf(call, b, 0)),
                       raw.sm >= 90 && launched, raw.stream);
}

cudaError_t LaunchSides(const FbCall& raw, const Call& call, const BackwardPlan& b) {
  LaunchShape shape = {
      .blocks = b.is_packed() ? b.packed.blocks() : b.plan.side[0].blocks + b.plan.side[1].blocks,
      .threads = b.threads,
      .stream = static_cast<cudaStream_t>(raw.stream)};
  if (shape.blocks == 0) return cudaSuccess;
  if (b.is_packed()) {
    shape.shared_bytes = b.form == Form::kRows ? HeadRing<BFloat16, RowBackwardCut>::kBytes
                                               : HeadRing<BFloat16, PackedBackwardCut>::kBytes;
    const auto kernel = SelectPacked(call.dtype, call.norm.round_normed, b.form);
    return LaunchKernel(kernel, shape, call, b.packed);
  }
  const Kernel kernel = SelectKernel(call.dtype, call.dtype == call.result_dtype, b.form);
  return LaunchKernel(kernel, shape, call, b.plan);
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
  auto* const partials = static_cast<float*>(workspace);
  for (int i = 0; i < 2; ++i) {
    float* const first = partials + (i == 0 ? 0 : PartialsOf(call, b, 0));
    const bool wanted = !IsAbsent(call.side[i].dweight);
    b.plan.side[i].partials = b.packed.side[i].partials = wanted ? first : nullptr;
  }
  if (const cudaError_t error = LaunchSides(*raw, call, b)) return error;
  return SumWeights(*raw, call, b, partials, b.sums[0] + b.sums[1] > 0);
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
  for (const int32_t dtype : {FB_F16, FB_BF16}) {
    const PackedKernel kernels[] = {SelectPacked(dtype, true, Form::kPacked),
                                    SelectPacked(dtype, false, Form::kPacked),
                                    SelectPacked(dtype, false, Form::kRows)};
    for (const PackedKernel kernel : kernels) {
      const cudaError_t error = LoadKernel(kernel, /*much_shared=*/true);
      if (error != cudaSuccess) return error;
    }
  }
  return LoadSumPartials();
}

}  // namespace fuseboard::qk_norm_rope
