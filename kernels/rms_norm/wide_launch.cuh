// Host side of the kernels for wide rows, for rms_norm, fused_add_rms_norm and layer_norm.

#ifndef KERNELS_RMS_NORM_WIDE_LAUNCH_CUH_
#define KERNELS_RMS_NORM_WIDE_LAUNCH_CUH_

#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/rms_norm/wide_backward.cuh"
#include "kernels/rms_norm/wide_forward.cuh"

namespace fuseboard::rms_norm {

using WideForward = void (*)(WideForwardArgs, WideCut);
using WideBackward = void (*)(WideBackwardArgs, WideCut);

template <bool kCenter, bool kAdd>
WideForward SelectWideForward(int32_t dtype, int pieces) {
  return DispatchFloat(dtype, [&](auto tag) -> WideForward {
    using X = typename decltype(tag)::type;
    return pieces == 1 ? WideForwardKernel<X, kCenter, kAdd, 1>
                       : WideForwardKernel<X, kCenter, kAdd, kWideForwardPieces>;
  });
}

template <bool kCenter, bool kAdd>
WideBackward SelectWideBackward(int32_t dtype, int pieces) {
  return DispatchFloat(dtype, [&](auto tag) -> WideBackward {
    using X = typename decltype(tag)::type;
    return pieces == 1 ? WideBackwardKernel<X, kCenter, kAdd, 1>
                       : WideBackwardKernel<X, kCenter, kAdd, kWideBackwardPieces<kCenter>>;
  });
}

inline int64_t WideRowPacks(int32_t dtype, int64_t hidden) {
  return hidden * (dtype == FB_F32 ? 4 : 2) / 16;
}

// So much that no second block fits on a multiprocessor, while others have none.
inline constexpr int64_t kWideOwnSharedBytes = 115 * 1024;

// `threads` to a block.
inline LaunchShape WideShape(const FbCall& call, const Policy& policy, int64_t rows, int threads,
                             int64_t shared_bytes) {
  return {.blocks = BackwardBlocks(policy, rows, call.sm_count),
          .threads = dim3(static_cast<unsigned>(threads)),
          .cluster = policy.cluster,
          .shared_bytes = static_cast<int>(std::max(shared_bytes, kWideOwnSharedBytes)),
          .stream = static_cast<cudaStream_t>(call.stream)};
}

template <bool kCenter, bool kAdd>
LaunchShape WideForwardShape(const FbCall& call, const Policy& policy, int64_t rows,
                             int64_t row_packs) {
  return WideShape(call, policy, rows, WideForwardRoles::kThreads,
                   WideSharedBytes(policy, row_packs, kWideForward<kCenter, kAdd>));
}

template <bool kCenter, bool kAdd>
LaunchShape WideBackwardShape(const FbCall& call, const Policy& policy, int64_t rows,
                              int64_t row_packs) {
  constexpr int kPieces = kWideBackwardPieces<kCenter>;
  const int threads = policy.packs == 1 ? WideBackwardRoles<kCenter, 1>::kThreads
                                        : WideBackwardRoles<kCenter, kPieces>::kThreads;
  return WideShape(call, policy, rows, threads,
                   WideSharedBytes(policy, row_packs, kWideBackward<kCenter, kAdd>));
}

inline WideCut WideCutOf(const Policy& policy, const LaunchShape& shape, int64_t row_packs) {
  WideCut cut = CutWideRow(policy, row_packs);
  cut.groups = static_cast<int32_t>(shape.blocks / policy.cluster);
  return cut;
}

// Whether the current device runs the policy's clusters. Where it does not, the other kernels do.
template <bool kCenter, bool kAdd>
bool RunsWideForward(const FbCall& call, int32_t dtype, int64_t hidden, const Policy& policy) {
  return !MayNotRun(policy, call.sm_count) ||
         RunsClusters(
             SelectWideForward<kCenter, kAdd>(dtype, policy.packs),
             WideForwardShape<kCenter, kAdd>(call, policy, 1, WideRowPacks(dtype, hidden)));
}

template <bool kCenter, bool kAdd>
bool RunsWideBackward(const FbCall& call, int32_t dtype, int64_t hidden, const Policy& policy) {
  return !MayNotRun(policy, call.sm_count) ||
         RunsClusters(
             SelectWideBackward<kCenter, kAdd>(dtype, policy.packs),
             WideBackwardShape<kCenter, kAdd>(call, policy, 1, WideRowPacks(dtype, hidden)));
}

template <bool kCenter, bool kAdd>
cudaError_t LaunchWideForward(const FbCall& call, int32_t dtype, const Policy& policy,
                              WideForwardArgs args) {
  args.inverse_hidden = 1.0f / static_cast<float>(args.hidden);
  const int64_t row_packs = WideRowPacks(dtype, args.hidden);
  const LaunchShape shape = WideForwardShape<kCenter, kAdd>(call, policy, args.rows, row_packs);
  return LaunchKernel(SelectWideForward<kCenter, kAdd>(dtype, policy.packs), shape, args,
                      WideCutOf(policy, shape, row_packs));
}

template <bool kCenter, bool kAdd>
cudaError_t LaunchWideBackward(const FbCall& call, int32_t dtype, const Policy& policy,
                               WideBackwardArgs args) {
  args.inverse_hidden = 1.0f / static_cast<float>(args.hidden);
  const int64_t row_packs = WideRowPacks(dtype, args.hidden);
  const LaunchShape shape = WideBackwardShape<kCenter, kAdd>(call, policy, args.rows, row_packs);
  return LaunchKernel(SelectWideBackward<kCenter, kAdd>(dtype, policy.packs), shape, args,
                      WideCutOf(policy, shape, row_packs));
}

// Of one pass: what a library's file does not launch it need not have.
template <bool kCenter, bool kAdd, bool kForward>
cudaError_t LoadWideKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int pieces : {1, 2}) {
      const cudaError_t error = [&] {
        if constexpr (kForward) {
          return LoadKernel(SelectWideForward<kCenter, kAdd>(dtype, pieces), true);
        } else {
          return LoadKernel(SelectWideBackward<kCenter, kAdd>(dtype, pieces), true);
        }
      }();
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_WIDE_LAUNCH_CUH_
