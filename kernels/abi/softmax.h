// softmax: y = exp(x - max(x)) / sum(exp(x - max(x))), over each row.
//
// Forward   inputs  0 x [rows, cols]
//           outputs 0 y [rows, cols]
// Backward  inputs  0 dy [rows, cols]; 1 y [rows, cols], as forward gave it
//           outputs 0 dx [rows, cols] = y * (dy - sum(dy * y))
//
// All tensors share one dtype, f32, f16 or bf16; inputs: any row stride (0 included), outputs: rows
// that do not overlap; column stride 1 or refused. 1 to 2^30 columns, or none. Arithmetic in fp32,
// one rounding at the end. Rows of -inf only, and rows with NaN or +inf, become NaN, as natively;
// a single -inf becomes exactly 0. There are no parameters: `params` is not looked at. Two runs are
// bit-equal.

#ifndef KERNELS_ABI_SOFTMAX_H_
#define KERNELS_ABI_SOFTMAX_H_

#include "kernels/abi/kernel_abi.h"

#endif  // KERNELS_ABI_SOFTMAX_H_
