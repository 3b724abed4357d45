// Host side of the forward over wide rows. See wide_modulated.cuh; apart from the backward's, so
// that no library has a kernel twice.

#ifndef KERNELS_MODULATED_RMS_NORM_WIDE_FORWARD_LAUNCH_CUH_
#define KERNELS_MODULATED_RMS_NORM_WIDE_FORWARD_LAUNCH_CUH_

#include "kernels/modulated_rms_norm/wide_modulated.cuh"

namespace fuseboard::modulated_rms_norm {

using rms_norm::WideModulatedForwardArgs;
using WideForward = void (*)(WideModulatedForwardArgs, rms_norm::WideCut);

inline WideForward SelectWideForwardKernel(int32_t dtype, int pieces) {
  return DispatchFloat(dtype, [&](auto tag) -> WideForward {
    using X = typename decltype(tag)::type;
    return pieces == 1
               ? rms_norm::WideForwardKernel<X, false, false, 1, true>
               : rms_norm::WideForwardKernel<X, false, false, rms_norm::kWideForwardPieces, true>;
  });
}

inline LaunchShape WideForwardShape(const FbCall& call, const rms_norm::Policy& policy,
                                    int32_t dtype, int64_t rows, int64_t row_packs) {
  const rms_norm::WideForm form = WideForwardForm(dtype == FB_F32 ? 4 : 2);
  return rms_norm::WideShape(call, policy, rows, rms_norm::WideForwardRoles::kThreads,
                             rms_norm::WideSharedBytes(policy, row_packs, form));
}

// `args` without inverse_hidden and what the cut says of the examples.
inline cudaError_t LaunchWideForward(const FbCall& call, int32_t dtype,
                                     const rms_norm::Policy& policy, WideModulatedForwardArgs args,
                                     bool in_strides) {
  args.inverse_hidden = 1.0f / static_cast<float>(args.hidden);
  const int64_t row_packs = rms_norm::WideRowPacks(dtype, args.hidden);
  const LaunchShape shape = WideForwardShape(call, policy, dtype, args.rows, row_packs);
  const rms_norm::WideCut cut =
      WideCutOf(policy, shape, row_packs, WideForwardForm(dtype == FB_F32 ? 4 : 2));
  CutIntoSpans(&args.examples, args.rows, cut.groups, in_strides);
  return LaunchKernel(SelectWideForwardKernel(dtype, policy.packs), shape, args, cut);
}

// Whether the current device runs the policy's clusters. Where it does not, the other kernels do.
inline bool RunsWideForward(const FbCall& call, int32_t dtype, int64_t hidden,
                            const rms_norm::Policy& policy) {
  return !rms_norm::MayNotRun(policy, call.sm_count) ||
         RunsClusters(
             SelectWideForwardKernel(dtype, policy.packs),
             WideForwardShape(call, policy, dtype, 1, rms_norm::WideRowPacks(dtype, hidden)));
}

inline cudaError_t LoadWideForwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int pieces : {1, 2}) {
      const cudaError_t error = LoadKernel(SelectWideForwardKernel(dtype, pieces), true);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_WIDE_FORWARD_LAUNCH_CUH_
