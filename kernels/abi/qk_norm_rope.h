// qk_norm_rope: RMSNorm of q and k and their rotary position embedding in one pass, out of place.
//
// For each row x of q or of k, a head of a position or, with all_heads, all heads of a position one
// after the other, and then for each head of it:
//   n = x / sqrt(mean(x^2) + eps);  v = n * (offset + weight);  y = v rotated as kernels/abi/rope.h
//   says
//
// Forward   inputs  0 q [batch, heads, positions, dim]; 1 k [batch, k_heads, positions, dim],
//                   optional; 2 cos [streams, 1 or batch, positions, width]; 3 sin, shape of cos;
//                   4 q_weight [features], optional; 5 k_weight [features of k], optional
//           outputs 0 q_out; 1 k_out, absent where k is
// Backward  inputs  0 dq_out, optional; 1 dk_out, optional; 2 q; 3 k, optional; 4 cos; 5 sin;
//                   6 q_weight, optional; 7 k_weight, optional
//           outputs 0 dq; 1 dk; 2 dq_weight; 3 dk_weight; each optional, and absent where its
//                   upstream gradient is or, of a weight, where the weight is
//
// features is dim, or with all_heads heads * dim (OLMo2). With dv = dy rotated by the transposed
// map, rounded to the dtype of the results, and g = dv * (offset + weight):
//   dx = (g - n * mean(g * n)) / sqrt(mean(x^2) + eps);  dweight = sum over rows of dv * n
//
// q, k: one dtype of f32, f16 and bf16; stride 1 in dim, any other strides (0 and transposed views
// included). The results have one dtype: that of q, or with FB_CASTING_LLAMA the promotion of it
// and that of the weight, which then is the same for q and k. Outputs overlap neither themselves
// nor an input. cos, sin: the dtype of q or f32, any strides.
//
// Arithmetic in f32. n is rounded to the dtype of q with FB_CASTING_LLAMA, v to the dtype of the
// results with FB_CASTING_LLAMA and FB_CASTING_GEMMA, as separate operators would; FB_CASTING_NONE
// rounds once at the end. rope.round_products as in rope, unless FB_CASTING_NONE or a result of a
// wider dtype than the tables' says otherwise. In the backward the n of dweight is rounded where n
// is. dweight is summed in a fixed order: two runs are bit-equal.

#ifndef KERNELS_ABI_QK_NORM_ROPE_H_
#define KERNELS_ABI_QK_NORM_ROPE_H_

#include <stdint.h>

#include "kernels/abi/rms_norm.h"
#include "kernels/abi/rope.h"

typedef struct {
  uint32_t struct_size;
  int32_t casting;    // An FbCasting.
  double eps;         // Added to the mean square, >= 0.
  double offset;      // Added to the weight in f32; Gemma has 1. Ignored without a weight.
  int32_t all_heads;  // 0 or 1: a row is all heads of a position.
  int32_t reserved;   // 0.
  FbRopeParams rope;
} FbQkNormRopeParams;

#endif  // KERNELS_ABI_QK_NORM_ROPE_H_
