// layer_norm: y = (x - mean) / sqrt(var + eps) * weight + bias, mean and var over the last
// dimension.
//
// Forward   inputs  0 x [rows, hidden]; 1 weight [hidden], optional; 2 bias [hidden], optional
//           outputs 0 y [rows, hidden], dtype of x; 1 mean [rows] f32, optional;
//                   2 rstd [rows] f32, optional
// Backward  inputs  0 dy [rows, hidden], dtype of x; 1 x; 2 weight, optional; 3 mean [rows] f32;
//                   4 rstd [rows] f32
//           outputs 0 dx [rows, hidden], optional; 1 dweight [hidden], optional;
//                   2 dbias [hidden], optional
//
// x, dy: any row stride (0 included), column stride 1 or refused. weight and bias may each have
// another float dtype than x; dweight has that of weight, dbias any. The variance is the mean of
// squared distances from the mean, taken after the mean: no digits are lost where the mean is
// large. Arithmetic in f32, rounded once. dweight and dbias are summed in a fixed order: two runs
// are bit-equal.

#ifndef KERNELS_ABI_LAYER_NORM_H_
#define KERNELS_ABI_LAYER_NORM_H_

#include <stdint.h>

typedef struct {
  uint32_t struct_size;
  double eps;  // Added to the variance, >= 0.
} FbLayerNormParams;

#endif  // KERNELS_ABI_LAYER_NORM_H_
