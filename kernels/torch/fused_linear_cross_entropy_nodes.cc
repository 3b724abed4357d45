#include "kernels/torch/fused_linear_cross_entropy_nodes.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "kernels/torch/deferred_head_node.h"
#include "kernels/torch/fused_linear_cross_entropy.h"
#include "kernels/torch/scaled_gradients_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

struct LinearLossOp {
  static constexpr const char* kNodeName = "FuseboardFusedLinearCrossEntropyBackward";
  static constexpr const char* kBackward = "fused_linear_cross_entropy_backward";
};

// The forward kept the log-sum-exp only: compute the logits again.
class RecomputeNode final : public SavedNode<RecomputeNode, 7, 3,
                                             std::tuple<int64_t, double, double, double, double,
                                                        bool, int64_t, int64_t, int64_t, int64_t>> {
 public:
  std::string name() const override { return LinearLossOp::kNodeName; }

  static variable_list Compute(const Inputs& inputs) {
    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("fuseboard::fused_linear_cross_entropy_backward", "")
            .typed<LinearLossBackwardResult(
                const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&,
                const OptionalTensor&, const Tensor&, const Tensor&, int64_t, double, double,
                double, double, bool, int64_t, int64_t, int64_t, bool, bool, bool, int64_t)>();
    const auto& [hidden, weight, bias, target, class_weight, lse, inverse_divisor] = inputs.saved;
    const auto& [need_dhidden, need_dweight, need_dbias] = inputs.needs;
    const auto& [ignore_index, label_smoothing, softcap, logit_scale, z_loss_scale, z_loss_in_loss,
                 reduction, dweight_dtype, chunk_bytes, kernel] = inputs.attributes;
    auto [dhidden, dweight, dbias] =
        op.call(inputs.grad, hidden, weight, OptionalOf(bias), target, OptionalOf(class_weight),
                lse, inverse_divisor, ignore_index, label_smoothing, softcap, logit_scale,
                z_loss_scale, z_loss_in_loss, reduction, dweight_dtype, chunk_bytes, need_dhidden,
                need_dweight, need_dbias, kernel);
    return {need_dhidden ? std::move(dhidden) : Tensor(),
            need_dweight ? std::move(dweight) : Tensor(), need_dbias ? std::move(dbias) : Tensor()};
  }
};

}  // namespace

void RecordDeferredLinearLoss(const Tensor& loss, const LinearHead& head, const DeferredHead& kept,
                              int64_t kernel) {
  RecordDeferredHead<LinearLossOp>(loss, head, kept, kernel);
}

LinearLossForwardResult CallLinearLossForward(
    const Tensor& hidden, const Tensor& weight, const OptionalTensor& bias, const Tensor& target,
    const OptionalTensor& class_weight, const OptionalTensor& divisor, int64_t ignore_index,
    double label_smoothing, double softcap, double logit_scale, double z_loss_scale,
    bool z_loss_in_loss, int64_t reduction, int64_t dweight_dtype, int64_t chunk_bytes,
    bool need_dhidden, bool need_dweight, bool need_dbias, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::fused_linear_cross_entropy_forward", "")
                             .typed<decltype(CallLinearLossForward)>();
  return op.call(hidden, weight, bias, target, class_weight, divisor, ignore_index, label_smoothing,
                 softcap, logit_scale, z_loss_scale, z_loss_in_loss, reduction, dweight_dtype,
                 chunk_bytes, need_dhidden, need_dweight, need_dbias, kernel);
}

void RecordLinearLoss(const LinearLossForwardResult& result, const Tensor& hidden,
                      const Tensor& weight, const OptionalTensor& bias, const Tensor& target,
                      const OptionalTensor& class_weight, const LinearLossAttributes& attributes) {
  const auto& [loss, z_loss, lse, inverse_divisor, dhidden, dweight, dbias] = result;
  if (HasGradientInForward(hidden.scalar_type(), attributes.reduction)) {
    const auto node = NewNode<ScaledGradientsNode<LinearLossOp, 3>>(hidden, weight, bias);
    node->SetAttributes({attributes.kernel});
    if (hidden.requires_grad()) node->Save(0, dhidden);
    if (weight.requires_grad()) node->Save(1, dweight);
    if (bias.has_value() && bias->requires_grad()) node->Save(2, dbias);
    torch::autograd::set_history(loss, node);
    return;
  }
  const auto node = NewNode<RecomputeNode>(hidden, weight, bias);
  const LinearLossAttributes& a = attributes;
  node->SetAttributes({a.ignore_index, a.label_smoothing, a.softcap, a.logit_scale, a.z_loss_scale,
                       a.z_loss_in_loss, a.reduction, a.dweight_dtype, a.chunk_bytes, a.kernel});
  node->Save(0, hidden);
  node->Save(1, weight);
  node->Save(2, bias);
  node->Save(3, target);
  node->Save(4, class_weight);
  node->Save(5, lse);
  node->Save(6, inverse_divisor);
  torch::autograd::set_history(loss, node);
}

}  // namespace fuseboard::torch_binding
