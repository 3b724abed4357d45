// group_norm: y = (x - mean) / sqrt(var + eps) * weight + bias, mean and var over each group of
// neighbouring channels of each example.
//
// Forward   inputs  0 x [examples, channels, elements]; 1 weight [channels], optional;
//                   2 bias [channels], optional
//           outputs 0 y, shape and dtype of x; 1 mean [examples * groups] f32, optional;
//                   2 rstd [examples * groups] f32, optional
// Backward  inputs  0 dy, shape and dtype of x; 1 x; 2 weight, optional;
//                   3 mean [examples * groups] f32; 4 rstd [examples * groups] f32
//           outputs 0 dx, shape and dtype of x, optional; 1 dweight [channels], optional;
//                   2 dbias [channels], optional
//
// x, y, dy and dx lie in memory one element after the other, or are refused; any base that is
// aligned to an element. weight and bias may each have another float dtype than x; dweight has that
// of weight, dbias any. The variance is the mean of squared distances from a value near the mean:
// no digits are lost where the mean is large. Arithmetic in f32, rounded once. dweight and dbias
// are summed in a fixed order: two runs are bit-equal.

#ifndef KERNELS_ABI_GROUP_NORM_H_
#define KERNELS_ABI_GROUP_NORM_H_

#include <stdint.h>

typedef struct {
  uint32_t struct_size;
  int64_t groups;  // At least 1, and a divisor of the number of channels.
  double eps;      // Added to the variance, >= 0.
} FbGroupNormParams;

#endif  // KERNELS_ABI_GROUP_NORM_H_
