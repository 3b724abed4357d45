// Host side of the kernels for wide rows, for rms_norm, fused_add_rms_norm and layer_norm.

#ifndef KERNELS_RMS_NORM_WIDE_LAUNCH_CUH_
#define KERNELS_RMS_NORM_WIDE_LAUNCH_CUH_

#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/rms_norm/wide_backward.cuh"
#include "kernels/rms_norm/wide_forward.cuh"

namespace fuseboard::rms_norm {

using WideForward = void (*)(WideForwardArgs);
using WideBackward = void (*)(WideBackwardArgs);

template <bool kCenter, bool kAdd>
WideForward SelectWideForward(int32_t dtype, bool cluster) {
  return DispatchFloat(dtype, [&](auto tag) -> WideForward {
    using X = typename decltype(tag)::type;
    return cluster ? WideForwardKernel<X, kCenter, kAdd, RowShare::kCluster>
                   : WideForwardKernel<X, kCenter, kAdd, RowShare::kBlock>;
  });
}

template <bool kCenter, bool kAdd>
WideBackward SelectWideBackward(int32_t dtype, bool cluster) {
  return DispatchFloat(dtype, [&](auto tag) -> WideBackward {
    using X = typename decltype(tag)::type;
    return cluster ? WideBackwardKernel<X, kCenter, kAdd, RowShare::kCluster>
                   : WideBackwardKernel<X, kCenter, kAdd, RowShare::kBlock>;
  });
}

inline LaunchShape WideShape(const Policy& policy, int64_t blocks, int64_t shared_bytes,
                             void* stream) {
  return {.blocks = blocks,
          .threads = dim3(static_cast<unsigned>(policy.threads_per_row),
                          static_cast<unsigned>(policy.rows_per_block)),
          .cluster = policy.cluster,
          .shared_bytes = static_cast<int>(shared_bytes),
          .stream = static_cast<cudaStream_t>(stream)};
}

template <bool kCenter, bool kAdd>
LaunchShape WideForwardShape(const FbCall& call, const Policy& policy, int64_t rows) {
  const int64_t bytes = WideSharedBytes(policy, kAdd ? 2 : 1, kCenter ? 2 : 1);
  return WideShape(policy, BackwardBlocks(policy, rows, call.sm_count), bytes, call.stream);
}

template <bool kAdd>
LaunchShape WideBackwardShape(const FbCall& call, const Policy& policy, int64_t rows) {
  const int64_t bytes = WideSharedBytes(policy, kAdd ? 3 : 2, 1);
  return WideShape(policy, BackwardBlocks(policy, rows, call.sm_count), bytes, call.stream);
}

// Whether the current device runs the policy's clusters. Where it does not, the other kernels do.
template <bool kCenter, bool kAdd>
bool RunsWideForward(const FbCall& call, int32_t dtype, const Policy& policy) {
  return policy.cluster <= kPortableCluster ||
         RunsClusters(SelectWideForward<kCenter, kAdd>(dtype, true),
                      WideForwardShape<kCenter, kAdd>(call, policy, 1));
}

template <bool kCenter, bool kAdd>
bool RunsWideBackward(const FbCall& call, int32_t dtype, const Policy& policy) {
  return policy.cluster <= kPortableCluster ||
         RunsClusters(SelectWideBackward<kCenter, kAdd>(dtype, true),
                      WideBackwardShape<kAdd>(call, policy, 1));
}

template <bool kCenter, bool kAdd>
cudaError_t LaunchWideForward(const FbCall& call, int32_t dtype, const Policy& policy,
                              WideForwardArgs args) {
  args.inverse_hidden = 1.0f / static_cast<float>(args.hidden);
  args.stages = policy.stages;
  return LaunchKernel(SelectWideForward<kCenter, kAdd>(dtype, policy.cluster > 1),
                      WideForwardShape<kCenter, kAdd>(call, policy, args.rows), args);
}

template <bool kCenter, bool kAdd>
cudaError_t LaunchWideBackward(const FbCall& call, int32_t dtype, const Policy& policy,
                               WideBackwardArgs args) {
  args.inverse_hidden = 1.0f / static_cast<float>(args.hidden);
  args.stages = policy.stages;
  return LaunchKernel(SelectWideBackward<kCenter, kAdd>(dtype, policy.cluster > 1),
                      WideBackwardShape<kAdd>(call, policy, args.rows), args);
}

template <bool kCenter, bool kAdd>
cudaError_t LoadWideKernels(bool forward) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const bool cluster : {true, false}) {
      const cudaError_t error =
          forward ? LoadKernel(SelectWideForward<kCenter, kAdd>(dtype, cluster), true)
                  : LoadKernel(SelectWideBackward<kCenter, kAdd>(dtype, cluster), true);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_WIDE_LAUNCH_CUH_
