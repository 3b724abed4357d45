// The CPU half of modulated_rms_norm's table, once per instruction set (kernels/common/cpu_isa.h).

#ifndef KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CPU_H_
#define KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CPU_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_call.h"

namespace fuseboard::modulated_rms_norm {

namespace baseline {
int32_t ForwardCpu(const FbCall* call, void* workspace);
int32_t BackwardCpu(const FbCall* call, void* workspace);
}  // namespace baseline

namespace avx2 {
int32_t ForwardCpu(const FbCall* call, void* workspace);
int32_t BackwardCpu(const FbCall* call, void* workspace);
}  // namespace avx2

namespace avx512 {
int32_t ForwardCpu(const FbCall* call, void* workspace);
int32_t BackwardCpu(const FbCall* call, void* workspace);
}  // namespace avx512

// How the backward is cut, by the shape alone, so that the number of threads does not change a bit.
// A part is a run of slices that one thread takes one after the other, with one sum for dweight.
struct CpuPlan {
  Slices slices;
  int64_t slice_count;
  int64_t part_slices;  // Of all but the last.
  int64_t parts;
};

constexpr CpuPlan CpuPlanOf(int64_t groups, int64_t group_rows) {
  constexpr int64_t kMaxParts = 64;
  constexpr int64_t kMinRows = 16;
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t wanted = groups == 0 ? 1 : ceil_div(kMaxParts, groups);
  const int64_t most = ceil_div(group_rows, kMinRows);
  const int64_t per_group = wanted < most ? wanted : most;
  CpuPlan plan = {};
  plan.slices = SlicesOf(group_rows, per_group < 1 ? 1 : per_group);
  plan.slice_count = groups * plan.slices.per_group;
  plan.part_slices = ceil_div(plan.slice_count, kMaxParts);
  plan.parts = plan.part_slices == 0 ? 0 : ceil_div(plan.slice_count, plan.part_slices);
  return plan;
}

// Where in the workspace, in floats, what lies; all but `size` are 0 if they are not needed.
struct CpuWorkspace {
  int64_t means;    // [rows]
  int64_t dscale;   // [slices, hidden]
  int64_t dshift;   // [slices, hidden]
  int64_t dweight;  // [parts, hidden]
  int64_t size;
};

inline CpuWorkspace CpuWorkspaceOf(const BackwardCall& b) {
  const CpuPlan plan = CpuPlanOf(b.groups, b.group_rows);
  const int64_t sums = plan.slices.per_group > 1 ? plan.slice_count * b.norm.hidden : 0;
  CpuWorkspace w = {};
  const auto take = [&](int64_t floats) {
    const int64_t at = w.size;
    w.size += floats;
    return at;
  };
  w.means = take(IsAbsent(b.dx) ? 0 : b.norm.rows);
  w.dscale = take(IsAbsent(b.dscale) ? 0 : sums);
  w.dshift = take(IsAbsent(b.dshift) ? 0 : sums);
  w.dweight = take(IsAbsent(b.dweight) ? 0 : plan.parts * b.norm.hidden);
  return w;
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CPU_H_
