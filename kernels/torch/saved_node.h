// The autograd nodes of the operators, written by hand: torch::autograd::Function keeps its
// attributes in a map of IValues and walks sets of tensors, which cost 6 us of host time per call
// where this costs under 2.

#ifndef KERNELS_TORCH_SAVED_NODE_H_
#define KERNELS_TORCH_SAVED_NODE_H_

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <array>
#include <mutex>
#include <optional>
#include <tuple>

#include "kernels/torch/row_view.h"

namespace fuseboard::torch_binding {

// A node with `kSaved` saved tensors, none of which is an output of its forward, and a std::tuple
// of numbers. A derived class implements `apply`; it may be freed, used again under retain_graph,
// hooked and traced by compiled autograd like LibTorch's own.
template <size_t kSaved, typename Attributes>
class SavedNode : public torch::autograd::Node {
 public:
  using variable_list = torch::autograd::variable_list;

  void Save(size_t index, const at::Tensor& tensor) {
    saved_[index] = torch::autograd::SavedVariable(tensor, /*is_output=*/false);
  }
  void Save(size_t index, const std::optional<at::Tensor>& tensor) {
    Save(index, ValueOrUndefined(tensor));
  }
  void SetAttributes(Attributes attributes) { attributes_ = std::move(attributes); }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (auto& variable : saved_) variable.reset_data();
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    for (const auto& variable : saved_) args.collect(variable, /*is_output=*/false);
    std::apply([&](const auto&... attribute) { (args.collect(attribute), ...); }, attributes_);
  }

  variable_list apply_with_saved(const variable_list& inputs,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    for (auto& variable : saved_) saved.before(variable);
    variable_list result = apply(variable_list(inputs));
    for (auto& variable : saved_) saved.after(variable);
    return result;
  }

 protected:
  // Errors: c10::Error "Trying to backward through the graph a second time" after release.
  at::Tensor Unpack(size_t index) { return saved_[index].unpack(); }
  std::optional<at::Tensor> UnpackOptional(size_t index) {
    at::Tensor tensor = Unpack(index);
    return tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt;
  }
  const Attributes& attributes() const { return attributes_; }

 private:
  std::array<torch::autograd::SavedVariable, kSaved> saved_;
  Attributes attributes_{};
};

// While in scope, operators do not record history, unless a second derivative is being recorded:
// then they do, and the *_backward operators raise, naming themselves, when it is asked for.
class BackwardGuard {
 public:
  BackwardGuard() {
    if (!c10::GradMode::is_enabled()) below_autograd_.emplace();
  }

 private:
  std::optional<at::AutoDispatchBelowADInplaceOrView> below_autograd_;
};

// A new node of `NodeType`, with an edge to each of `tensors` in this order.
template <typename NodeType, typename... Tensors>
std::shared_ptr<NodeType> NewNode(const Tensors&... tensors) {
  std::shared_ptr<NodeType> node(new NodeType, torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(tensors...));
  return node;
}

// Forward-mode derivatives would be lost in silence.
inline void CheckNoForwardGradient(const char* operation, const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor.defined() || !tensor._fw_grad(/*level=*/0).defined(),
                              operation,
                              ": forward-mode automatic differentiation is not supported");
}

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_SAVED_NODE_H_
