// Host side of the backward over wide rows. See wide_forward_launch.cuh.

#ifndef KERNELS_MODULATED_RMS_NORM_WIDE_BACKWARD_LAUNCH_CUH_
#define KERNELS_MODULATED_RMS_NORM_WIDE_BACKWARD_LAUNCH_CUH_

#include "kernels/modulated_rms_norm/wide_modulated.cuh"
#include "kernels/modulated_rms_norm/wide_sums.cuh"

namespace fuseboard::modulated_rms_norm {

using rms_norm::WideModulatedBackwardArgs;
using WideBackward = void (*)(WideModulatedBackwardArgs, rms_norm::WideCut);

inline WideBackward SelectWideBackwardKernel(int32_t dtype, int pieces) {
  return DispatchFloat(dtype, [&](auto tag) -> WideBackward {
    using X = typename decltype(tag)::type;
    return pieces == 1 ? rms_norm::WideBackwardKernel<X, false, false, 1, true>
                       : rms_norm::WideBackwardKernel<X, false, false, kWidePieces, true>;
  });
}

inline LaunchShape WideBackwardShape(const FbCall& call, const rms_norm::Policy& policy,
                                     int32_t dtype, int64_t rows, int64_t row_packs) {
  const rms_norm::WideForm form = WideBackwardForm(dtype == FB_F32 ? 4 : 2, row_packs);
  const int threads = policy.packs == 1 ? rms_norm::WideBackwardRoles<true, 1>::kThreads
                                        : rms_norm::WideBackwardRoles<true, kWidePieces>::kThreads;
  return rms_norm::WideShape(call, policy, rows, threads,
                             rms_norm::WideSharedBytes(policy, row_packs, form));
}

// `args` without inverse_hidden and what the cut says of the examples. Enqueues what adds up the
// clusters' sums, too.
inline cudaError_t LaunchWideBackward(const FbCall& call, int32_t dtype,
                                      const rms_norm::Policy& policy,
                                      WideModulatedBackwardArgs args, void* dweight) {
  args.inverse_hidden = 1.0f / static_cast<float>(args.hidden);
  const int64_t row_packs = rms_norm::WideRowPacks(dtype, args.hidden);
  const LaunchShape shape = WideBackwardShape(call, policy, dtype, args.rows, row_packs);
  const rms_norm::WideCut cut =
      WideCutOf(policy, shape, row_packs, WideBackwardForm(dtype == FB_F32 ? 4 : 2, row_packs));
  CutIntoSpans(&args.examples, args.rows, cut.groups, /*in_strides=*/false);
  const cudaError_t error =
      LaunchKernel(SelectWideBackwardKernel(dtype, policy.packs), shape, args, cut);
  if (error != cudaSuccess) return error;
  return LaunchWideSums(dtype,
                        {.dy_normed_sums = args.weight_partials,
                         .dy_sums = args.bias_partials,
                         .dweight_sums = args.dweight_partials,
                         .weight = args.weight,
                         .dscale = args.dscale,
                         .dshift = args.dshift,
                         .dweight = dweight,
                         .hidden = args.hidden,
                         .clusters = cut.groups,
                         .cluster_rows = args.examples.cluster_rows,
                         .rest = args.examples.rest,
                         .example_rows = args.examples.rows,
                         .column_blocks = 0,
                         .offset = args.offset},
                        call.stream);
}

// Whether the current device runs the policy's clusters. Where it does not, the other kernels do.
inline bool RunsWideBackward(const FbCall& call, int32_t dtype, int64_t hidden,
                             const rms_norm::Policy& policy) {
  return !rms_norm::MayNotRun(policy, call.sm_count) ||
         RunsClusters(
             SelectWideBackwardKernel(dtype, policy.packs),
             WideBackwardShape(call, policy, dtype, 1, rms_norm::WideRowPacks(dtype, hidden)));
}

inline cudaError_t LoadWideBackwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int pieces : {1, 2}) {
      const cudaError_t error = LoadKernel(SelectWideBackwardKernel(dtype, pieces), true);
      if (error != cudaSuccess) return error;
    }
    if (const cudaError_t error = LoadKernel(SelectWideSums(dtype))) return error;
  }
  return cudaSuccess;
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_WIDE_BACKWARD_LAUNCH_CUH_
