// rms_norm: y = x / sqrt(mean(x^2, last dim) + eps) * (offset + weight).
//
// Forward   inputs  0 x [rows, hidden]; 1 weight [hidden], optional
//           outputs 0 y [rows, hidden], dtype below; 1 rstd [rows] f32, optional
// Backward  inputs  0 dy [rows, hidden], dtype of y; 1 x; 2 weight, optional; 3 rstd [rows] f32
//           outputs 0 dx [rows, hidden], dtype of x, optional;
//                   1 dweight [hidden], dtype of weight, optional
//
// x, dy: any row stride (0 included), column stride 1 or refused. Statistics are fp32. The dtype of
// y is x's for FB_CASTING_GEMMA and FB_CASTING_NONE, and the promotion of x's and weight's for
// FB_CASTING_LLAMA (that is what multiplying by the weight after the cast gives).
// dweight is summed in a fixed order: two runs are bit-equal.

#ifndef KERNELS_ABI_RMS_NORM_H_
#define KERNELS_ABI_RMS_NORM_H_

#include <stdint.h>

// Where the model's own code rounds to the dtype of x.
typedef enum {
  FB_CASTING_LLAMA = 0,  // after the normalisation, before the weight
  FB_CASTING_GEMMA = 1,  // once, after the weight; (offset + weight) is formed in fp32
  FB_CASTING_NONE = 2,   // all in fp32, rounded once at the end; what F.rms_norm does
} FbCasting;

typedef struct {
  uint32_t struct_size;
  int32_t casting;  // An FbCasting.
  double eps;       // Added to the mean square, >= 0.
  double offset;    // Added to the weight in fp32; Gemma has 1. Ignored without a weight.
} FbRmsNormParams;

#endif  // KERNELS_ABI_RMS_NORM_H_
