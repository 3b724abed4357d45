#include <algorithm>

#include "kernels/common/launch.cuh"
#include "kernels/common/row_alignment.h"
#include "kernels/layer_norm/layer_norm_call.h"
#include "kernels/layer_norm/layer_norm_cuda.h"
#include "kernels/layer_norm/layer_norm_forward.cuh"
#include "kernels/layer_norm/layer_norm_forward_rows.cuh"
#include "kernels/layer_norm/layer_norm_policy.h"
#include "kernels/rms_norm/wide_launch.cuh"

namespace fuseboard::layer_norm {
namespace {

using rms_norm::Policy;
using ForwardKernel = void (*)(ForwardArgs);

template <typename X, bool kSame>
ForwardKernel SelectKernel(int packs, bool cluster) {
  switch (packs) {
    case 1:
      return LayerNormForwardKernel<X, kSame, 1, false>;
    case 2:
      return LayerNormForwardKernel<X, kSame, 2, false>;
    case 4:
      return cluster ? LayerNormForwardKernel<X, kSame, 4, true>
                     : LayerNormForwardKernel<X, kSame, 4, false>;
    case 8:
      return LayerNormForwardKernel<X, kSame, 8, true>;
    default:
      return LayerNormForwardLoopingKernel<X>;
  }
}

ForwardKernel SelectKernel(int32_t dtype, bool same, int packs, bool cluster) {
  return DispatchFloat(dtype, [&](auto tag) {
    using X = typename decltype(tag)::type;
    return same ? SelectKernel<X, true>(packs, cluster) : SelectKernel<X, false>(packs, cluster);
  });
}

// For a row to a block, and weight and bias like x.
template <typename X>
ForwardKernel SelectRowKernel(const Policy& policy) {
  if (policy.packs == 2) return LayerNormForwardRowKernel<X, 4, 2>;
  const int warps = policy.threads_per_row / rms_norm::kWarp;
  return warps <= 4   ? LayerNormForwardRowKernel<X, 4, 4>
         : warps <= 8 ? LayerNormForwardRowKernel<X, 8, 4>
                      : LayerNormForwardRowKernel<X, 16, 4>;
}

// The same for rows that begin anywhere. Two packs of parameters in flight for each one: 72
// registers.
template <typename X>
ForwardKernel SelectUnalignedRowKernel(const Policy& policy) {
  const int warps = policy.threads_per_row / rms_norm::kWarp;
  return warps <= 4   ? LayerNormForwardRowKernel<X, 4, 4, 24, true>
         : warps <= 8 ? LayerNormForwardRowKernel<X, 8, 4, 24, true>
                      : LayerNormForwardRowKernel<X, 16, 4, 24, true>;
}

ForwardKernel SelectRowKernel(int32_t dtype, const Policy& policy) {
  return DispatchFloat(dtype, [&](auto tag) -> ForwardKernel {
    using X = typename decltype(tag)::type;
    return policy.classes > 0 ? SelectUnalignedRowKernel<X>(policy) : SelectRowKernel<X>(policy);
  });
}

bool IsAligned(const FbTensor& parameter) {
  return IsAbsent(parameter) || reinterpret_cast<uintptr_t>(parameter.data) % 16 == 0;
}

bool IsLikeX(const FbTensor& parameter, const FbTensor& x) {
  return IsAbsent(parameter) || parameter.dtype == x.dtype;
}

bool InPacks(const ForwardCall& f, int bytes) {
  return f.hidden % (16 / bytes) == 0 && IsAlignedRows(f.x, bytes, 16) &&
         IsAlignedRows(f.y, bytes, 16) && IsAligned(f.weight) && IsAligned(f.bias);
}

// Whether the parameters have the dtype of x, and y's rows begin as those of x do.
bool AreRowsAlike(const ForwardCall& f) {
  RowAlignment alignment;
  alignment.Add(f.x);
  alignment.Add(f.y);
  return IsLikeX(f.weight, f.x) && IsLikeX(f.bias, f.x) && alignment.alike();
}

// Without the kernels for wide rows. The row's way into registers is rms_norm's.
Policy OtherPolicyOf(const FbCall& call, const ForwardCall& f) {
  const int bytes = f.x.dtype == FB_F32 ? 4 : 2;
  const int64_t row_packs = f.hidden * bytes / 16;
  Policy policy = {};
  if (InPacks(f, bytes)) {
    policy = SelectForward(call.sm, row_packs);
  } else if (f.hidden >= rms_norm::kLeastUnalignedForward && AreRowsAlike(f)) {
    policy = SelectUnalignedForward(row_packs, bytes);
  }
  const bool covers =
      policy.packs != 0 && rms_norm::CeilDiv(f.rows, policy.rows_per_block) <= rms_norm::kMaxGroups;
  return covers ? policy : rms_norm::SelectLooping(f.hidden);
}

Policy PolicyOf(const FbCall& call, const ForwardCall& f) {
  const int bytes = f.x.dtype == FB_F32 ? 4 : 2;
  if (InPacks(f, bytes) && IsLikeX(f.weight, f.x) && IsLikeX(f.bias, f.x)) {
    const Policy policy = SelectWideForward(call.sm, f.hidden * bytes / 16);
    if (policy.packs != 0) return policy;
  }
  return OtherPolicyOf(call, f);
}

void* DataOf(const FbTensor& tensor) { return IsAbsent(tensor) ? nullptr : tensor.data; }

rms_norm::WideForwardArgs WideArgsOf(const ForwardCall& f) {
  rms_norm::WideForwardArgs args = {};
  args.x = f.x.data;
  args.weight = DataOf(f.weight);
  args.bias = DataOf(f.bias);
  args.y = f.y.data;
  args.mean = static_cast<float*>(DataOf(f.mean));
  args.rstd = static_cast<float*>(DataOf(f.rstd));
  args.x_stride = f.x.stride[0];
  args.y_stride = f.y.stride[0];
  args.rows = f.rows;
  args.hidden = f.hidden;
  args.eps = f.eps;
  return args;
}

}  // namespace

int32_t LaunchForward(const FbCall& call, const Policy& wanted) {
  const ForwardCall f = ForwardOf(call);
  if (f.rows == 0) return cudaSuccess;
  Policy policy = wanted;
  if (policy.wide) {
    if (rms_norm::RunsWideForward</*kCenter=*/true, /*kAdd=*/false>(call, f.x.dtype, f.hidden,
                                                                    policy)) {
      return rms_norm::LaunchWideForward</*kCenter=*/true, /*kAdd=*/false>(call, f.x.dtype, policy,
                                                                           WideArgsOf(f));
    }
    policy = OtherPolicyOf(call, f);
  }
  const bool same = IsLikeX(f.weight, f.x) && IsLikeX(f.bias, f.x);
  const int64_t groups = rms_norm::CeilDiv(f.rows, policy.rows_per_block);
  const LaunchShape shape = {.blocks = std::min(groups, rms_norm::kMaxGroups) * policy.cluster,
                             .threads = dim3(policy.threads_per_row, policy.rows_per_block),
                             .cluster = policy.cluster,
                             .stream = static_cast<cudaStream_t>(call.stream)};
  const ForwardKernel kernel =
      same && IsRowPerBlock(policy)
          ? SelectRowKernel(f.x.dtype, policy)
          : SelectKernel(f.x.dtype, same, policy.packs, policy.cluster > 1);
  return LaunchKernel(kernel, shape,
                      ForwardArgs{.x = f.x.data,
                                  .weight = DataOf(f.weight),
                                  .bias = DataOf(f.bias),
                                  .y = f.y.data,
                                  .mean = static_cast<float*>(DataOf(f.mean)),
                                  .rstd = static_cast<float*>(DataOf(f.rstd)),
                                  .x_stride = f.x.stride[0],
                                  .y_stride = f.y.stride[0],
                                  .rows = f.rows,
                                  .hidden = f.hidden,
                                  .weight_dtype = f.weight.dtype,
                                  .bias_dtype = f.bias.dtype,
                                  .inverse_hidden = 1.0f / static_cast<float>(f.hidden),
                                  .zero = 0,
                                  .eps = f.eps});
}

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  return LaunchForward(*call, PolicyOf(*call, ForwardOf(*call)));
}

int32_t LoadForwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const auto& [packs, cluster] : rms_norm::kForms) {
      for (const bool same : {true, false}) {
        const cudaError_t error = LoadKernel(SelectKernel(dtype, same, packs, cluster));
        if (error != cudaSuccess) return error;
      }
    }
    for (const auto& [packs, warps] : kRowForms) {
      Policy policy = {};
      policy.packs = packs;
      policy.threads_per_row = warps * rms_norm::kWarp;
      for (const int classes : {0, 1}) {
        policy.classes = classes;
        const cudaError_t error = LoadKernel(SelectRowKernel(dtype, policy));
        if (error != cudaSuccess) return error;
      }
    }
  }
  return rms_norm::LoadWideKernels</*kCenter=*/true, /*kAdd=*/false, /*kForward=*/true>();
}

}  // namespace fuseboard::layer_norm
