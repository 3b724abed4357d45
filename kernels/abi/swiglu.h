// swiglu: out = act(gate) * up, elementwise, with act = silu, silu(g) = g / (1 + exp(-g)), unless
// the options of FbSwigluParams say more.
//
// Forward   inputs  0 gate [rows, cols]; 1 up [rows, cols]
//           outputs 0 out [rows, cols]
// Backward  inputs  0 dout [rows, cols]; 1 gate; 2 up
//           outputs 0 dgate [rows, cols], optional; 1 dup [rows, cols], optional
//
// All tensors share one dtype; any row stride (0 included), column stride 1 or refused. Arithmetic
// in fp32. With round_activation, act(gate) is rounded to the dtype before the product, which is
// what `act_fn(gate) * up` does in a model's own code.
//
// gate and up may instead be the even and the odd columns of one matrix: column stride 2, one row
// stride, up one element behind gate. dgate and dup are then of this form too, and both present.

#ifndef KERNELS_ABI_SWIGLU_H_
#define KERNELS_ABI_SWIGLU_H_

#include <stdint.h>

//   g   = min(gate_multiplier * gate, limit)
//   u   = min(max(up, -limit), limit) + up_offset
//   out = out_multiplier * g / (1 + exp(-alpha * g)) * u
//
// The gradient passes a bound where the value is on it or inside, and is 0 for NaN, as that of
// torch.clamp. A struct that ends before an option has its default.
typedef struct {
  uint32_t struct_size;
  int32_t round_activation;  // 0 or 1.
  double gate_multiplier;    // 1 by default; Falcon-H1.
  double out_multiplier;     // 1 by default.
  double alpha;              // 1 by default; GPT-OSS 1.702.
  double limit;              // >= 0; 0, the default: none. GPT-OSS 7, DeepSeek V4.
  double up_offset;          // 0 by default; GPT-OSS 1.
} FbSwigluParams;

#endif  // KERNELS_ABI_SWIGLU_H_
