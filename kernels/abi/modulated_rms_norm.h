// modulated_rms_norm: y = (1 + scale) * rms_norm(x) + shift: the norm in a block of a diffusion
// transformer, whose scale and shift are made of what each example is conditioned on.
//
// Forward   inputs  0 x [rows, hidden]; 1 weight [hidden], optional; 2 scale [groups, hidden];
//                   3 shift [groups, hidden]
//           outputs 0 y [rows, hidden]; 1 rstd [rows] f32, optional
// Backward  inputs  0 dy [rows, hidden], dtype of x or f32; 1 x; 2 weight, optional; 3 scale;
//                   4 rstd [rows] f32
//           outputs 0 dx [rows, hidden], dtype of x, optional;
//                   1 dweight [hidden], dtype of weight, optional;
//                   2 dscale [groups, hidden], dtype of scale, rows one after the other, optional;
//                   3 dshift [groups, hidden], f32, f16 or bf16, rows likewise, optional
//
// The rows are those of the groups one after the other, as many in each: a row of scale and shift
// per example, or per row. The dtype of y is the promotion of rms_norm's, scale's and shift's.
// FB_CASTING_LLAMA rounds x * rstd to the dtype of x; all else is in fp32, rounded once.
//
// Parameters, strides and casting are as in kernels/abi/rms_norm.h; scale and shift have any row
// stride too. Sums are added in a fixed order: two runs are bit-equal.

#ifndef KERNELS_ABI_MODULATED_RMS_NORM_H_
#define KERNELS_ABI_MODULATED_RMS_NORM_H_

#include "kernels/abi/rms_norm.h"

typedef FbRmsNormParams FbModulatedRmsNormParams;

#endif  // KERNELS_ABI_MODULATED_RMS_NORM_H_
