// The autograd node of a linear loss whose forward kept the gradient of its only chunk of logits:
// its backward makes the products with it. For fused_linear_cross_entropy and fused_linear_jsd.

#ifndef KERNELS_TORCH_DEFERRED_HEAD_NODE_H_
#define KERNELS_TORCH_DEFERRED_HEAD_NODE_H_

#include <c10/core/DeviceGuard.h>

#include <string>
#include <tuple>
#include <utility>

#include "kernels/torch/linear_head.h"
#include "kernels/torch/saved_node.h"
#include "kernels/torch/scaled_gradients_node.h"

namespace fuseboard::torch_binding {

// `Op` as of ScaledGradientsNode. Saved: dlogits, hidden, the supervised rows of it if others are
// there, their numbers, weight, bias. Attribute: the handle of the library.
template <typename Op>
class DeferredHeadNode final : public SavedNode<DeferredHeadNode<Op>, 6, 3, std::tuple<int64_t>> {
  using Base = SavedNode<DeferredHeadNode<Op>, 6, 3, std::tuple<int64_t>>;

 public:
  using variable_list = torch::autograd::variable_list;
  using Inputs = typename Base::Inputs;

  std::string name() const override { return Op::kNodeName; }

  static variable_list Compute(const Inputs& inputs) {
    const auto& [dlogits, hidden, rows, index, weight, bias] = inputs.saved;
    const auto& [need_dhidden, need_dweight, need_dbias] = inputs.needs;
    const c10::AutoGradMode no_grad(false);
    const c10::DeviceGuard guard(hidden.device());
    LinearHeadGradients gradients =
        HeadGradientsOf({.hidden = hidden,
                         .weight = weight,
                         .bias = bias,
                         .need_dhidden = need_dhidden,
                         .need_dweight = need_dweight,
                         .need_dbias = need_dbias},
                        {.dlogits = dlogits, .hidden = rows, .index = index},
                        {.upstream = inputs.grad, .kernel = std::get<0>(inputs.attributes)});
    return {std::move(gradients.dhidden), std::move(gradients.dweight), std::move(gradients.dbias)};
  }

  variable_list apply(variable_list&& grads) override {
    variable_list result = Base::apply(std::move(grads));
    if (c10::GradMode::is_enabled()) RefuseSecondDerivative(Op::kBackward, *this, result);
    return result;
  }
};

// Makes `loss` a function of the head's tensors. REQUIRES: one requires grad.
template <typename Op>
void RecordDeferredHead(const at::Tensor& loss, const LinearHead& head, const DeferredHead& kept,
                        int64_t kernel) {
  const auto node = NewNode<DeferredHeadNode<Op>>(head.hidden, head.weight, head.bias);
  node->SetAttributes({kernel});
  node->Save(0, kept.dlogits);
  node->Save(1, head.hidden);
  node->Save(2, kept.hidden);
  node->Save(3, kept.index);
  node->Save(4, head.weight);
  node->Save(5, head.bias);
  torch::autograd::set_history(loss, node);
}

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_DEFERRED_HEAD_NODE_H_
