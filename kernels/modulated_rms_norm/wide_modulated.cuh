// What the host side of modulated_rms_norm's kernels for wide rows (kernels/rms_norm/wide_*.cuh)
// has in common for both passes. They take x, weight, scale, shift and what is made of them in one
// dtype.

#ifndef KERNELS_MODULATED_RMS_NORM_WIDE_MODULATED_CUH_
#define KERNELS_MODULATED_RMS_NORM_WIDE_MODULATED_CUH_

#include "kernels/modulated_rms_norm/modulated_rms_norm_policy.h"
#include "kernels/rms_norm/wide_launch.cuh"

namespace fuseboard::modulated_rms_norm {

inline rms_norm::WideCut WideCutOf(const rms_norm::Policy& policy, const LaunchShape& shape,
                                   int64_t row_packs, const rms_norm::WideForm& form) {
  rms_norm::WideCut cut = rms_norm::CutWideRow(policy, row_packs, form.reach);
  cut.groups = static_cast<int32_t>(shape.blocks / policy.cluster);
  return cut;
}

// The rows in spans of alike length, one to each of `clusters`; or every clusters-th row to each.
inline void CutIntoSpans(rms_norm::WideExamples* examples, int64_t rows, int32_t clusters,
                         bool in_strides) {
  examples->cluster_rows = static_cast<int32_t>(rows / clusters);
  examples->rest = static_cast<int32_t>(rows % clusters);
  examples->step = in_strides ? clusters : 1;
}

// Clusters that share the rows.
inline int64_t WideClusters(const FbCall& call, const rms_norm::Policy& policy, int64_t rows) {
  return rms_norm::BackwardBlocks(policy, rows, call.sm_count) / policy.cluster;
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_WIDE_MODULATED_CUH_
