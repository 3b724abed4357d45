#include "kernels/torch/fused_linear_cross_entropy_nodes.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include "kernels/torch/fused_linear_cross_entropy.h"
#include "kernels/torch/scale_gradients.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
constexpr const char* kNodeName = "FuseboardFusedLinearCrossEntropyBackward";

// The forward made the gradients: scale them.
class ScaledGradientsNode final : public SavedNode<ScaledGradientsNode, 3, 3, std::tuple<int64_t>> {
 public:
  std::string name() const override { return kNodeName; }

  static variable_list Compute(const Inputs& inputs) {
    std::vector<Tensor> needed;
    for (size_t i = 0; i < inputs.needs.size(); ++i) {
      if (inputs.needs[i]) needed.push_back(inputs.saved[i]);
    }
    {
      const c10::AutoGradMode no_grad(false);
      ScaleGradients(needed, inputs.grad, inputs.may_overwrite_saved,
                     std::get<0>(inputs.attributes));
    }
    variable_list result(inputs.needs.size());
    auto next = needed.begin();
    for (size_t i = 0; i < result.size(); ++i) {
      if (inputs.needs[i]) result[i] = std::move(*next++);
    }
    return result;
  }

  variable_list apply(variable_list&& grads) override {
    variable_list result = SavedNode::apply(std::move(grads));
    if (c10::GradMode::is_enabled()) RefuseSecondDerivative(result);
    return result;
  }

 private:
  // Without this, a second derivative would lack its terms in silence.
  void RefuseSecondDerivative(const variable_list& gradients) const {
    auto refusal = std::make_shared<torch::autograd::Error>(
        "derivative for fuseboard::fused_linear_cross_entropy_backward is not implemented",
        torch::autograd::edge_list(next_edges()));
    for (const Tensor& gradient : gradients) {
      if (gradient.defined()) torch::autograd::set_history(gradient, refusal);
    }
  }
};

// The forward kept the log-sum-exp only: compute the logits again.
class RecomputeNode final : public SavedNode<RecomputeNode, 7, 3,
                                             std::tuple<int64_t, double, double, double, double,
                                                        bool, int64_t, int64_t, int64_t, int64_t>> {
 public:
  std::string name() const override { return kNodeName; }

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
    const auto node = NewNode<ScaledGradientsNode>(hidden, weight, bias);
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
