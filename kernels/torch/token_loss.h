// Losses of tokens: for each row its cross entropy, or the log-probability of its target, and on
// demand the entropy of its distribution. By the passes of fused_linear_cross_entropy without a
// reduction, below autograd (token_loss_op.h is above it).

#ifndef KERNELS_TORCH_TOKEN_LOSS_H_
#define KERNELS_TORCH_TOKEN_LOSS_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "kernels/torch/fused_linear_cross_entropy.h"

namespace fuseboard::torch_binding {

// The distribution is softmax(z), z = cap(logit_scale * logits) / temperature.
struct TokenDistribution {
  int64_t ignore_index;
  double softcap;
  double logit_scale;
  double temperature;
};

// Checked. Errors: c10::Error naming `operation`, the field and its value.
LinearLossInputs TokenLossInputs(Operation operation, const LinearHead& head,
                                 const at::Tensor& target, const TokenDistribution& distribution,
                                 bool need_entropy, int64_t kernel);

// values [rows] in the accumulation type, entropy ([0] if not needed) and lse, both [rows] in the
// type of statistics, and dhidden of
// each row's cross entropy ([0] if not needed), and the last chunk's logits ([0] if they are not
// kept). Values are `sign` times the cross entropy.
using TokenLossResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
TokenLossResult TokenLossForward(const LinearLossInputs& inputs, int sign);
TokenLossResult TokenLossForwardMeta(const LinearLossInputs& inputs);

// From the gradients of values and entropy, each optional. `entropy` is read if it has one.
// `logits` are what a forward of the same head kept, and are overwritten.
LinearHeadResult TokenLossBackward(const LinearLossInputs& inputs, int sign,
                                   const std::optional<at::Tensor>& dvalues,
                                   const std::optional<at::Tensor>& dentropy, const at::Tensor& lse,
                                   const std::optional<at::Tensor>& entropy,
                                   const std::optional<at::Tensor>& logits);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_TOKEN_LOSS_H_
