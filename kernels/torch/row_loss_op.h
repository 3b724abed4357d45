// The operators of kl_div, jsd and tvd, which differ in their options alone:
//
//   x(Tensor input, Tensor target, Tensor? label, <options>, int ignore_index, int reduction,
//     int kernel) -> Tensor
//   x_forward(Tensor input, Tensor target, Tensor? label, <options>, int ignore_index,
//     int reduction, bool need_dinput, int kernel)
//     -> (Tensor loss, Tensor dinput, Tensor inverse_divisor)
//   x_backward(Tensor dloss, Tensor input, Tensor target, Tensor? label, Tensor inverse_divisor,
//     <options>, int ignore_index, int reduction, int kernel) -> Tensor dinput
//
// input and target of one shape [..., cols], any strides; label of that shape without the last
// dimension: rows whose label is ignore_index have losses and gradients of exactly 0 and do not
// count in a mean. reduction: 0 none, 1 mean over the elements, 2 sum, 3 batchmean. The loss is
// f32, of input's shape for none, else []. There is no gradient for target.

#ifndef KERNELS_TORCH_ROW_LOSS_OP_H_
#define KERNELS_TORCH_ROW_LOSS_OP_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <string>
#include <tuple>

#include "kernels/torch/checks.h"
#include "kernels/torch/row_loss.h"
#include "kernels/torch/saved_node.h"
#include "kernels/torch/scaled_gradients_node.h"

namespace fuseboard::torch_binding {

template <typename Op, typename... Options>
class RowLossRecomputeNode;

// `Op` has what the operation has of its own:
//   kOperation, kNodeName             what a profile and grad_fn show
//   kForward, kBackward               the operators' names
//   ParamsOf(options..., ignore_index)  the library's parameter struct
//   Function                          a RowLossFunction made of the options
//   CheckOptions(options...)
//   ExamplesOf(input)                 see RowLoss::examples
template <typename Op, typename... Options>
class RowLossOperator {
  using Tensor = at::Tensor;
  using OptionalTensor = std::optional<at::Tensor>;

 public:
  static RowLossResult Forward(const Tensor& input, const Tensor& target,
                               const OptionalTensor& label, Options... options,
                               int64_t ignore_index, int64_t reduction, bool need_dinput,
                               int64_t kernel) {
    Check(input, target, label, options..., reduction);
    return WithRowLoss(input, target, label, options..., ignore_index, reduction, kernel,
                       [&](const RowLoss& r) { return RowLossForward(r, need_dinput); });
  }

  static RowLossResult ForwardMeta(const Tensor& input, const Tensor& target,
                                   const OptionalTensor& label, Options... options,
                                   int64_t /*ignore_index*/, int64_t reduction, bool need_dinput,
                                   int64_t /*kernel*/) {
    Check(input, target, label, options..., reduction);
    return RowLossForwardMeta(input, target, reduction, need_dinput);
  }

  static Tensor Backward(const Tensor& dloss, const Tensor& input, const Tensor& target,
                         const OptionalTensor& label, const Tensor& inverse_divisor,
                         Options... options, int64_t ignore_index, int64_t reduction,
                         int64_t kernel) {
    Check(input, target, label, options..., reduction);
    return WithRowLoss(
        input, target, label, options..., ignore_index, reduction, kernel,
        [&](const RowLoss& r) { return RowLossBackward(r, dloss, inverse_divisor); });
  }

  static Tensor BackwardMeta(const Tensor& /*dloss*/, const Tensor& input, const Tensor& /*target*/,
                             const OptionalTensor& /*label*/, const Tensor& /*inverse_divisor*/,
                             Options... /*options*/, int64_t /*ignore_index*/,
                             int64_t /*reduction*/, int64_t /*kernel*/) {
    return at::empty_symint(input.sym_sizes(), input.options());
  }

  static Tensor CallBackward(const Tensor& dloss, const Tensor& input, const Tensor& target,
                             const OptionalTensor& label, const Tensor& inverse_divisor,
                             Options... options, int64_t ignore_index, int64_t reduction,
                             int64_t kernel) {
    static const auto op = Find(Op::kBackward).template typed<decltype(Backward)>();
    return op.call(dloss, input, target, label, inverse_divisor, options..., ignore_index,
                   reduction, kernel);
  }

  static Tensor Autograd(const Tensor& input, const Tensor& target, const OptionalTensor& label,
                         Options... options, int64_t ignore_index, int64_t reduction,
                         int64_t kernel) {
    CheckNoGradient(NameOf(Op::kOperation), "target", target);
    const bool need_dinput = torch::autograd::compute_requires_grad(input);
    if (need_dinput) CheckNoForwardGradient(NameOf(Op::kOperation), input);
    auto [loss, dinput, inverse_divisor] = [&] {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      return CallForward(input, target, label, options..., ignore_index, reduction, need_dinput,
                         kernel);
    }();
    if (!need_dinput) return loss;
    if (MakesGradientInForward(input.scalar_type(), reduction)) {
      const auto node = NewNode<ScaledGradientsNode<Op, 1>>(input);
      node->SetAttributes({kernel});
      node->Save(0, dinput);
      torch::autograd::set_history(loss, node);
      return loss;
    }
    const auto node = NewNode<RowLossRecomputeNode<Op, Options...>>(input);
    node->SetAttributes({options..., ignore_index, reduction, kernel});
    node->Save(0, input);
    node->Save(1, target);
    node->Save(2, label);
    node->Save(3, inverse_divisor);
    torch::autograd::set_history(loss, node);
    return loss;
  }

  static Tensor WithoutAutograd(const Tensor& input, const Tensor& target,
                                const OptionalTensor& label, Options... options,
                                int64_t ignore_index, int64_t reduction, int64_t kernel) {
    return std::get<0>(CallForward(input, target, label, options..., ignore_index, reduction,
                                   /*need_dinput=*/false, kernel));
  }

 private:
  static c10::OperatorHandle Find(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(
        (std::string("fuseboard::") + name).c_str(), "");
  }

  static RowLossResult CallForward(const Tensor& input, const Tensor& target,
                                   const OptionalTensor& label, Options... options,
                                   int64_t ignore_index, int64_t reduction, bool need_dinput,
                                   int64_t kernel) {
    static const auto op = Find(Op::kForward).template typed<decltype(Forward)>();
    return op.call(input, target, label, options..., ignore_index, reduction, need_dinput, kernel);
  }

  static void Check(const Tensor& input, const Tensor& target, const OptionalTensor& label,
                    Options... options, int64_t reduction) {
    CheckRowLoss(NameOf(Op::kOperation), input, target, label, reduction);
    Op::CheckOptions(options...);
  }

  template <typename Fn>
  static auto WithRowLoss(const Tensor& input, const Tensor& target, const OptionalTensor& label,
                          Options... options, int64_t ignore_index, int64_t reduction,
                          int64_t kernel, const Fn& fn) {
    const auto params = Op::ParamsOf(options..., ignore_index);
    const typename Op::Function function(options...);
    return fn(RowLoss{.operation = Op::kOperation,
                      .input = input,
                      .target = target,
                      .label = ValueOrUndefined(label),
                      .ignore_index = ignore_index,
                      .examples = Op::ExamplesOf(input),
                      .reduction = reduction,
                      .kernel = kernel,
                      .params = &params,
                      .function = function});
  }
};

// Where the forward made no gradient.
template <typename Op, typename... Options>
class RowLossRecomputeNode final
    : public SavedNode<RowLossRecomputeNode<Op, Options...>, 4, 1,
                       std::tuple<Options..., int64_t, int64_t, int64_t>> {
 public:
  using variable_list = torch::autograd::variable_list;
  using Inputs = BackwardInputs<4, 1, std::tuple<Options..., int64_t, int64_t, int64_t>>;

  std::string name() const override { return Op::kNodeName; }

  static variable_list Compute(const Inputs& inputs) {
    if (!inputs.needs[0]) return variable_list(1);
    return {std::apply(
        [&](const auto&... attribute) {
          return RowLossOperator<Op, Options...>::CallBackward(
              inputs.grad, inputs.saved[0], inputs.saved[1], OptionalOf(inputs.saved[2]),
              inputs.saved[3], attribute...);
        },
        inputs.attributes)};
  }
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_ROW_LOSS_OP_H_
