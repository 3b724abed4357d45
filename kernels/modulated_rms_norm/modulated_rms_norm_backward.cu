#include <algorithm>
#include <initializer_list>
#include <utility>

#include "kernels/common/launch.cuh"
#include "kernels/common/matrix_overlap.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_backward.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_backward_slices.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_cuda.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_few_rows.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_policy.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_sums.cuh"
#include "kernels/modulated_rms_norm/wide_backward_launch.cuh"

namespace fuseboard::modulated_rms_norm {
namespace {

using rms_norm::Policy;
using Kernel = void (*)(BackwardArgs);

template <typename X, typename DY>
Kernel SelectKernel(int packs) {
  switch (packs) {
    case 1:
      return BackwardKernel<X, DY, 1>;
    case 2:
      return BackwardKernel<X, DY, 2>;
    case 4:
      return BackwardKernel<X, DY, 4>;
    default:
      return BackwardLoopingKernel<X, DY>;
  }
}

// dy has the dtype of x or f32.
Kernel SelectKernel(int32_t x_dtype, bool same_dy, int packs) {
  return DispatchFloat(x_dtype, [&](auto tag) {
    using X = typename decltype(tag)::type;
    return same_dy ? SelectKernel<X, X>(packs) : SelectKernel<X, float>(packs);
  });
}

template <typename X, typename DY>
Kernel SelectSlicesKernel(int packs, bool cluster) {
  if (packs == 2) return BackwardSlicesKernel<X, DY, 2, false>;
  return cluster ? BackwardSlicesKernel<X, DY, 4, true> : BackwardSlicesKernel<X, DY, 4, false>;
}

Kernel SelectSlicesKernel(int32_t x_dtype, bool same_dy, int packs, bool cluster) {
  return DispatchFloat(x_dtype, [&](auto tag) {
    using X = typename decltype(tag)::type;
    return same_dy ? SelectSlicesKernel<X, X>(packs, cluster)
                   : SelectSlicesKernel<X, float>(packs, cluster);
  });
}

using FewRowsKernel = void (*)(FewRowsArgs);

FewRowsKernel SelectFewRowsKernel(int32_t dtype, int packs) {
  return DispatchFloat(dtype, [&](auto tag) -> FewRowsKernel {
    using X = typename decltype(tag)::type;
    return packs == 2 ? FewRowsBackwardKernel<X, 2> : FewRowsBackwardKernel<X, 4>;
  });
}

int BytesOf(const FbTensor& tensor) { return tensor.dtype == FB_F32 ? 4 : 2; }

bool InPacks(const BackwardCall& b) {
  const auto aligned = [](const FbTensor& tensor) {
    return IsAbsent(tensor) || IsAlignedRows(tensor, BytesOf(tensor), 16);
  };
  const bool weight = IsAbsent(b.weight) || reinterpret_cast<uintptr_t>(b.weight.data) % 16 == 0;
  // The rows of dscale and dshift are whole runs if the first is aligned.
  const auto base_aligned = [](const FbTensor& tensor) {
    return IsAbsent(tensor) || reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
  };
  return b.norm.hidden % (16 / BytesOf(b.x)) == 0 && aligned(b.x) && aligned(b.dy) &&
         aligned(b.dx) && aligned(b.scale) && weight && base_aligned(b.dscale) &&
         base_aligned(b.dshift);
}

// How a call is cut, and where in the workspace, in floats, the sums of the slices go.
struct Plan {
  Policy policy;
  bool by_slices;  // BackwardSlicesKernel.
  Slices slices;
  int64_t slice_count;
  int64_t blocks;
  bool direct;
  bool dy_normed_sums;  // Wanted in the workspace.
  bool dy_sums;
  int64_t floats;
};

Slices CutSlices(const FbCall& call, const BackwardCall& b, const Policy& policy) {
  return SelectSlices(b.groups, b.group_rows, policy.rows_per_block,
                      Resident(policy, call.sm_count), !IsAbsent(b.dweight));
}

// The kernels for wide rows, or {}.
Policy SelectWide(const FbCall& call, const BackwardCall& b) {
  const auto alike = [&](const FbTensor& tensor) {
    return IsAbsent(tensor) || tensor.dtype == b.x.dtype;
  };
  const bool same =
      alike(b.dy) && alike(b.weight) && alike(b.scale) && alike(b.dscale) && alike(b.dshift);
  const bool dweight = IsAbsent(b.dweight) || reinterpret_cast<uintptr_t>(b.dweight.data) % 16 == 0;
  if (!same || !dweight || IsAbsent(b.dx) || b.norm.rows == 0 ||
      b.norm.rows > rms_norm::kMaxGroups || !InPacks(b)) {
    return {};
  }
  return SelectWideBackward(call.sm, b.norm.hidden * BytesOf(b.x) / 16, BytesOf(b.x));
}

// {} where the kernel for few rows is not made for the call.
Policy FewRowsPolicyOf(const BackwardCall& b, int64_t row_packs) {
  const int32_t dtype = b.x.dtype;
  const bool same = b.dy.dtype == dtype && b.scale.dtype == dtype &&
                    (IsAbsent(b.weight) || b.weight.dtype == dtype) &&
                    (IsAbsent(b.dshift) || b.dshift.dtype == dtype);
  const bool apart = IsAbsent(b.dx) || (AreDisjoint(b.dx, b.x) && AreDisjoint(b.dx, b.dy));
  return same && apart ? SelectFewBackward(b.norm.rows, row_packs) : Policy{};
}

// Fills in the policy, the kernel and the slices.
void SelectCut(const FbCall& call, const BackwardCall& b, Plan* plan) {
  Policy& policy = plan->policy;
  if (b.norm.rows > 0 && InPacks(b)) {
    const int64_t row_packs = b.norm.hidden * BytesOf(b.x) / 16;
    policy = FewRowsPolicyOf(b, row_packs);
    if (policy.few_rows) return;
    policy = SelectSlicesBackward(call.sm, row_packs, BytesOf(b.x), BytesOf(b.dy));
    if (policy.packs != 0 && !IsAbsent(b.dx)) {
      plan->slices = CutSlices(call, b, policy);
      plan->by_slices = plan->slices.rows >= int64_t{kManyTurns} * policy.rows_per_block;
      if (plan->by_slices) return;
    }
    policy = SelectBackward(call.sm, row_packs, BytesOf(b.x), BytesOf(b.dy));
  }
  if (policy.packs == 0) policy = SelectLooping(b.norm.hidden);
  plan->slices = CutSlices(call, b, policy);
}

// What the kernels for wide rows leave in the workspace, in floats.
struct WidePlan {
  int64_t dscale;   // Two rows to a cluster, if wanted.
  int64_t dshift;   // Likewise.
  int64_t dweight;  // A row.

  int64_t floats() const { return dscale + dshift + dweight; }
};

WidePlan WidePlanOf(const FbCall& call, const BackwardCall& b, const Policy& policy) {
  const int64_t floats = WideClusters(call, policy, b.norm.rows) * b.norm.hidden;
  return {.dscale = IsAbsent(b.dscale) ? 0 : 2 * floats,
          .dshift = IsAbsent(b.dshift) ? 0 : 2 * floats,
          .dweight = IsAbsent(b.dweight) ? 0 : floats};
}

// Without the kernels for wide rows.
Plan PlanOf(const FbCall& call, const BackwardCall& b) {
  Plan plan = {};
  SelectCut(call, b, &plan);
  if (plan.policy.few_rows) return plan;  // No sums.
  const int rows = plan.policy.rows_per_block;
  plan.slice_count = b.groups * plan.slices.per_group;
  plan.blocks = rms_norm::BackwardBlocks(plan.policy, plan.slice_count * rows, call.sm_count);
  plan.direct = plan.policy.packs != 0 && plan.slices.per_group == 1;
  plan.dy_normed_sums = !IsAbsent(b.dweight) || (!plan.direct && !IsAbsent(b.dscale));
  plan.dy_sums = !plan.direct && !IsAbsent(b.dshift);
  plan.floats = plan.slice_count * b.norm.hidden * (plan.dy_normed_sums + plan.dy_sums);
  return plan;
}

BackwardArgs ArgsOf(const BackwardCall& b, const Plan& plan, float* workspace) {
  const auto result_of = [](const FbTensor& tensor) -> Result {
    return {IsAbsent(tensor) ? nullptr : tensor.data, tensor.dtype};
  };
  const int64_t dy_sums = plan.dy_normed_sums ? plan.slice_count * b.norm.hidden : 0;
  return {.dy = b.dy.data,
          .x = b.x.data,
          .weight = IsAbsent(b.weight) ? nullptr : b.weight.data,
          .scale = b.scale.data,
          .rstd = static_cast<const float*>(b.rstd.data),
          .dx = IsAbsent(b.dx) ? nullptr : b.dx.data,
          .dscale = result_of(b.dscale),
          .dshift = result_of(b.dshift),
          .dweight = result_of(b.dweight),
          .dy_normed_sums = plan.dy_normed_sums ? workspace : nullptr,
          .dy_sums = plan.dy_sums ? workspace + dy_sums : nullptr,
          .dy_stride = b.dy.stride[0],
          .x_stride = b.x.stride[0],
          .dx_stride = b.dx.stride[0],
          .scale_stride = b.scale.stride[0],
          .weight_dtype = b.weight.dtype,
          .scale_dtype = b.scale.dtype,
          .stages = plan.policy.stages,
          .shared_factor = plan.policy.shared_weight,
          .direct = plan.direct,
          .groups = b.groups,
          .group_rows = b.group_rows,
          .slices = plan.slices,
          .norm = b.norm};
}

WideModulatedBackwardArgs WideArgsOf(const BackwardCall& b, const WidePlan& plan,
                                     float* workspace) {
  const auto data_of = [](const FbTensor& tensor) {
    return IsAbsent(tensor) ? nullptr : tensor.data;
  };
  WideModulatedBackwardArgs args = {};
  static_cast<rms_norm::GradientArgs&>(args) = rms_norm::GradientArgsOf(b);
  args.weight_partials = workspace;
  args.bias_partials = workspace + plan.dscale;
  args.rows = b.norm.rows;
  args.hidden = b.norm.hidden;
  args.offset = b.norm.offset;
  args.round_normed = b.norm.round_normed;
  args.examples.scale = b.scale.data;
  args.examples.scale_stride = b.scale.stride[0];
  args.examples.rows = static_cast<int32_t>(b.group_rows);
  args.dscale = data_of(b.dscale);
  args.dshift = data_of(b.dshift);
  if (plan.dscale == 0) args.weight_partials = nullptr;
  if (plan.dshift == 0) args.bias_partials = nullptr;
  if (plan.dweight > 0) args.dweight_partials = workspace + plan.dscale + plan.dshift;
  return args;
}

int32_t LaunchFewRows(const FbCall& call, const BackwardCall& b, const Policy& policy) {
  const auto data_of = [](const FbTensor& t) { return IsAbsent(t) ? nullptr : t.data; };
  FewRowsArgs args = {};
  static_cast<rms_norm::GradientArgs&>(args) = rms_norm::GradientArgsOf(b);
  args.offset = b.norm.offset;
  args.round_normed = b.norm.round_normed;
  args.dweight = data_of(b.dweight);
  args.dweight_dtype = b.dweight.dtype;
  args.scale = b.scale.data;
  args.scale_stride = b.scale.stride[0];
  args.dscale = data_of(b.dscale);
  args.dshift = data_of(b.dshift);
  LaunchShape shape = CutFewRows(b.groups, b.group_rows, b.norm.hidden, BytesOf(b.x),
                                 kFewRowsThreads, kFewRowsBatch, &args);
  shape.dependent = call.sm >= 90;
  shape.stream = static_cast<cudaStream_t>(call.stream);
  if (shape.blocks == 0) return cudaSuccess;
  return LaunchKernel(SelectFewRowsKernel(b.x.dtype, policy.packs), shape, args);
}

int32_t LaunchMain(const FbCall& call, const BackwardCall& b, const Plan& plan,
                   const BackwardArgs& args) {
  const Policy& policy = plan.policy;
  const int64_t shared_bytes =
      policy.packs == 0 ? 0 : rms_norm::BackwardSharedBytes(policy, BytesOf(b.x), BytesOf(b.dy));
  const LaunchShape shape = {.blocks = plan.blocks,
                             .threads = dim3(policy.threads_per_row, policy.rows_per_block),
                             .cluster = policy.cluster,
                             .shared_bytes = static_cast<int>(shared_bytes),
                             .stream = static_cast<cudaStream_t>(call.stream)};
  const bool same_dy = b.dy.dtype == b.x.dtype;
  const Kernel kernel =
      plan.by_slices ? SelectSlicesKernel(b.x.dtype, same_dy, policy.packs, policy.cluster > 1)
                     : SelectKernel(b.x.dtype, same_dy, policy.packs);
  return LaunchKernel(kernel, shape, args);
}

}  // namespace

uint64_t BackwardCudaWorkspace(const FbCall* call) {
  const BackwardCall b = BackwardOf(*call);
  const Policy wide = SelectWide(*call, b);
  int64_t floats = 0;
  if (wide.packs != 0) floats = WidePlanOf(*call, b, wide).floats();
  if (wide.packs == 0 || rms_norm::MayNotRun(wide, call->sm_count)) {
    floats = std::max(floats, PlanOf(*call, b).floats);
  }
  return static_cast<uint64_t>(floats) * sizeof(float);
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  const BackwardCall b = BackwardOf(*call);
  const Policy wide = SelectWide(*call, b);
  if (wide.packs != 0 && RunsWideBackward(*call, b.x.dtype, b.norm.hidden, wide)) {
    const WideModulatedBackwardArgs args =
        WideArgsOf(b, WidePlanOf(*call, b, wide), static_cast<float*>(workspace));
    return LaunchWideBackward(*call, b.x.dtype, wide, args,
                              IsAbsent(b.dweight) ? nullptr : b.dweight.data);
  }
  const Plan plan = PlanOf(*call, b);
  if (plan.policy.few_rows) return LaunchFewRows(*call, b, plan.policy);
  const BackwardArgs args = ArgsOf(b, plan, static_cast<float*>(workspace));
  if (plan.slice_count > 0) {
    if (const int32_t error = LaunchMain(*call, b, plan, args)) return error;
  }
  if (!plan.dy_normed_sums && !plan.dy_sums) return cudaSuccess;
  // May be scheduled before the main kernel has ended.
  return LaunchGroupSums(args, call->sm >= 90 && plan.slice_count > 0, call->stream);
}

int32_t LoadBackwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int packs : {0, 1, 2, 4}) {
      for (const bool same_dy : {true, false}) {
        const cudaError_t error = LoadKernel(SelectKernel(dtype, same_dy, packs), packs > 0);
        if (error != cudaSuccess) return error;
      }
    }
    for (const bool same_dy : {true, false}) {
      for (const auto& [packs, cluster] : {std::pair{2, false}, {4, false}, {4, true}}) {
        const cudaError_t error =
            LoadKernel(SelectSlicesKernel(dtype, same_dy, packs, cluster), true);
        if (error != cudaSuccess) return error;
      }
    }
  }
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int packs : {2, 4}) {
      const cudaError_t error = LoadKernel(SelectFewRowsKernel(dtype, packs));
      if (error != cudaSuccess) return error;
    }
  }
  if (const cudaError_t error = LoadKernel(GroupSumsKernel)) return error;
  return LoadWideBackwardKernels();
}

}  // namespace fuseboard::modulated_rms_norm
