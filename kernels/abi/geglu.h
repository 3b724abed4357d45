// geglu: out = gelu(gate) * up, elementwise.
//
// Forward   inputs  0 gate [rows, cols]; 1 up [rows, cols]
//           outputs 0 out [rows, cols]
// Backward  inputs  0 dout [rows, cols]; 1 gate; 2 up
//           outputs 0 dgate [rows, cols], optional; 1 dup [rows, cols], optional
//
// All tensors share one dtype; any row stride (0 included), column stride 1 or refused. Arithmetic
// in fp32. With round_activation, gelu(gate) is rounded to the dtype before the product, which is
// what `act_fn(gate) * up` does in a model's own code.

#ifndef KERNELS_ABI_GEGLU_H_
#define KERNELS_ABI_GEGLU_H_

#include <stdint.h>

typedef enum {
  FB_GELU_TANH = 0,   // g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2
  FB_GELU_EXACT = 1,  // g (1 + erf(g / sqrt 2)) / 2
} FbGelu;

typedef struct {
  uint32_t struct_size;
  int32_t round_activation;  // 0 or 1.
  int32_t gelu;              // An FbGelu.
} FbGegluParams;

#endif  // KERNELS_ABI_GEGLU_H_
