#include "kernels/torch/traced_node.h"

#include <torch/csrc/dynamo/compiled_autograd.h>

#include <atomic>
#include <optional>
#include <utility>

namespace fuseboard::torch_binding {
namespace {

using torch::autograd::InputMetadata;
using torch::autograd::variable_list;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::IValuePacker;
using torch::dynamo::autograd::PackedArgs;

// Tells the classes of nodes apart that share a name.
int NextNumber() {
  static std::atomic<int> next{0};
  return next++;
}

void Collect(CompiledNodeArgs& args, const at::IValue& attribute) {
  if (attribute.isBool()) {
    args.collect(attribute.toBool());
  } else if (attribute.isInt()) {
    args.collect(attribute.toInt());
  } else if (attribute.isDouble()) {
    args.collect(attribute.toDouble());
  } else {
    args.collect(attribute.toIntVector());
  }
}

variable_list Compute(const TracedFunction& function, const variable_list& grads,
                      const std::vector<at::IValue>& arguments) {
  PackedArgs packed(arguments);
  auto defined = packed.unpack<variable_list>();
  const auto is_defined = packed.unpack<std::vector<bool>>();
  TracedInputs inputs{grads, {}, packed.unpack<std::vector<bool>>(), {}};
  auto next = defined.begin();
  for (const bool is : is_defined) {
    inputs.saved.push_back(is ? std::move(*next++) : at::Tensor());
  }
  inputs.attributes.assign(arguments.begin() + 3, arguments.end());
  return function.compute(inputs);
}

}  // namespace

void TracedNode::release_variables() {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < count_; ++i) saved_variables_[i].reset_data();
}

void TracedNode::compiled_args(CompiledNodeArgs& args) const {
  for (size_t i = 0; i < count_; ++i) args.collect(saved_variables_[i], is_output_of_[i]);
  for (const at::IValue& attribute : AttributeValues()) Collect(args, attribute);
}

variable_list TracedNode::apply_with_saved(const variable_list& grads,
                                           torch::dynamo::autograd::SwapSavedVariables& saved) {
  for (size_t i = 0; i < count_; ++i) saved.before(saved_variables_[i]);
  variable_list defined;
  std::vector<bool> is_defined;
  for (size_t i = 0; i < count_; ++i) {
    at::Tensor tensor = saved_variables_[i].unpack(shared_from_this());
    is_defined.push_back(tensor.defined());
    if (tensor.defined()) defined.push_back(std::move(tensor));
  }
  std::vector<bool> needs;
  for (size_t i = 0; i < edges_; ++i) needs.push_back(task_should_compute_output(i));
  PackedArgs packed;
  packed.pack(defined);
  packed.pack(is_defined);
  packed.pack(needs);
  std::vector<at::IValue> arguments = packed.vec();
  for (at::IValue& attribute : AttributeValues()) arguments.push_back(std::move(attribute));

  const auto& compiler = torch::dynamo::autograd::getPyCompilerInterface();
  TracedFunction& function = Function();
  // Once for each class: the name is taken for the rest of the process, and nodes of two classes
  // may have one name.
  std::call_once(function.bound, [&] {
    std::vector<at::TypePtr> schema;
    schema.reserve(arguments.size());
    for (const at::IValue& argument : arguments) schema.push_back(argument.type());
    function.name = compiler->bind_function(
        saved.get_py_compiler(), name() + "_" + std::to_string(NextNumber()),
        [&function](const variable_list& given, const std::vector<at::IValue>& values) {
          return Compute(function, given, values);
        },
        schema);
  });
  variable_list result = compiler->call_function(
      saved.get_py_compiler(), "apply_functional", function.name, grads, arguments,
      IValuePacker<std::vector<std::optional<InputMetadata>>>::pack(
          torch::dynamo::autograd::get_input_metadata(next_edges())));
  for (size_t i = 0; i < count_; ++i) saved.after(saved_variables_[i]);
  return result;
}

}  // namespace fuseboard::torch_binding
