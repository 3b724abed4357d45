// cross_entropy: softmax cross entropy of each row, with its gradient in the same pass if wanted.
//
//   z      = cap(logit_scale * logits),  cap(v) = softcap * tanh(v / softcap), or v if softcap == 0
//   lse    = log sum_c exp(z_c);  logp_c = z_c - lse;  w = class_weight or ones
//   nll    = (1 - s) * w_y * (-logp_y) + (s / vocab) * sum_c w_c * (-logp_c),  s = label_smoothing
//   z_loss = z_loss_scale * lse^2
//   loss   = nll (+ z_loss if z_loss_in_loss);  a row whose target is ignore_index has loss 0,
//            z_loss 0, lse 0 and gradient exactly 0
//   dlogits_r = scale_r * d loss_r / d logits_r
//
// Forward   inputs  0 logits [rows, vocab]; 1 target [rows] i64 or i32; 2 class_weight [vocab] f32,
//                   optional; 3 scale [rows] f32, optional (absent: 1), read only for dlogits
//           outputs 0 loss [rows] f32, optional; 1 z_loss [rows] f32, optional; 2 lse [rows],
//                   optional; 3 argmax [rows] i64, optional (first maximum; also on ignored rows);
//                   4 dlogits [rows, vocab], dtype of logits, optional; may be the very memory of
//                   logits (in place), any other overlap is refused; 5 entropy [rows],
//                   optional, and may be left off the end: -sum_c p_c logp_c, p = exp(logp), 0 on
//                   ignored rows; wants lse and no dlogits beside it
// Backward  inputs  0 logits; 1 target; 2 class_weight, optional; 3 scale [rows] f32: the upstream
//                   gradient of loss_r; 4 lse [rows] as forward gave it; and, both or neither,
//                   5 entropy [rows] as forward gave it; 6 dentropy [rows] f32: the upstream
//                   gradient of entropy_r, which adds
//                   dentropy_r * d entropy_r / d z_c = -dentropy_r p_c (logp_c + entropy_r)
//           outputs 0 dlogits, as above
//
// lse and entropy: f32; or, for f32 logits, both f64. A backward subtracts them from numbers as
// large, so that in f32 their rounding, common to a row, is the largest error of an f32 gradient.
//
// logits, dlogits: any row stride, column stride 1 or refused. target, scale, dentropy: any stride,
// 0 included. Arithmetic in fp32. A target outside [0, vocab) that is not ignore_index makes that
// row's loss, z_loss, entropy and gradient row NaN and touches nothing else; nothing is read or
// written out of bounds. Targets are compared in 64 bits. Two runs are bit-equal.

#ifndef KERNELS_ABI_CROSS_ENTROPY_H_
#define KERNELS_ABI_CROSS_ENTROPY_H_

#include <stdint.h>

typedef struct {
  uint32_t struct_size;
  int32_t z_loss_in_loss;  // 0 or 1: whether loss and gradient contain the z term.
  int64_t ignore_index;
  double label_smoothing;  // In [0, 1].
  double softcap;          // 0: none. Else > 0.
  double z_loss_scale;     // >= 0.
  double logit_scale;      // Multiplies the logits first; 1 is usual. Not 0.
} FbCrossEntropyParams;

#endif  // KERNELS_ABI_CROSS_ENTROPY_H_
