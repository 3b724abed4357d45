#include <initializer_list>
#include <utility>

#include "kernels/common/launch.cuh"
#include "kernels/common/sum_partials.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_backward.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_backward_slices.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_cuda.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_policy.h"

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
Kernel SelectSlicesKernel(bool cluster) {
  return cluster ? BackwardSlicesKernel<X, DY, 4, true> : BackwardSlicesKernel<X, DY, 4, false>;
}

Kernel SelectSlicesKernel(int32_t x_dtype, bool same_dy, bool cluster) {
  return DispatchFloat(x_dtype, [&](auto tag) {
    using X = typename decltype(tag)::type;
    return same_dy ? SelectSlicesKernel<X, X>(cluster) : SelectSlicesKernel<X, float>(cluster);
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
  bool direct;  // dscale and dshift are written by the main kernel.
  int64_t dscale;
  int64_t dshift;
  int64_t dweight;
  int64_t floats;
};

Slices CutSlices(const FbCall& call, const BackwardCall& b, const Policy& policy) {
  return SelectSlices(b.groups, b.group_rows, policy.rows_per_block,
                      Resident(policy, call.sm_count));
}

// Fills in the policy, the kernel and the slices.
void SelectCut(const FbCall& call, const BackwardCall& b, Plan* plan) {
  Policy& policy = plan->policy;
  if (b.norm.rows > 0 && InPacks(b)) {
    const int64_t row_packs = b.norm.hidden * BytesOf(b.x) / 16;
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

Plan PlanOf(const FbCall& call, const BackwardCall& b) {
  Plan plan = {};
  SelectCut(call, b, &plan);
  const int rows = plan.policy.rows_per_block;
  plan.slice_count = b.groups * plan.slices.per_group;
  plan.blocks = rms_norm::BackwardBlocks(plan.policy, plan.slice_count * rows, call.sm_count);
  plan.direct = plan.policy.packs != 0 && plan.slices.per_group == 1;
  const auto take = [&](bool wanted) {
    const int64_t at = plan.floats;
    if (wanted) plan.floats += plan.slice_count * b.norm.hidden;
    return at;
  };
  plan.dscale = take(!plan.direct && !IsAbsent(b.dscale));
  plan.dshift = take(!plan.direct && !IsAbsent(b.dshift));
  plan.dweight = take(!IsAbsent(b.dweight));
  return plan;
}

int32_t LaunchMain(const FbCall& call, const BackwardCall& b, const Plan& plan, float* workspace) {
  const auto sums_of = [&](const FbTensor& result, int64_t at) -> Sums {
    if (IsAbsent(result)) return {nullptr, FB_F32};
    return plan.direct ? Sums{result.data, result.dtype} : Sums{workspace + at, FB_F32};
  };
  const Policy& policy = plan.policy;
  const BackwardArgs args = {.dy = b.dy.data,
                             .x = b.x.data,
                             .weight = IsAbsent(b.weight) ? nullptr : b.weight.data,
                             .scale = b.scale.data,
                             .rstd = static_cast<const float*>(b.rstd.data),
                             .dx = IsAbsent(b.dx) ? nullptr : b.dx.data,
                             .dscale = sums_of(b.dscale, plan.dscale),
                             .dshift = sums_of(b.dshift, plan.dshift),
                             .dweight = IsAbsent(b.dweight) ? nullptr : workspace + plan.dweight,
                             .dy_stride = b.dy.stride[0],
                             .x_stride = b.x.stride[0],
                             .dx_stride = b.dx.stride[0],
                             .scale_stride = b.scale.stride[0],
                             .weight_dtype = b.weight.dtype,
                             .scale_dtype = b.scale.dtype,
                             .stages = policy.stages,
                             .shared_factor = policy.shared_weight,
                             .groups = b.groups,
                             .group_rows = b.group_rows,
                             .slices = plan.slices,
                             .norm = b.norm};
  const int64_t shared_bytes =
      policy.packs == 0 ? 0 : rms_norm::BackwardSharedBytes(policy, BytesOf(b.x), BytesOf(b.dy));
  const LaunchShape shape = {.blocks = plan.blocks,
                             .threads = dim3(policy.threads_per_row, policy.rows_per_block),
                             .cluster = policy.cluster,
                             .shared_bytes = static_cast<int>(shared_bytes),
                             .stream = static_cast<cudaStream_t>(call.stream)};
  const bool same_dy = b.dy.dtype == b.x.dtype;
  const Kernel kernel = plan.by_slices ? SelectSlicesKernel(b.x.dtype, same_dy, policy.cluster > 1)
                                       : SelectKernel(b.x.dtype, same_dy, policy.packs);
  return LaunchKernel(kernel, shape, args);
}

}  // namespace

uint64_t BackwardCudaWorkspace(const FbCall* call) {
  return static_cast<uint64_t>(PlanOf(*call, BackwardOf(*call)).floats) * sizeof(float);
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  const BackwardCall b = BackwardOf(*call);
  const Plan plan = PlanOf(*call, b);
  auto* sums = static_cast<float*>(workspace);
  const int64_t hidden = b.norm.hidden;
  bool dependent = call->sm >= 90;
  if (plan.slice_count > 0) {
    if (const int32_t error = LaunchMain(*call, b, plan, sums)) return error;
  } else {
    dependent = false;
  }
  // The first of these may be scheduled before the main kernel has ended.
  const auto finish = [&](const FbTensor& out, int64_t at, int64_t count, int64_t cols) {
    if (IsAbsent(out) || cols == 0) return cudaSuccess;
    const bool early = std::exchange(dependent, false);
    return LaunchSumPartials(sums + at, count, cols, out, early, call->stream);
  };
  if (!plan.direct) {
    const int64_t count = plan.slices.per_group;
    if (const auto error = finish(b.dscale, plan.dscale, count, b.groups * hidden)) return error;
    if (const auto error = finish(b.dshift, plan.dshift, count, b.groups * hidden)) return error;
  }
  return finish(b.dweight, plan.dweight, plan.slice_count, hidden);
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
      for (const bool cluster : {true, false}) {
        const cudaError_t error = LoadKernel(SelectSlicesKernel(dtype, same_dy, cluster), true);
        if (error != cudaSuccess) return error;
      }
    }
  }
  return LoadSumPartials();
}

}  // namespace fuseboard::modulated_rms_norm
