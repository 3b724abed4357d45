// What the kernels of modulated_rms_norm's backward share: their arguments, the rows of a slice,
// what dy is multiplied with, and where the sums of a slice go.

#ifndef KERNELS_MODULATED_RMS_NORM_BACKWARD_ARGS_CUH_
#define KERNELS_MODULATED_RMS_NORM_BACKWARD_ARGS_CUH_

#include "kernels/common/quotient.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_call.h"

namespace fuseboard::modulated_rms_norm {

// A result in rows of hidden elements.
struct Result {
  void* base;  // Or NULL: not needed.
  int32_t dtype;
};

struct BackwardArgs {
  const void* dy;
  const void* x;
  const void* weight;  // Or NULL.
  const void* scale;
  const float* rstd;
  void* dx;  // Or NULL.
  Result dscale;
  Result dshift;
  Result dweight;
  float* dy_normed_sums;  // [slices of a group, groups, hidden]; or NULL: not needed.
  float* dy_sums;         // Likewise.
  int64_t dy_stride;
  int64_t x_stride;
  int64_t dx_stride;
  int64_t scale_stride;
  int32_t weight_dtype;
  int32_t scale_dtype;
  int32_t stages;
  bool shared_factor;
  bool direct;  // A group is a slice, whose sums the main kernel makes dscale and dshift of.
  int64_t groups;
  int64_t group_rows;
  Slices slices;
  rms_norm::Norm norm;
};

// Rows `begin`, `begin` + args.slices.per_group, ... before `end`: those of a group's slices are
// read together, as memory has them. Row `sums` of the sums is that of the slice.
struct SliceRows {
  int64_t group;
  int64_t begin;
  int64_t end;
  int64_t sums;
};

__device__ __forceinline__ SliceRows RowsOf(const BackwardArgs& args, int64_t index) {
  const int64_t group = Quotient(index, args.slices.per_group);
  const int64_t slice = index - group * args.slices.per_group;
  const int64_t begin = group * args.group_rows;
  return {group, begin + slice, begin + args.group_rows, slice * args.groups + group};
}

// offset + weight.
template <int kLanes>
__device__ __forceinline__ void LoadWeight(const BackwardArgs& args, int64_t column,
                                           float (&out)[kLanes]) {
#pragma unroll
  for (int i = 0; i < kLanes; ++i) out[i] = 1.0f;
  if (args.weight == nullptr) return;
  LoadFloatsOf<kLanes>(args.weight_dtype, args.weight, column, out);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) out[i] += args.norm.offset;
}

// 1 + scale.
template <int kLanes>
__device__ __forceinline__ void LoadOnePlusScale(const BackwardArgs& args, int64_t group,
                                                 int64_t column, float (&out)[kLanes]) {
  LoadFloatsOf<kLanes>(args.scale_dtype, args.scale, group * args.scale_stride + column, out);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) out[i] += 1.0f;
}

// (1 + scale) * (offset + weight).
template <int kLanes>
__device__ __forceinline__ void LoadFactor(const BackwardArgs& args, int64_t group, int64_t column,
                                           float (&out)[kLanes]) {
  float weight[kLanes];
  LoadOnePlusScale<kLanes>(args, group, column, out);
  LoadWeight<kLanes>(args, column, weight);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) out[i] *= weight[i];
}

// dscale and dshift of a group, in `kLanes` columns from `column` on, of its sums.
template <int kLanes>
__device__ __forceinline__ void StoreResults(const BackwardArgs& args, int64_t group,
                                             int64_t column, const float (&dy_normed)[kLanes],
                                             const float (&dy)[kLanes]) {
  const int64_t at = group * args.norm.hidden + column;
  if (args.dshift.base != nullptr) {
    StoreFloatsOf<kLanes>(args.dshift.dtype, args.dshift.base, at, dy);
  }
  if (args.dscale.base == nullptr) return;
  float dscale[kLanes];
  LoadWeight<kLanes>(args, column, dscale);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) dscale[i] *= dy_normed[i];
  StoreFloatsOf<kLanes>(args.dscale.dtype, args.dscale.base, at, dscale);
}

// What a slice adds up to.
template <int kLanes>
__device__ __forceinline__ void StoreSums(const BackwardArgs& args, const SliceRows& slice,
                                          int64_t column, const float (&dy_normed)[kLanes],
                                          const float (&dy)[kLanes]) {
  const int64_t at = slice.sums * args.norm.hidden + column;
  if (args.dy_normed_sums != nullptr) {
    StoreFloats<float, kLanes>(args.dy_normed_sums + at, dy_normed);
  }
  if (args.dy_sums != nullptr) StoreFloats<float, kLanes>(args.dy_sums + at, dy);
  if (args.direct) StoreResults<kLanes>(args, slice.group, column, dy_normed, dy);
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_BACKWARD_ARGS_CUH_
