// The chunked passes of fused_linear_cross_entropy and of the other losses that are made of a row's
// cross entropy, below autograd: linear_head.h, where one pass of the cross entropy kernel or of
// its composite makes each chunk's loss and, in place, dlogits. Outputs of ignored rows are exact
// zeros.

#ifndef KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_H_
#define KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_H_

#include <ATen/core/Tensor.h>

#include "kernels/torch/cross_entropy_options.h"
#include "kernels/torch/linear_head.h"
#include "kernels/torch/operation.h"

namespace fuseboard::torch_binding {

struct LinearLossInputs {
  Operation operation;  // That counts the call.
  LinearHead head;
  at::Tensor target{};        // [rows]
  at::Tensor class_weight{};  // [vocab] or undefined
  at::Tensor divisor{};       // 0-dim, any device, or undefined
  CrossEntropyOptions options;
  bool need_entropy = false;
  bool keep_logits = false;  // Forward: of the last chunk.
  int64_t kernel;            // Of cross_entropy.
};

struct LinearLossOutputs {
  at::Tensor loss;
  at::Tensor z_loss;
  at::Tensor lse;      // [rows] if the backward recomputes, else undefined.
  at::Tensor entropy;  // [rows] if needed, else undefined.
  at::Tensor inverse_divisor;
  at::Tensor logits;  // Of the last chunk, if they are to be kept.
  LinearHeadGradients gradients;
  DeferredHead deferred;  // Instead of them, if the head defers.
};

// Whether the gradient of the logits is made in the forward, and with it those of the head or, of a
// single chunk, what the backward makes them of. Not if each row has its own upstream gradient. And
// not in fp16: 1 / rows times a probability underflows there (its smallest number is 6e-8), which a
// loss scaler prevents only if the upstream gradient is known.
inline bool HasGradientInForward(at::ScalarType hidden_dtype, int64_t reduction) {
  return reduction != kReduceNone && hidden_dtype != at::kHalf;
}

// The gradients that the head asks for are those of the reduced loss. Without a reduction, or in
// fp16, dhidden is that of each row for an upstream gradient of 1; no other may be asked for.
// REQUIRES: hidden's device is current.
LinearLossOutputs LinearLossForward(const LinearLossInputs& inputs);

// What a backward that recomputes the logits knows of each row.
struct LinearLossRows {
  at::Tensor scale;         // [rows]: the gradient of each row's loss.
  at::Tensor lse;           // [rows], as the forward gave it.
  at::Tensor entropy{};     // [rows], as the forward gave it; only if dentropy is.
  at::Tensor dentropy{};    // [rows]: the gradient of each row's entropy, or undefined.
  bool last_first = false;  // Take the forward's last chunk first.
  at::Tensor logits{};      // Only then: its logits, to be overwritten, or undefined.
};

LinearHeadGradients LinearLossBackward(const LinearLossInputs& inputs, const LinearLossRows& rows);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_H_
