// The autograd node of an operator whose forward made the gradients: its backward only scales them.

#ifndef KERNELS_TORCH_SCALED_GRADIENTS_NODE_H_
#define KERNELS_TORCH_SCALED_GRADIENTS_NODE_H_

#include <torch/csrc/autograd/functions/basic_ops.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/torch/saved_node.h"
#include "kernels/torch/scale_gradients.h"

namespace fuseboard::torch_binding {

// Makes a derivative of the gradients that `node` gave raise in the name of the operator
// `backward`: otherwise it would lack its terms in silence.
inline void RefuseSecondDerivative(const char* backward, const torch::autograd::Node& node,
                                   const torch::autograd::variable_list& gradients) {
  auto refusal = std::make_shared<torch::autograd::Error>(
      std::string("derivative for fuseboard::") + backward + " is not implemented",
      torch::autograd::edge_list(node.next_edges()));
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) torch::autograd::set_history(gradient, refusal);
  }
}

// The node of `Op` with kCount inputs; the saved tensors are the gradients of those that need one.
// Its attribute is the handle of the library whose `rescale` entry is used.
//   Op::kNodeName   what a profile and grad_fn show
//   Op::kBackward   the operator that a second derivative is refused in the name of
template <typename Op, size_t kCount>
class ScaledGradientsNode final
    : public SavedNode<ScaledGradientsNode<Op, kCount>, kCount, kCount, std::tuple<int64_t>> {
  using Base = SavedNode<ScaledGradientsNode<Op, kCount>, kCount, kCount, std::tuple<int64_t>>;

 public:
  using variable_list = torch::autograd::variable_list;
  using Inputs = typename Base::Inputs;

  std::string name() const override { return Op::kNodeName; }

  static variable_list Compute(const Inputs& inputs) {
    std::vector<at::Tensor> needed;
    for (size_t i = 0; i < kCount; ++i) {
      if (inputs.needs[i]) needed.push_back(inputs.saved[i]);
    }
    {
      const c10::AutoGradMode no_grad(false);
      ScaleGradients(needed, inputs.grad, inputs.may_overwrite_saved,
                     std::get<0>(inputs.attributes));
    }
    variable_list result(kCount);
    auto next = needed.begin();
    for (size_t i = 0; i < kCount; ++i) {
      if (inputs.needs[i]) result[i] = std::move(*next++);
    }
    return result;
  }

  variable_list apply(variable_list&& grads) override {
    variable_list result = Base::apply(std::move(grads));
    if (c10::GradMode::is_enabled()) RefuseSecondDerivative(Op::kBackward, *this, result);
    return result;
  }
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_SCALED_GRADIENTS_NODE_H_
