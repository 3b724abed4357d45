// tvd: the total variation distance of probabilities, element by element, and its sum over each
// row.
//
//   loss = |input - target| / 2
//   d loss / d input = sign(input - target) / 2, 0 where they are equal
//
// Forward   inputs  0 input [rows, cols]: probabilities of the model that is trained;
//                   1 target [rows, cols]: probabilities; 2 scale; 3 label
//           outputs 0 loss; 1 losses; 2 dinput
// Backward  inputs  0 dloss; 1 input; 2 target; 3 label
//           outputs 0 dinput
// and all else about the tensors as in kernels/abi/kl_div.h.

#ifndef KERNELS_ABI_TVD_H_
#define KERNELS_ABI_TVD_H_

#include <stdint.h>

typedef struct {
  uint32_t struct_size;
  int64_t ignore_index;  // Read only if there is a label.
} FbTvdParams;

#endif  // KERNELS_ABI_TVD_H_
