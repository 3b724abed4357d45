// fused_add_rms_norm: sum = x + residual, y = rms_norm(sum): the two ends of a residual block in
// one pass. The sum is rounded to the dtype of x before it is normalised, as in a model's own code.
//
// Forward   inputs  0 x [rows, hidden]; 1 residual [rows, hidden]; 2 weight [hidden], optional
//           outputs 0 y [rows, hidden]; 1 sum [rows, hidden]; 2 rstd [rows] f32, optional
// Backward  inputs  0 dy [rows, hidden], dtype of y; 1 dsum [rows, hidden], optional: the gradient
//                   of sum from elsewhere; 2 sum; 3 weight, optional; 4 rstd [rows] f32
//           outputs 0 dx [rows, hidden], optional: the gradient of x and of residual;
//                   1 dweight [hidden], dtype of weight, optional
//
// x, residual, sum, dsum and dx share a dtype. Parameters, strides, the dtype of y and determinism
// are as in kernels/abi/rms_norm.h; outputs overlap no input.

#ifndef KERNELS_ABI_FUSED_ADD_RMS_NORM_H_
#define KERNELS_ABI_FUSED_ADD_RMS_NORM_H_

#include "kernels/abi/rms_norm.h"

typedef FbRmsNormParams FbFusedAddRmsNormParams;

#endif  // KERNELS_ABI_FUSED_ADD_RMS_NORM_H_
