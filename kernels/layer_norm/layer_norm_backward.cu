#include <algorithm>

#include "kernels/common/launch.cuh"
#include "kernels/common/matrix_overlap.h"
#include "kernels/common/row_alignment.h"
#include "kernels/common/sum_partials.cuh"
#include "kernels/layer_norm/layer_norm_backward.cuh"
#include "kernels/layer_norm/layer_norm_backward_looping.cuh"
#include "kernels/layer_norm/layer_norm_call.h"
#include "kernels/layer_norm/layer_norm_cuda.h"
#include "kernels/layer_norm/layer_norm_policy.h"
#include "kernels/rms_norm/few_rows_launch.cuh"
#include "kernels/rms_norm/wide_launch.cuh"

namespace fuseboard::layer_norm {
namespace {

using rms_norm::Policy;
using BackwardKernel = void (*)(BackwardArgs);

template <typename X, bool kBias>
BackwardKernel SelectKernel(int packs, bool cluster) {
  switch (packs) {
    case 1:
      return LayerNormBackwardKernel<X, kBias, 1, false>;
    case 2:
      return LayerNormBackwardKernel<X, kBias, 2, false>;
    case 3:
      return LayerNormBackwardKernel<X, kBias, 3, false>;
    case 4:
      return cluster ? LayerNormBackwardKernel<X, kBias, 4, true>
                     : LayerNormBackwardKernel<X, kBias, 4, false>;
    case 8:
      return LayerNormBackwardKernel<X, kBias, 8, true>;
    default:
      return LayerNormBackwardLoopingKernel<X>;
  }
}

BackwardKernel SelectKernel(int32_t dtype, bool bias, int packs, bool cluster) {
  return DispatchFloat(dtype, [&](auto tag) {
    using X = typename decltype(tag)::type;
    return bias ? SelectKernel<X, true>(packs, cluster) : SelectKernel<X, false>(packs, cluster);
  });
}

// For rows that begin anywhere.
template <typename X, bool kBias>
BackwardKernel SelectUnalignedKernel(int packs, bool cluster) {
  if (packs == 3) return LayerNormBackwardKernel<X, kBias, 3, false, true>;
  return cluster ? LayerNormBackwardKernel<X, kBias, 4, true, true>
                 : LayerNormBackwardKernel<X, kBias, 4, false, true>;
}

BackwardKernel SelectUnalignedKernel(int32_t dtype, bool bias, int packs, bool cluster) {
  return DispatchFloat(dtype, [&](auto tag) {
    using X = typename decltype(tag)::type;
    return bias ? SelectUnalignedKernel<X, true>(packs, cluster)
                : SelectUnalignedKernel<X, false>(packs, cluster);
  });
}

// How a call is cut, and the number of partial sums of each parameter.
struct Plan {
  Policy policy;
  int64_t blocks;
  int64_t sums;
  int shared_bytes;
};

bool InPacks(const BackwardCall& b, int bytes) {
  const bool weight = IsAbsent(b.weight) || reinterpret_cast<uintptr_t>(b.weight.data) % 16 == 0;
  return b.hidden % (16 / bytes) == 0 && IsAlignedRows(b.x, bytes, 16) &&
         IsAlignedRows(b.dy, bytes, 16) && weight &&
         (IsAbsent(b.dx) || IsAlignedRows(b.dx, bytes, 16));
}

bool AreRowsAlike(const BackwardCall& b) {
  RowAlignment alignment;
  alignment.Add(b.x);
  alignment.Add(b.dy);
  if (!IsAbsent(b.dx)) alignment.Add(b.dx);
  return alignment.alike();
}

// Without the kernels for wide rows.
Policy OtherPolicyOf(const FbCall& call, const BackwardCall& b) {
  const int bytes = b.x.dtype == FB_F32 ? 4 : 2;
  const int64_t row_packs = b.hidden * bytes / 16;
  Policy policy = {};
  if (InPacks(b, bytes)) {
    policy = SelectBackward(call.sm, row_packs, bytes);
  } else if (b.hidden >= rms_norm::kLeastUnalignedCenteredBackward && AreRowsAlike(b)) {
    policy = SelectBackward(call.sm, row_packs, bytes, /*unaligned=*/true);
  }
  return policy.packs == 0 ? rms_norm::SelectLooping(b.hidden) : policy;
}

Policy PolicyOf(const FbCall& call, const BackwardCall& b) {
  const int bytes = b.x.dtype == FB_F32 ? 4 : 2;
  const bool alike = IsAbsent(b.weight) || b.weight.dtype == b.x.dtype;
  if (alike && InPacks(b, bytes)) {
    const int64_t row_packs = b.hidden * bytes / 16;
    const Policy few = rms_norm::SelectFewRows(b.rows, row_packs);
    const bool apart = IsAbsent(b.dx) || (AreDisjoint(b.dx, b.x) && AreDisjoint(b.dx, b.dy));
    if (few.packs != 0 && apart) return few;
    const Policy wide = SelectWideBackward(call.sm, row_packs);
    if (wide.packs != 0 && !IsAbsent(b.dx)) return wide;
  }
  return OtherPolicyOf(call, b);
}

Plan PlanOf(const FbCall& call, const BackwardCall& b, const Policy& policy) {
  Plan plan = {};
  plan.policy = policy;
  if (policy.few_rows) return plan;  // No sums.
  if (plan.policy.packs == 0) {
    plan.blocks = rms_norm::LoopingBackwardBlocks(plan.policy, b.rows, b.hidden, call.sm_count);
    plan.sums = plan.blocks * plan.policy.rows_per_block;
    return plan;
  }
  const int bytes = b.x.dtype == FB_F32 ? 4 : 2;
  plan.blocks = rms_norm::BackwardBlocks(plan.policy, b.rows, call.sm_count);
  plan.sums = plan.blocks / plan.policy.cluster;
  plan.shared_bytes = static_cast<int>(rms_norm::BackwardSharedBytes(plan.policy, bytes, bytes));
  return plan;
}

void* DataOf(const FbTensor& tensor) { return IsAbsent(tensor) ? nullptr : tensor.data; }

rms_norm::GradientArgs GradientArgsOf(const BackwardCall& b) {
  rms_norm::GradientArgs args = rms_norm::GradientArgsOf(b);
  args.mean = static_cast<const float*>(b.mean.data);
  return args;
}

rms_norm::WideBackwardArgs WideArgsOf(const BackwardCall& b, float* of_weight, float* of_bias) {
  return {GradientArgsOf(b), of_weight, of_bias, b.rows, b.hidden};
}

rms_norm::FewRowsArgs FewRowsArgsOf(const BackwardCall& b) {
  rms_norm::FewRowsArgs args = {};
  static_cast<rms_norm::GradientArgs&>(args) = GradientArgsOf(b);
  args.dweight = DataOf(b.dweight);
  args.dbias = DataOf(b.dbias);
  args.dweight_dtype = b.dweight.dtype;
  args.dbias_dtype = b.dbias.dtype;
  return args;
}

}  // namespace

uint64_t BackwardCudaWorkspace(const FbCall* call) {
  const BackwardCall b = BackwardOf(*call);
  const int parameters = (IsAbsent(b.dweight) ? 0 : 1) + (IsAbsent(b.dbias) ? 0 : 1);
  if (parameters == 0) return 0;
  const Policy policy = PolicyOf(*call, b);
  int64_t sums = PlanOf(*call, b, policy).sums;
  if (rms_norm::MayNotRun(policy, call->sm_count)) {
    sums = std::max(sums, PlanOf(*call, b, OtherPolicyOf(*call, b)).sums);
  }
  return static_cast<uint64_t>(sums * b.hidden * parameters) * sizeof(float);
}

int32_t LaunchBackward(const FbCall& call, const Policy& wanted, void* workspace) {
  const BackwardCall b = BackwardOf(call);
  const bool has_dweight = !IsAbsent(b.dweight);
  const bool has_dbias = !IsAbsent(b.dbias);
  if (IsAbsent(b.dx) && !has_dweight && !has_dbias) return cudaSuccess;
  if (wanted.few_rows) {
    return rms_norm::LaunchFewRows</*kCenter=*/true, /*kAdd=*/false>(
        call, b.x.dtype, wanted, b.rows, b.hidden, FewRowsArgsOf(b));
  }

  constexpr auto kRuns = rms_norm::RunsWideBackward</*kCenter=*/true, /*kAdd=*/false>;
  const bool other = wanted.wide && !kRuns(call, b.x.dtype, b.hidden, wanted);
  const Plan plan = PlanOf(call, b, other ? OtherPolicyOf(call, b) : wanted);
  auto* const partials = static_cast<float*>(workspace);
  float* const of_weight = has_dweight ? partials : nullptr;
  float* const of_bias = has_dbias ? partials + (has_dweight ? plan.sums * b.hidden : 0) : nullptr;
  if (plan.blocks > 0 && plan.policy.wide) {
    const cudaError_t error = rms_norm::LaunchWideBackward</*kCenter=*/true, /*kAdd=*/false>(
        call, b.x.dtype, plan.policy, WideArgsOf(b, of_weight, of_bias));
    if (error != cudaSuccess) return error;
  } else if (plan.blocks > 0) {
    const LaunchShape shape = {
        .blocks = plan.blocks,
        .threads = dim3(plan.policy.threads_per_row, plan.policy.rows_per_block),
        .cluster = plan.policy.cluster,
        .shared_bytes = plan.shared_bytes,
        .stream = static_cast<cudaStream_t>(call.stream)};
    const BackwardArgs args = {.dy = b.dy.data,
                               .x = b.x.data,
                               .weight = DataOf(b.weight),
                               .mean = static_cast<const float*>(b.mean.data),
                               .rstd = static_cast<const float*>(b.rstd.data),
                               .dx = DataOf(b.dx),
                               .weight_partials = of_weight,
                               .bias_partials = of_bias,
                               .dy_stride = b.dy.stride[0],
                               .x_stride = b.x.stride[0],
                               .dx_stride = b.dx.stride[0],
                               .rows = b.rows,
                               .hidden = b.hidden,
                               .weight_dtype = b.weight.dtype,
                               .stages = plan.policy.stages,
                               .shared_weight = plan.policy.shared_weight};
    const bool cluster = plan.policy.cluster > 1;
    const BackwardKernel kernel =
        plan.policy.classes > 0
            ? SelectUnalignedKernel(b.x.dtype, has_dbias, plan.policy.packs, cluster)
            : SelectKernel(b.x.dtype, has_dbias, plan.policy.packs, cluster);
    if (const cudaError_t error = LaunchKernel(kernel, shape, args)) return error;
  }
  const auto sums_of = [&](const float* of, const FbTensor& out) {
    if (IsAbsent(out)) return PartialSums{};
    return PartialSums{of, plan.sums, b.hidden, out.data, out.dtype};
  };
  return LaunchTwoSums(sums_of(of_weight, b.dweight), sums_of(of_bias, b.dbias),
                       call.sm >= 90 && plan.blocks > 0, call.stream);
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  return LaunchBackward(*call, PolicyOf(*call, BackwardOf(*call)), workspace);
}

int32_t LoadBackwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const bool bias : {true, false}) {
      for (const auto& [packs, cluster] : kBackwardForms) {
        const cudaError_t error = LoadKernel(SelectKernel(dtype, bias, packs, cluster), packs > 0);
        if (error != cudaSuccess) return error;
      }
      for (const auto& [packs, cluster] : kUnalignedBackwardForms) {
        const cudaError_t error = LoadKernel(SelectUnalignedKernel(dtype, bias, packs, cluster),
                                             /*much_shared=*/true);
        if (error != cudaSuccess) return error;
      }
    }
  }
  constexpr auto kLoadFewRows = rms_norm::LoadFewRowsKernels</*kCenter=*/true, /*kAdd=*/false>;
  for (const auto load : {kLoadFewRows, LoadSumPartials}) {
    if (const cudaError_t error = load()) return error;
  }
  return rms_norm::LoadWideKernels</*kCenter=*/true, /*kAdd=*/false, /*kForward=*/false>();
}

}  // namespace fuseboard::layer_norm
