// The chunked passes of fused_linear_cross_entropy, below autograd.
//
//   for each chunk of supervised rows:
//     logits  = hidden @ weight.T + bias      one buffer, reused, in the dtype of the GEMM
//     loss    and, in place, dlogits          one pass of the cross entropy kernel or its composite
//     dhidden = dlogits @ weight              straight into place
//     dweight += dlogits.T @ hidden
//     dbias   += column sums                  in fp32
//
// Nothing of [rows, vocab] exists. Outputs of ignored rows are exact zeros. Two runs are bit-equal.

#ifndef KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_H_
#define KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_H_

#include <ATen/core/Tensor.h>

#include "kernels/torch/cross_entropy_options.h"

namespace fuseboard::torch_binding {

struct LinearLossInputs {
  at::Tensor hidden;        // [rows, in]
  at::Tensor weight;        // [vocab, in], dtype of hidden
  at::Tensor bias;          // [vocab], dtype of hidden, or undefined
  at::Tensor target;        // [rows]
  at::Tensor class_weight;  // [vocab] or undefined
  at::Tensor divisor;       // 0-dim, any device, or undefined
  CrossEntropyOptions options;
  int64_t dweight_dtype;
  int64_t chunk_bytes;
  bool need_dhidden;
  bool need_dweight;
  bool need_dbias;
  int64_t kernel;  // Of cross_entropy.
};

struct LinearLossGradients {
  at::Tensor dhidden;  // Each undefined if not needed.
  at::Tensor dweight;
  at::Tensor dbias;
};

struct LinearLossOutputs {
  at::Tensor loss;
  at::Tensor z_loss;
  at::Tensor lse;  // [rows] if the backward recomputes, else undefined.
  at::Tensor inverse_divisor;
  LinearLossGradients gradients;
};

// Whether gradients are made in the forward and only scaled in the backward. Not if each row has
// its own upstream gradient. And not in fp16: 1 / rows times a probability underflows there (its
// smallest number is 6e-8), which a loss scaler prevents only if the upstream gradient is known.
inline bool HasGradientInForward(at::ScalarType hidden_dtype, int64_t reduction) {
  return reduction != kReduceNone && hidden_dtype != at::kHalf;
}

// REQUIRES: hidden's device is current.
LinearLossOutputs LinearLossForward(const LinearLossInputs& inputs);

// Recomputes the logits. `row_scale` [rows] is the gradient of each row's loss.
LinearLossGradients LinearLossBackward(const LinearLossInputs& inputs, const at::Tensor& row_scale,
                                       const at::Tensor& lse);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_H_
