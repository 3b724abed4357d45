// What compiled autograd asks of a node, once for all classes of nodes: its headers and its packing
// of values are a third of what an operator takes to compile.

#ifndef KERNELS_TORCH_TRACED_NODE_H_
#define KERNELS_TORCH_TRACED_NODE_H_

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <mutex>
#include <string>
#include <vector>

namespace fuseboard::torch_binding {

// What the backward of a node works on when it is part of a graph that compiled autograd made.
struct TracedInputs {
  const torch::autograd::variable_list& grads;
  std::vector<at::Tensor> saved;  // Undefined where an optional tensor was not given.
  std::vector<bool> needs;        // Of the edges: which gradients are asked for.
  std::vector<at::IValue> attributes;
};

// The function of a class of nodes in such graphs. One for each class, for the life of the process.
struct TracedFunction {
  torch::autograd::variable_list (*compute)(const TracedInputs&);
  std::once_flag bound;
  std::string name;  // Given when it is bound.
};

// Saves tensors and attributes; `SavedNode` says which.
class TracedNode : public torch::autograd::Node {
 public:
  using variable_list = torch::autograd::variable_list;

  void release_variables() override;
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;
  // Binds the class's function as part of a graph; shapes are not known yet.
  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override;

 protected:
  // `saved` and `is_output` are the derived class's, `count` of each; they outlive the node's use.
  TracedNode(torch::autograd::SavedVariable* saved, const bool* is_output, size_t count,
             size_t edges)
      : saved_variables_(saved), is_output_of_(is_output), count_(count), edges_(edges) {}

 private:
  virtual std::vector<at::IValue> AttributeValues() const = 0;
  virtual TracedFunction& Function() const = 0;

  torch::autograd::SavedVariable* saved_variables_;
  const bool* is_output_of_;
  size_t count_;
  size_t edges_;
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_TRACED_NODE_H_
