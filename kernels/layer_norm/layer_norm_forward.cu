#include <algorithm>

#include "kernels/common/launch.cuh"
#include "kernels/layer_norm/layer_norm_call.h"
#include "kernels/layer_norm/layer_norm_cuda.h"
#include "kernels/layer_norm/layer_norm_forward.cuh"
#include "kernels/rms_norm/rms_norm_policy.h"

namespace fuseboard::layer_norm {
namespace {

using rms_norm::Policy;
using ForwardKernel = void (*)(ForwardArgs);

template <typename X, bool kSame>
ForwardKernel SelectKernel(int packs) {
  switch (packs) {
    case 1:
      return LayerNormForwardKernel<X, kSame, 1>;
    case 2:
      return LayerNormForwardKernel<X, kSame, 2>;
    case 4:
      return LayerNormForwardKernel<X, kSame, 4>;
    case 8:
      return LayerNormForwardKernel<X, kSame, 8>;
    default:
      return LayerNormForwardLoopingKernel<X>;
  }
}

ForwardKernel SelectKernel(int32_t dtype, bool same, int packs) {
  return DispatchFloat(dtype, [&](auto tag) {
    using X = typename decltype(tag)::type;
    return same ? SelectKernel<X, true>(packs) : SelectKernel<X, false>(packs);
  });
}

bool IsAligned(const FbTensor& parameter) {
  return IsAbsent(parameter) || reinterpret_cast<uintptr_t>(parameter.data) % 16 == 0;
}

bool IsLikeX(const FbTensor& parameter, const FbTensor& x) {
  return IsAbsent(parameter) || parameter.dtype == x.dtype;
}

// The row's way into registers is rms_norm's.
Policy PolicyOf(const FbCall& call, const ForwardCall& f) {
  const int bytes = f.x.dtype == FB_F32 ? 4 : 2;
  const bool packs = f.hidden % (16 / bytes) == 0 && IsAlignedRows(f.x, bytes, 16) &&
                     IsAlignedRows(f.y, bytes, 16) && IsAligned(f.weight) && IsAligned(f.bias);
  const Policy policy = packs ? rms_norm::SelectForward(call.sm, f.hidden * bytes / 16) : Policy{};
  return policy.packs == 0 ? rms_norm::SelectLooping(f.hidden) : policy;
}

void* DataOf(const FbTensor& tensor) { return IsAbsent(tensor) ? nullptr : tensor.data; }

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  const ForwardCall f = ForwardOf(*call);
  if (f.rows == 0) return cudaSuccess;
  const Policy policy = PolicyOf(*call, f);
  const bool same = IsLikeX(f.weight, f.x) && IsLikeX(f.bias, f.x);
  int64_t groups = rms_norm::CeilDiv(f.rows, policy.rows_per_block);
  if (policy.packs != 0 && policy.blocks_per_sm > 0) {
    groups = std::min<int64_t>(groups, int64_t{call->sm_count} * policy.blocks_per_sm);
  }
  const LaunchShape shape = {.blocks = std::min(groups, rms_norm::kMaxGroups) * policy.cluster,
                             .threads = dim3(policy.threads_per_row, policy.rows_per_block),
                             .cluster = policy.cluster,
                             .stream = static_cast<cudaStream_t>(call->stream)};
  return LaunchKernel(SelectKernel(f.x.dtype, same, policy.packs), shape,
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
                                  .eps = f.eps});
}

int32_t LoadForwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int packs : {0, 1, 2, 4, 8}) {
      for (const bool same : {true, false}) {
        const cudaError_t error = LoadKernel(SelectKernel(dtype, same, packs));
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::layer_norm
