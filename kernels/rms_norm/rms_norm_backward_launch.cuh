// Host side of the backward kernels, for rms_norm and, with kAdd, for fused_add_rms_norm.

#ifndef KERNELS_RMS_NORM_RMS_NORM_BACKWARD_LAUNCH_CUH_
#define KERNELS_RMS_NORM_RMS_NORM_BACKWARD_LAUNCH_CUH_

#include <algorithm>

#include "kernels/common/launch.cuh"
#include "kernels/common/matrix_overlap.h"
#include "kernels/common/row_alignment.h"
#include "kernels/common/sum_partials.cuh"
#include "kernels/rms_norm/few_rows_launch.cuh"
#include "kernels/rms_norm/rms_norm_backward.cuh"
#include "kernels/rms_norm/rms_norm_backward_looping.cuh"
#include "kernels/rms_norm/rms_norm_policy.h"
#include "kernels/rms_norm/wide_launch.cuh"

namespace fuseboard::rms_norm {

using BackwardKernel = void (*)(BackwardArgs);

template <bool kAdd, typename X, typename DY>
BackwardKernel SelectBackwardKernel(int packs, bool cluster) {
  switch (packs) {
    case 1:
      return RmsNormBackwardKernel<X, DY, kAdd, 1, false>;
    case 2:
      return RmsNormBackwardKernel<X, DY, kAdd, 2, false>;
    case 4:
      return cluster ? RmsNormBackwardKernel<X, DY, kAdd, 4, true>
                     : RmsNormBackwardKernel<X, DY, kAdd, 4, false>;
    case 8:
      return RmsNormBackwardKernel<X, DY, kAdd, 8, true>;
    default:
      return RmsNormBackwardLoopingKernel<X, DY, kAdd>;
  }
}

// dy has the dtype of x or f32.
template <bool kAdd>
BackwardKernel SelectBackwardKernel(int32_t x_dtype, bool same_dy, int packs, bool cluster) {
  return DispatchFloat(x_dtype, [&](auto tag) {
    using X = typename decltype(tag)::type;
    return same_dy ? SelectBackwardKernel<kAdd, X, X>(packs, cluster)
                   : SelectBackwardKernel<kAdd, X, float>(packs, cluster);
  });
}

template <bool kAdd>
BackwardKernel SelectUnalignedBackwardKernel(int32_t dtype, int packs, bool cluster) {
  return DispatchFloat(dtype, [&](auto tag) -> BackwardKernel {
    using X = typename decltype(tag)::type;
    switch (packs) {
      case 1:
        return RmsNormBackwardKernel<X, X, kAdd, 1, false, true>;
      case 2:
        return RmsNormBackwardKernel<X, X, kAdd, 2, false, true>;
      default:
        return cluster ? RmsNormBackwardKernel<X, X, kAdd, 4, true, true>
                       : RmsNormBackwardKernel<X, X, kAdd, 4, false, true>;
    }
  });
}

// How a call is cut, and the number of partial sums of dweight.
struct BackwardPlan {
  Policy policy;
  int64_t blocks;
  int64_t sums;
  int shared_bytes;
};

// Bytes of an element of what is read beside x.
inline int OtherBytes(const BackwardCall& b) {
  const int dy_bytes = b.dy.dtype == FB_F32 ? 4 : 2;
  return dy_bytes + (b.dsum == nullptr ? 0 : b.x.dtype == FB_F32 ? 4 : 2);
}

inline bool InPacks(const BackwardCall& b, int x_bytes, int dy_bytes) {
  const bool weight = IsAbsent(b.weight) || reinterpret_cast<uintptr_t>(b.weight.data) % 16 == 0;
  const bool dsum = b.dsum == nullptr || IsAbsent(*b.dsum) || IsAlignedRows(*b.dsum, x_bytes, 16);
  const bool dx = IsAbsent(b.dx) || IsAlignedRows(b.dx, x_bytes, 16);
  return b.norm.hidden % (16 / x_bytes) == 0 && IsAlignedRows(b.x, x_bytes, 16) &&
         IsAlignedRows(b.dy, dy_bytes, 16) && dsum && weight && dx;
}

// Whether all rows have the dtype of x, and begin as its rows do.
inline bool AreRowsAlike(const BackwardCall& b) {
  if (b.dy.dtype != b.x.dtype) return false;
  RowAlignment alignment;
  alignment.Add(b.x);
  alignment.Add(b.dy);
  if (!IsAbsent(b.dx)) alignment.Add(b.dx);
  if (b.dsum != nullptr && !IsAbsent(*b.dsum)) alignment.Add(*b.dsum);
  return alignment.alike();
}

// Without the kernels for wide rows.
inline Policy OtherPolicyOfBackward(const FbCall& call, const BackwardCall& b) {
  const int x_bytes = b.x.dtype == FB_F32 ? 4 : 2;
  const int dy_bytes = b.dy.dtype == FB_F32 ? 4 : 2;
  Policy policy = {};
  if (InPacks(b, x_bytes, dy_bytes)) {
    policy = SelectBackward(call.sm, b.norm.hidden * x_bytes / 16, x_bytes, OtherBytes(b));
  } else if (b.norm.hidden >= kLeastUnalignedBackward && AreRowsAlike(b)) {
    policy = SelectBackward(call.sm, b.norm.hidden * x_bytes / 16, x_bytes, OtherBytes(b),
                            /*unaligned=*/true);
  }
  return policy.packs == 0 ? SelectLooping(b.norm.hidden) : policy;
}

// As the policy for the device says.
inline Policy PolicyOfBackward(const FbCall& call, const BackwardCall& b) {
  const int bytes = b.x.dtype == FB_F32 ? 4 : 2;
  const bool alike = b.dy.dtype == b.x.dtype && (IsAbsent(b.weight) || b.weight.dtype == b.x.dtype);
  if (alike && InPacks(b, bytes, bytes)) {
    const int64_t row_packs = b.norm.hidden * bytes / 16;
    const Policy few = SelectFewRows(b.norm.rows, row_packs);
    const bool apart = IsAbsent(b.dx) || (AreDisjoint(b.dx, b.x) && AreDisjoint(b.dx, b.dy));
    if (few.packs != 0 && apart) return few;
    const Policy wide = SelectWideBackward(call.sm, row_packs, b.dsum == nullptr ? 2 : 3);
    if (wide.packs != 0 && !IsAbsent(b.dx)) return wide;
  }
  return OtherPolicyOfBackward(call, b);
}

inline BackwardPlan PlanOf(const FbCall& call, const BackwardCall& b, const Policy& policy) {
  const auto [rows, hidden] = std::pair{b.norm.rows, b.norm.hidden};
  BackwardPlan plan = {};
  plan.policy = policy;
  if (policy.few_rows) return plan;  // No sums.
  if (policy.packs == 0) {
    plan.blocks = LoopingBackwardBlocks(policy, rows, hidden, call.sm_count);
    plan.sums = plan.blocks * policy.rows_per_block;
    return plan;
  }
  plan.blocks = BackwardBlocks(policy, rows, call.sm_count);
  plan.sums = plan.blocks / policy.cluster;
  plan.shared_bytes =
      static_cast<int>(BackwardSharedBytes(policy, b.x.dtype == FB_F32 ? 4 : 2, OtherBytes(b)));
  return plan;
}

// Room for the partial sums of dweight.
inline uint64_t BackwardWorkspaceOf(const FbCall& call, const BackwardCall& b) {
  if (IsAbsent(b.dweight)) return 0;
  const Policy policy = PolicyOfBackward(call, b);
  int64_t sums = PlanOf(call, b, policy).sums;
  if (MayNotRun(policy, call.sm_count)) {
    sums = std::max(sums, PlanOf(call, b, OtherPolicyOfBackward(call, b)).sums);
  }
  return static_cast<uint64_t>(sums * b.norm.hidden) * sizeof(float);
}

inline GradientArgs GradientArgsOf(const BackwardCall& b) {
  GradientArgs args = GradientArgsOf<BackwardCall>(b);
  if (b.dsum != nullptr && !IsAbsent(*b.dsum)) {
    args.dsum = b.dsum->data;
    args.dsum_stride = b.dsum->stride[0];
  }
  args.offset = b.norm.offset;
  args.round_normed = b.norm.round_normed;
  return args;
}

inline WideBackwardArgs WideArgsOf(const BackwardCall& b, float* partials) {
  return {GradientArgsOf(b), partials, nullptr, b.norm.rows, b.norm.hidden};
}

inline FewRowsArgs FewRowsArgsOf(const BackwardCall& b) {
  FewRowsArgs args = {};
  static_cast<GradientArgs&>(args) = GradientArgsOf(b);
  args.dweight = IsAbsent(b.dweight) ? nullptr : b.dweight.data;
  args.dweight_dtype = b.dweight.dtype;
  return args;
}

template <bool kAdd>
int32_t LaunchBackwardAs(const FbCall& call, const BackwardCall& b, Policy policy,
                         void* workspace) {
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const bool has_dweight = !IsAbsent(b.dweight);
  const bool has_dsum = kAdd && !IsAbsent(*b.dsum);
  if (IsAbsent(b.dx) && !has_dweight) return cudaSuccess;
  if (policy.few_rows) {
    return LaunchFewRows</*kCenter=*/false, kAdd>(call, b.x.dtype, policy, b.norm.rows,
                                                  b.norm.hidden, FewRowsArgsOf(b));
  }

  if (policy.wide &&
      !RunsWideBackward</*kCenter=*/false, kAdd>(call, b.x.dtype, b.norm.hidden, policy)) {
    policy = OtherPolicyOfBackward(call, b);
  }
  const BackwardPlan plan = PlanOf(call, b, policy);
  if (plan.blocks > 0 && policy.wide) {
    const WideBackwardArgs args =
        WideArgsOf(b, has_dweight ? static_cast<float*>(workspace) : nullptr);
    const cudaError_t error =
        LaunchWideBackward</*kCenter=*/false, kAdd>(call, b.x.dtype, policy, args);
    if (error != cudaSuccess) return error;
  } else if (plan.blocks > 0) {
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
                               .dsum = has_dsum ? b.dsum->data : nullptr,
                               .dsum_stride = has_dsum ? b.dsum->stride[0] : 0,
                               .dx = IsAbsent(b.dx) ? nullptr : b.dx.data,
                               .partials = has_dweight ? static_cast<float*>(workspace) : nullptr,
                               .dy_stride = b.dy.stride[0],
                               .x_stride = b.x.stride[0],
                               .dx_stride = b.dx.stride[0],
                               .weight_dtype = b.weight.dtype,
                               .stages = plan.policy.stages,
                               .shared_weight = plan.policy.shared_weight,
                               .norm = b.norm};
    const bool cluster = plan.policy.cluster > 1;
    const BackwardKernel kernel =
        policy.classes > 0
            ? SelectUnalignedBackwardKernel<kAdd>(b.x.dtype, policy.packs, cluster)
            : SelectBackwardKernel<kAdd>(b.x.dtype, b.dy.dtype == b.x.dtype, policy.packs, cluster);
    if (const cudaError_t error = LaunchKernel(kernel, shape, args)) return error;
  }
  if (!has_dweight) return cudaSuccess;
  return LaunchSumPartials(static_cast<const float*>(workspace), plan.sums, b.norm.hidden,
                           b.dweight, call.sm >= 90 && plan.blocks > 0, call.stream);
}

template <bool kAdd>
int32_t LoadBackwardKernelsAs() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const auto& [packs, cluster] : kForms) {
      for (const bool same_dy : {true, false}) {
        const cudaError_t error =
            LoadKernel(SelectBackwardKernel<kAdd>(dtype, same_dy, packs, cluster), packs > 0);
        if (error != cudaSuccess) return error;
      }
    }
    for (const auto& [packs, cluster] : kUnalignedBackwardForms) {
      const cudaError_t error = LoadKernel(
          SelectUnalignedBackwardKernel<kAdd>(dtype, packs, cluster), /*much_shared=*/true);
      if (error != cudaSuccess) return error;
    }
  }
  for (const auto load : {LoadFewRowsKernels</*kCenter=*/false, kAdd>, LoadSumPartials}) {
    if (const cudaError_t error = load()) return error;
  }
  return LoadWideKernels</*kCenter=*/false, kAdd, /*kForward=*/false>();
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_RMS_NORM_BACKWARD_LAUNCH_CUH_
