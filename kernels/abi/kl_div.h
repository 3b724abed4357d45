// kl_div: what F.kl_div computes of each element, and its sum over each row.
//
//   log_target = 0   loss = xlogy(target, max(target, eps)) - target * input
//                    d loss / d input = -target
//   log_target = 1   loss = exp(target) * (target - input)
//                    d loss / d input = -exp(target)
// with xlogy(0, 0) = 0; eps = 0: none, as F.kl_div. Special values give what they give there: a
// probability of 0 adds 0 unless input is infinite, a log-probability of -inf in target NaN.
//
// Forward   inputs  0 input [rows, cols]: log-probabilities of the model that is trained;
//                   1 target [rows, cols]: probabilities or log-probabilities;
//                   2 scale [rows] f32, optional (absent: 1), read only for dinput;
//                   3 label [rows] i64 or i32, optional: rows whose label is ignore_index are not
//                     read, their losses and gradients are exactly 0
//           outputs 0 loss [rows] f32, optional: the sum over each row; 1 losses [rows, cols] f32,
//                   optional, and then without the others: of each element;
//                   2 dinput [rows, cols], optional: scale_r * d loss / d input
// Backward  inputs  0 dloss [rows, cols] f32: the gradient of each of `losses`; 1 input; 2 target;
//                   3 label, optional
//           outputs 0 dinput
//
// input, target and dinput share one dtype, f32, f16 or bf16. Inputs: any row stride (0 included),
// scale and label any stride; outputs: rows that do not overlap; column stride 1 or refused. At
// most 2^30 columns; without any, each row's loss is 0. Arithmetic in fp32, one rounding at the
// end. Two runs are bit-equal.

#ifndef KERNELS_ABI_KL_DIV_H_
#define KERNELS_ABI_KL_DIV_H_

#include <stdint.h>

typedef struct {
  uint32_t struct_size;
  int32_t log_target;    // 0 or 1.
  double eps;            // Least probability whose logarithm is taken, >= 0. Not for log_target.
  int64_t ignore_index;  // Read only if there is a label.
} FbKlDivParams;

#endif  // KERNELS_ABI_KL_DIV_H_
