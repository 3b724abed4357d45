// What the kernels of modulated_rms_norm's backward share: their arguments, what dy is multiplied
// with, and where the sums of a slice go.

#ifndef KERNELS_MODULATED_RMS_NORM_BACKWARD_ARGS_CUH_
#define KERNELS_MODULATED_RMS_NORM_BACKWARD_ARGS_CUH_

#include "kernels/common/vector.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_call.h"

namespace fuseboard::modulated_rms_norm {

// Rows of sums, one per slice; of a dtype known at run time in the packed kernel, f32 in the other.
struct Sums {
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
  Sums dscale;
  Sums dshift;
  float* dweight;  // Rows of sums too; or NULL.
  int64_t dy_stride;
  int64_t x_stride;
  int64_t dx_stride;
  int64_t scale_stride;
  int32_t weight_dtype;
  int32_t scale_dtype;
  int32_t stages;
  bool shared_factor;
  int64_t groups;
  int64_t group_rows;
  Slices slices;
  rms_norm::Norm norm;
};

__device__ __forceinline__ Slice SliceOf(const BackwardArgs& args, int64_t index) {
  const int64_t group = index / args.slices.per_group;
  const int64_t slice = index - group * args.slices.per_group;
  const int64_t begin = group * args.group_rows + slice * args.slices.rows;
  const int64_t end = min(begin + args.slices.rows, (group + 1) * args.group_rows);
  return {group, begin, end, slice * args.groups + group};
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

// What a slice adds up to, in `kLanes` columns from `column` on, as the gradients want it.
template <int kLanes>
__device__ __forceinline__ void StoreSums(const BackwardArgs& args, const Slice& slice,
                                          int64_t column, const float (&dy_normed)[kLanes],
                                          const float (&dy)[kLanes]) {
  const int64_t at = slice.sums * args.norm.hidden + column;
  if (args.dshift.base != nullptr) {
    StoreFloatsOf<kLanes>(args.dshift.dtype, args.dshift.base, at, dy);
  }
  float factor[kLanes];
  if (args.dscale.base != nullptr) {
    LoadWeight<kLanes>(args, column, factor);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) factor[i] *= dy_normed[i];
    StoreFloatsOf<kLanes>(args.dscale.dtype, args.dscale.base, at, factor);
  }
  if (args.dweight != nullptr) {
    LoadOnePlusScale<kLanes>(args, slice.group, column, factor);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) factor[i] *= dy_normed[i];
    StoreFloats<float, kLanes>(args.dweight + at, factor);
  }
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_BACKWARD_ARGS_CUH_
