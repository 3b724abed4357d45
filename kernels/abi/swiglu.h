// swiglu: out = silu(gate) * up, elementwise, silu(g) = g / (1 + exp(-g)).
//
// Forward   inputs  0 gate [rows, cols]; 1 up [rows, cols]
//           outputs 0 out [rows, cols]
// Backward  inputs  0 dout [rows, cols]; 1 gate; 2 up
//           outputs 0 dgate [rows, cols], optional; 1 dup [rows, cols], optional
//
// All tensors share one dtype; any row stride (0 included), column stride 1 or refused. Arithmetic
// in fp32. With round_activation, silu(gate) is rounded to the dtype before the product, which is
// what `act_fn(gate) * up` does in a model's own code.

#ifndef KERNELS_ABI_SWIGLU_H_
#define KERNELS_ABI_SWIGLU_H_

#include <stdint.h>

typedef struct {
  uint32_t struct_size;
  int32_t round_activation;  // 0 or 1.
} FbSwigluParams;

#endif  // KERNELS_ABI_SWIGLU_H_
