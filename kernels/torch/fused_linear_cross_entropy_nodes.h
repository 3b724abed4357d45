// The autograd of fused_linear_cross_entropy, above its two non-differentiable operators.

#ifndef KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_NODES_H_
#define KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_NODES_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "kernels/torch/linear_head.h"
#include "kernels/torch/saved_node.h"

namespace fuseboard::torch_binding {

// loss, z_loss, lse, inverse_divisor, dhidden, dweight, dbias
using LinearLossForwardResult =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
// dhidden, dweight, dbias
using LinearLossBackwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The numbers of a call, in the order of the schema.
struct LinearLossAttributes {
  int64_t ignore_index;
  double label_smoothing;
  double softcap;
  double logit_scale;
  double z_loss_scale;
  bool z_loss_in_loss;
  int64_t reduction;
  int64_t dweight_dtype;
  int64_t chunk_bytes;
  int64_t kernel;
};

// torch.ops.fuseboard.fused_linear_cross_entropy_forward.
LinearLossForwardResult CallLinearLossForward(
    const at::Tensor& hidden, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    const at::Tensor& target, const std::optional<at::Tensor>& class_weight,
    const std::optional<at::Tensor>& divisor, int64_t ignore_index, double label_smoothing,
    double softcap, double logit_scale, double z_loss_scale, bool z_loss_in_loss, int64_t reduction,
    int64_t dweight_dtype, int64_t chunk_bytes, bool need_dhidden, bool need_dweight,
    bool need_dbias, int64_t kernel);

// Makes `loss` a function of the head's tensors, whose gradients its backward makes.
void RecordDeferredLinearLoss(const at::Tensor& loss, const LinearHead& head,
                              const DeferredHead& kept, int64_t kernel);

// Makes the loss in `result` a function of hidden, weight and bias. REQUIRES: one requires grad.
void RecordLinearLoss(const LinearLossForwardResult& result, const at::Tensor& hidden,
                      const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                      const at::Tensor& target, const std::optional<at::Tensor>& class_weight,
                      const LinearLossAttributes& attributes);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_NODES_H_
