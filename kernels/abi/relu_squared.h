// relu_squared: y = max(x, 0)^2, elementwise. NaN stays NaN.
//
// Forward   inputs  0 x [rows, cols]
//           outputs 0 y [rows, cols]
// Backward  inputs  0 dy [rows, cols]; 1 x
//           outputs 0 dx [rows, cols]
//
// All tensors share one dtype; any row stride (0 included), column stride 1 or refused. Arithmetic
// in fp32, rounded once: the bits of `square(relu(x))` and of its autograd. There are no
// parameters; FbCall::params is not looked at.

#ifndef KERNELS_ABI_RELU_SQUARED_H_
#define KERNELS_ABI_RELU_SQUARED_H_

#include "kernels/abi/kernel_abi.h"

#endif  // KERNELS_ABI_RELU_SQUARED_H_
