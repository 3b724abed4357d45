// Host side of the forward kernels, for rms_norm and, with kAdd, for fused_add_rms_norm, with
// kModulate for modulated_rms_norm.

#ifndef KERNELS_RMS_NORM_RMS_NORM_FORWARD_LAUNCH_CUH_
#define KERNELS_RMS_NORM_RMS_NORM_FORWARD_LAUNCH_CUH_

#include <algorithm>
#include <utility>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/row_alignment.h"
#include "kernels/rms_norm/rms_norm_forward.cuh"
#include "kernels/rms_norm/rms_norm_policy.h"
#include "kernels/rms_norm/wide_launch.cuh"

namespace fuseboard::rms_norm {

template <bool kModulate>
using ForwardKernel = void (*)(ForwardArgsOf<kModulate>);

template <bool kAdd, bool kModulate, typename X, typename Y, bool kSameWeight>
ForwardKernel<kModulate> SelectForwardKernel(int packs, bool cluster) {
  switch (packs) {
    case 1:
      return RmsNormForwardKernel<X, Y, kSameWeight, kAdd, kModulate, 1, false>;
    case 2:
      return RmsNormForwardKernel<X, Y, kSameWeight, kAdd, kModulate, 2, false>;
    case 4:
      return cluster ? RmsNormForwardKernel<X, Y, kSameWeight, kAdd, kModulate, 4, true>
                     : RmsNormForwardKernel<X, Y, kSameWeight, kAdd, kModulate, 4, false>;
    case 8:
      return RmsNormForwardKernel<X, Y, kSameWeight, kAdd, kModulate, 8, true>;
    default:
      return RmsNormForwardLoopingKernel<X, Y, kAdd, kModulate>;
  }
}

// y is either of the dtype of x or f32; the weight matters only when it is that of x.
template <bool kAdd, bool kModulate, typename X>
ForwardKernel<kModulate> SelectForwardKernel(bool same_y, bool same_weight, int packs,
                                             bool cluster) {
  if (same_y && same_weight)
    return SelectForwardKernel<kAdd, kModulate, X, X, true>(packs, cluster);
  if (same_y) return SelectForwardKernel<kAdd, kModulate, X, X, false>(packs, cluster);
  return SelectForwardKernel<kAdd, kModulate, X, float, false>(packs, cluster);
}

template <bool kAdd, typename X>
ForwardKernel</*kModulate=*/false> SelectUnalignedForwardKernel(int packs) {
  if (packs == 8) return RmsNormForwardKernel<X, X, true, kAdd, false, 8, true, true>;
  return RmsNormForwardKernel<X, X, true, kAdd, false, 4, false, true>;
}

template <bool kAdd>
ForwardKernel</*kModulate=*/false> SelectUnalignedForwardKernel(int32_t dtype, int packs) {
  return DispatchFloat(dtype, [&](auto tag) {
    return SelectUnalignedForwardKernel<kAdd, typename decltype(tag)::type>(packs);
  });
}

inline bool InPacks(const ForwardCall& f, int x_bytes, int y_bytes) {
  const auto aligned = [](const FbTensor* tensor) {
    return tensor == nullptr || IsAlignedRows(*tensor, tensor->dtype == FB_F32 ? 4 : 2, 16);
  };
  const int lanes = 16 / x_bytes;
  const bool weight = IsAbsent(f.weight) || reinterpret_cast<uintptr_t>(f.weight.data) % 16 == 0;
  return f.norm.hidden % lanes == 0 && IsAlignedRows(f.x, x_bytes, 16) &&
         IsAlignedRows(f.y, y_bytes, 16) && aligned(f.residual) && aligned(f.sum) &&
         aligned(f.scale) && aligned(f.shift) && weight;
}

// Whether all tensors have the dtype of x, and its rows' way to begin.
inline bool AreRowsAlike(const ForwardCall& f) {
  if (f.scale != nullptr || f.y.dtype != f.x.dtype) return false;
  if (!IsAbsent(f.weight) && f.weight.dtype != f.x.dtype) return false;
  RowAlignment alignment;
  for (const FbTensor* matrix : {&f.x, &f.y, f.residual, f.sum}) {
    if (matrix != nullptr) alignment.Add(*matrix);
  }
  return alignment.alike();
}

// Without the kernels for wide rows.
inline Policy OtherPolicyOfForward(const FbCall& call, const ForwardCall& f) {
  const int x_bytes = f.x.dtype == FB_F32 ? 4 : 2;
  const int y_bytes = f.y.dtype == FB_F32 ? 4 : 2;
  Policy policy = {};
  if (InPacks(f, x_bytes, y_bytes)) {
    const int64_t row_packs = f.norm.hidden * x_bytes / 16;
    const bool few = f.norm.rows <= kFewForwardRows && f.scale == nullptr;
    policy = few ? SelectForwardOfFewRows(call.sm, row_packs) : SelectForward(call.sm, row_packs);
  } else if (f.norm.hidden >= kLeastUnalignedForward && AreRowsAlike(f)) {
    policy = WithEdges(SelectForward(call.sm, f.norm.hidden * x_bytes / 16), x_bytes);
  }
  const bool covers =
      policy.packs != 0 && CeilDiv(f.norm.rows, policy.rows_per_block) <= kMaxGroups;
  return covers ? policy : SelectLooping(f.norm.hidden);
}

// As the policy for the device says.
inline Policy PolicyOfForward(const FbCall& call, const ForwardCall& f) {
  const int bytes = f.x.dtype == FB_F32 ? 4 : 2;
  const bool alike = f.y.dtype == f.x.dtype && f.scale == nullptr &&
                     (IsAbsent(f.weight) || f.weight.dtype == f.x.dtype);
  if (alike && InPacks(f, bytes, bytes)) {
    const int64_t row_packs = f.norm.hidden * bytes / 16;
    const Policy policy = SelectWideForward(call.sm, row_packs, f.residual == nullptr ? 1 : 2);
    if (policy.packs != 0) return policy;
  }
  return OtherPolicyOfForward(call, f);
}

template <bool kAdd>
WideForwardArgs WideArgsOf(const ForwardCall& f) {
  return {.x = f.x.data,
          .residual = kAdd ? f.residual->data : nullptr,
          .weight = IsAbsent(f.weight) ? nullptr : f.weight.data,
          .bias = nullptr,
          .y = f.y.data,
          .sum = kAdd ? f.sum->data : nullptr,
          .mean = nullptr,
          .rstd = static_cast<float*>(IsAbsent(f.rstd) ? nullptr : f.rstd.data),
          .x_stride = f.x.stride[0],
          .residual_stride = kAdd ? f.residual->stride[0] : 0,
          .y_stride = f.y.stride[0],
          .sum_stride = kAdd ? f.sum->stride[0] : 0,
          .rows = f.norm.rows,
          .hidden = f.norm.hidden,
          .inverse_hidden = 0.0f,
          .eps = f.norm.eps,
          .offset = f.norm.offset,
          .round_normed = f.norm.round_normed};
}

template <bool kAdd, bool kModulate>
ForwardArgsOf<kModulate> ArgsOfForward(const ForwardCall& f) {
  ForwardArgsOf<kModulate> args = {};
  static_cast<ForwardArgs&>(args) = {
      .x = f.x.data,
      .weight = IsAbsent(f.weight) ? nullptr : f.weight.data,
      .y = f.y.data,
      .rstd = static_cast<float*>(IsAbsent(f.rstd) ? nullptr : f.rstd.data),
      .residual = kAdd ? f.residual->data : nullptr,
      .sum = kAdd ? f.sum->data : nullptr,
      .residual_stride = kAdd ? f.residual->stride[0] : 0,
      .sum_stride = kAdd ? f.sum->stride[0] : 0,
      .x_stride = f.x.stride[0],
      .y_stride = f.y.stride[0],
      .weight_dtype = f.weight.dtype,
      .inverse_hidden = 1.0f / static_cast<float>(f.norm.hidden),
      .zero = 0,
      .norm = f.norm};
  if constexpr (kModulate) {
    args.modulation = {.scale = f.scale->data,
                       .shift = f.shift->data,
                       .scale_stride = f.scale->stride[0],
                       .shift_stride = f.shift->stride[0],
                       .scale_dtype = f.scale->dtype,
                       .shift_dtype = f.shift->dtype,
                       .group_rows = f.norm.rows / f.scale->shape[0]};
  }
  return args;
}

template <bool kAdd, bool kModulate = false>
int32_t LaunchForwardAs(const FbCall& call, const ForwardCall& f, Policy policy) {
  if (f.norm.rows == 0) return cudaSuccess;
  if constexpr (!kModulate) {
    if (policy.wide &&
        RunsWideForward</*kCenter=*/false, kAdd>(call, f.x.dtype, f.norm.hidden, policy)) {
      return LaunchWideForward</*kCenter=*/false, kAdd>(call, f.x.dtype, policy,
                                                        WideArgsOf<kAdd>(f));
    }
    if (policy.wide) policy = OtherPolicyOfForward(call, f);
  }
  const bool same_weight = IsAbsent(f.weight) || f.weight.dtype == f.x.dtype;
  ForwardKernel<kModulate> kernel = DispatchFloat(f.x.dtype, [&](auto tag) {
    using X = typename decltype(tag)::type;
    return SelectForwardKernel<kAdd, kModulate, X>(f.y.dtype == f.x.dtype, same_weight,
                                                   policy.packs, policy.cluster > 1);
  });
  if constexpr (!kModulate) {
    if (policy.classes > 0) kernel = SelectUnalignedForwardKernel<kAdd>(f.x.dtype, policy.packs);
  }
  const int64_t groups = CeilDiv(f.norm.rows, policy.rows_per_block);
  const LaunchShape shape = {.blocks = std::min<int64_t>(groups, kMaxGroups) * policy.cluster,
                             .threads = dim3(policy.threads_per_row, policy.rows_per_block),
                             .cluster = policy.cluster,
                             .stream = static_cast<cudaStream_t>(call.stream)};
  return LaunchKernel(kernel, shape, ArgsOfForward<kAdd, kModulate>(f));
}

template <bool kAdd, bool kModulate = false>
int32_t LoadForwardKernelsAs() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const auto& [packs, cluster] : kForms) {
      for (const auto& [same_y, same_weight] :
           {std::pair{true, true}, {true, false}, {false, false}}) {
        const ForwardKernel<kModulate> kernel = DispatchFloat(dtype, [&](auto tag) {
          using X = typename decltype(tag)::type;
          return SelectForwardKernel<kAdd, kModulate, X>(same_y, same_weight, packs, cluster);
        });
        if (const cudaError_t error = LoadKernel(kernel); error != cudaSuccess) return error;
      }
    }
    if constexpr (!kModulate) {
      for (const int packs : {4, 8}) {
        const cudaError_t error = LoadKernel(SelectUnalignedForwardKernel<kAdd>(dtype, packs));
        if (error != cudaSuccess) return error;
      }
    }
  }
  if constexpr (kModulate) {
    return cudaSuccess;
  } else {
    return LoadWideKernels</*kCenter=*/false, kAdd, /*kForward=*/true>();
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_RMS_NORM_FORWARD_LAUNCH_CUH_
