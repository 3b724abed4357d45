// The chunked passes of fused_linear_jsd, below autograd: linear_head.h with a teacher's logits
// beside the student's, both of which the jsd library takes as they are. Where it does not, a few
// rows of a chunk at a time are normalised in fp32, compared, and their gradient goes back through
// the log-softmax into the student's logits:
//
//   x, y     = log_softmax(student, teacher logits / temperature)     fp32, 64 MiB each
//   loss     = sum_c jsd(x, y), dx                                    one pass of jsd
//   dlogits  = (dx - softmax(x) * sum_c dx) / temperature             rounded once
//
// Nothing of [rows, vocab] exists. Outputs of ignored rows are exact zeros. Two runs are bit-equal.

#ifndef KERNELS_TORCH_FUSED_LINEAR_JSD_H_
#define KERNELS_TORCH_FUSED_LINEAR_JSD_H_

#include <ATen/core/Tensor.h>

#include "kernels/torch/linear_head.h"

namespace fuseboard::torch_binding {

struct LinearJsdInputs {
  LinearHead student;
  LinearHead teacher;  // Needs no gradient.
  at::Tensor label;    // [rows], or undefined: every row counts.
  double beta;
  int64_t ignore_index;
  double temperature;
  int64_t kernel;  // Of jsd.
};

struct LinearJsdOutputs {
  at::Tensor loss;             // 0-dim: the sum over the rows that count, over their number.
  at::Tensor inverse_divisor;  // 0-dim: 1 / that number, 0 for none.
  LinearHeadGradients gradients;
  DeferredHead deferred;  // Instead of them, if the student's head defers.
};

// What a class of a row takes of the budget of the logits: of both heads.
int64_t RowBytesPerClass(const LinearJsdInputs& inputs);

// REQUIRES of both: the student's device is current. The forward makes the gradients that the
// student's head asks for.
LinearJsdOutputs LinearJsdForward(const LinearJsdInputs& inputs);

// Makes all logits again. `scale`, 0-dim: the gradient of each row's loss.
LinearHeadGradients LinearJsdBackward(const LinearJsdInputs& inputs, const at::Tensor& scale);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_FUSED_LINEAR_JSD_H_
