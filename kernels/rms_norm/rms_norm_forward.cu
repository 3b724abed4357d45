#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rms_norm/rms_norm_forward.cuh"
#include "kernels/rms_norm/rms_norm_policy.h"

namespace fuseboard::rms_norm {
namespace {

using ForwardKernel = void (*)(ForwardArgs);

template <typename X, typename Y, bool kSameWeight>
ForwardKernel SelectKernel(int packs) {
  switch (packs) {
    case 1:
      return RmsNormForwardKernel<X, Y, kSameWeight, 1>;
    case 2:
      return RmsNormForwardKernel<X, Y, kSameWeight, 2>;
    case 4:
      return RmsNormForwardKernel<X, Y, kSameWeight, 4>;
    case 8:
      return RmsNormForwardKernel<X, Y, kSameWeight, 8>;
    default:
      return RmsNormForwardLoopingKernel<X, Y>;
  }
}

// y is either of the dtype of x or f32; the weight matters only when it is that of x.
template <typename X>
ForwardKernel SelectKernel(bool same_y, bool same_weight, int packs) {
  if (same_y && same_weight) return SelectKernel<X, X, true>(packs);
  if (same_y) return SelectKernel<X, X, false>(packs);
  return SelectKernel<X, float, false>(packs);
}

bool InPacks(const ForwardCall& f, int x_bytes, int y_bytes) {
  const int lanes = 16 / x_bytes;
  const bool weight = IsAbsent(f.weight) || reinterpret_cast<uintptr_t>(f.weight.data) % 16 == 0;
  return f.norm.hidden % lanes == 0 && IsAlignedRows(f.x, x_bytes, 16) &&
         IsAlignedRows(f.y, y_bytes, 16) && weight;
}

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  const ForwardCall f = ForwardOf(*call);
  const int x_bytes = f.x.dtype == FB_F32 ? 4 : 2;
  const int y_bytes = f.y.dtype == FB_F32 ? 4 : 2;
  Policy policy = {};
  if (InPacks(f, x_bytes, y_bytes)) policy = SelectForward(call->sm, f.norm.hidden * x_bytes / 16);
  return LaunchForward(*call, policy.packs == 0 ? SelectLooping(f.norm.hidden) : policy);
}

int32_t LaunchForward(const FbCall& call, const Policy& policy) {
  const ForwardCall f = ForwardOf(call);
  if (f.norm.rows == 0) return cudaSuccess;
  const bool same_weight = IsAbsent(f.weight) || f.weight.dtype == f.x.dtype;
  const ForwardKernel kernel = DispatchFloat(f.x.dtype, [&](auto tag) {
    using X = typename decltype(tag)::type;
    return SelectKernel<X>(f.y.dtype == f.x.dtype, same_weight, policy.packs);
  });
  int64_t groups = CeilDiv(f.norm.rows, policy.rows_per_block);
  if (policy.packs != 0 && policy.blocks_per_sm > 0) {
    groups = std::min<int64_t>(groups, int64_t{call.sm_count} * policy.blocks_per_sm);
  }
  const LaunchShape shape = {.blocks = std::min<int64_t>(groups, kMaxGroups) * policy.cluster,
                             .threads = dim3(policy.threads_per_row, policy.rows_per_block),
                             .cluster = policy.cluster,
                             .stream = static_cast<cudaStream_t>(call.stream)};
  return LaunchKernel(
      kernel, shape,
      ForwardArgs{.x = f.x.data,
                  .weight = IsAbsent(f.weight) ? nullptr : f.weight.data,
                  .y = f.y.data,
                  .rstd = static_cast<float*>(IsAbsent(f.rstd) ? nullptr : f.rstd.data),
                  .x_stride = f.x.stride[0],
                  .y_stride = f.y.stride[0],
                  .weight_dtype = f.weight.dtype,
                  .norm = f.norm});
}

int32_t LoadForwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int packs : {0, 1, 2, 4, 8}) {
      for (const auto& [same_y, same_weight] :
           {std::pair{true, true}, {true, false}, {false, false}}) {
        const ForwardKernel kernel = DispatchFloat(dtype, [&](auto tag) {
          return SelectKernel<typename decltype(tag)::type>(same_y, same_weight, packs);
        });
        if (const cudaError_t error = LoadKernel(kernel); error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::rms_norm
