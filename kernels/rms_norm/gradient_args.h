// What the backward kernels of the norms for few rows and for wide ones have in common: the rows
// that they read and write. Host and device; the formulas are those of rms_norm_backward.cuh and
// layer_norm_backward.cuh.

#ifndef KERNELS_RMS_NORM_GRADIENT_ARGS_H_
#define KERNELS_RMS_NORM_GRADIENT_ARGS_H_

#include <stdint.h>

#include "kernels/common/reject.h"

namespace fuseboard::rms_norm {

struct GradientArgs {
  const void* dy;
  const void* x;
  const void* weight;  // Or NULL.
  const void* dsum;    // kAdd: added to dx; or NULL.
  const float* mean;   // kCenter.
  const float* rstd;
  void* dx;  // Or NULL, for few rows.
  int64_t dy_stride;
  int64_t x_stride;
  int64_t dsum_stride;
  int64_t dx_stride;
  float inverse_hidden;
  float offset;       // Added to the weight.
  bool round_normed;  // n, for dweight, to the dtype of x.
};

// Of a call of any norm, without what not all have.
template <typename Call>
GradientArgs GradientArgsOf(const Call& b) {
  return {.dy = b.dy.data,
          .x = b.x.data,
          .weight = IsAbsent(b.weight) ? nullptr : b.weight.data,
          .dsum = nullptr,
          .mean = nullptr,
          .rstd = static_cast<const float*>(b.rstd.data),
          .dx = IsAbsent(b.dx) ? nullptr : b.dx.data,
          .dy_stride = b.dy.stride[0],
          .x_stride = b.x.stride[0],
          .dsum_stride = 0,
          .dx_stride = b.dx.stride[0],
          .inverse_hidden = 0.0f,
          .offset = 0.0f,
          .round_normed = false};
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_GRADIENT_ARGS_H_
