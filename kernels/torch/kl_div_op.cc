// torch.ops.fuseboard.kl_div: fake functions, autograd, and the function by ATen.

#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/xlogy.h>
#include <torch/library.h>

#include "kernels/abi/kl_div.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/row_loss.h"
#include "kernels/torch/scaled_gradients_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;

// ---- kl_div (kernels/abi/kl_div.h). input and target of one shape [..., cols], any strides. ----
// reduction: 0 none, 1 mean over the elements, 2 sum, 3 batchmean: the sum over input.size(0), as
// in F.kl_div. The loss is f32, of input's shape for none, else []. There is no gradient for
// target.
constexpr char kKlDiv[] =
    "kl_div(Tensor input, Tensor target, bool log_target, float eps, int reduction, int kernel) "
    "-> Tensor";
constexpr char kKlDivForward[] =
    "kl_div_forward(Tensor input, Tensor target, bool log_target, float eps, int reduction, "
    "bool need_dinput, int kernel) -> (Tensor loss, Tensor dinput, Tensor inverse_divisor)";
constexpr char kKlDivBackward[] =
    "kl_div_backward(Tensor dloss, Tensor input, Tensor target, Tensor inverse_divisor, "
    "bool log_target, float eps, int reduction, int kernel) -> Tensor dinput";

constexpr const char* kName = "kl_div";

struct KlDivOp {
  static constexpr const char* kNodeName = "FuseboardKlDivBackward";
  static constexpr const char* kBackward = "kl_div_backward";
};

class Function final : public RowLossFunction {
 public:
  Function(bool log_target, double eps) : log_target_(log_target), eps_(eps) {}

  [[nodiscard]] Tensor Loss(const Tensor& input, const Tensor& target) const override {
    if (log_target_) return at::exp(target).mul_(target.sub(input));
    const Tensor least = eps_ > 0 ? target.clamp_min(eps_) : target;
    return at::xlogy(target, least).sub_(target.mul(input));
  }
  [[nodiscard]] Tensor Gradient(const Tensor& /*input*/, const Tensor& target) const override {
    return log_target_ ? at::exp(target).neg_() : target.neg();
  }

 private:
  bool log_target_;
  double eps_;
};

void Check(const Tensor& input, const Tensor& target, double eps, int64_t reduction) {
  CheckRowLoss(kName, input, target, std::nullopt, reduction);
  TORCH_CHECK(eps >= 0, kName, ": eps is ", eps, ", want 0 or more");
}

// Calls fn(RowLoss).
template <typename Fn>
auto WithRowLoss(const Tensor& input, const Tensor& target, bool log_target, double eps,
                 int64_t reduction, int64_t kernel, const Fn& fn) {
  const FbKlDivParams params = {sizeof(FbKlDivParams), log_target ? 1 : 0, eps};
  const Function function(log_target, eps);
  return fn(RowLoss{.operation = Operation::kKlDiv,
                    .input = input,
                    .target = target,
                    .examples = input.size(0),
                    .has_label = false,
                    .reduction = reduction,
                    .kernel = kernel,
                    .params = &params,
                    .function = function});
}

RowLossResult Forward(const Tensor& input, const Tensor& target, bool log_target, double eps,
                      int64_t reduction, bool need_dinput, int64_t kernel) {
  Check(input, target, eps, reduction);
  return WithRowLoss(input, target, log_target, eps, reduction, kernel,
                     [&](const RowLoss& r) { return RowLossForward(r, need_dinput); });
}

RowLossResult ForwardMeta(const Tensor& input, const Tensor& target, bool /*log_target*/,
                          double eps, int64_t reduction, bool need_dinput, int64_t /*kernel*/) {
  Check(input, target, eps, reduction);
  return RowLossForwardMeta(input, target, reduction, need_dinput);
}

Tensor Backward(const Tensor& dloss, const Tensor& input, const Tensor& target,
                const Tensor& inverse_divisor, bool log_target, double eps, int64_t reduction,
                int64_t kernel) {
  Check(input, target, eps, reduction);
  return WithRowLoss(input, target, log_target, eps, reduction, kernel,
                     [&](const RowLoss& r) { return RowLossBackward(r, dloss, inverse_divisor); });
}

Tensor BackwardMeta(const Tensor& /*dloss*/, const Tensor& input, const Tensor& /*target*/,
                    const Tensor& /*inverse_divisor*/, bool /*log_target*/, double /*eps*/,
                    int64_t /*reduction*/, int64_t /*kernel*/) {
  return at::empty_symint(input.sym_sizes(), input.options());
}

// ---- The differentiable operator ----

RowLossResult CallForward(const Tensor& input, const Tensor& target, bool log_target, double eps,
                          int64_t reduction, bool need_dinput, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::kl_div_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(input, target, log_target, eps, reduction, need_dinput, kernel);
}

class RecomputeNode final
    : public SavedNode<RecomputeNode, 3, 1, std::tuple<bool, double, int64_t, int64_t>> {
 public:
  std::string name() const override { return KlDivOp::kNodeName; }

  static variable_list Compute(const Inputs& inputs) {
    if (!inputs.needs[0]) return variable_list(1);
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::kl_div_backward", "")
                               .typed<decltype(Backward)>();
    const auto& [input, target, inverse_divisor] = inputs.saved;
    const auto& [log_target, eps, reduction, kernel] = inputs.attributes;
    return {
        op.call(inputs.grad, input, target, inverse_divisor, log_target, eps, reduction, kernel)};
  }
};

Tensor Autograd(const Tensor& input, const Tensor& target, bool log_target, double eps,
                int64_t reduction, int64_t kernel) {
  CheckNoGradient(kName, "target", target);
  const bool need_dinput = torch::autograd::compute_requires_grad(input);
  if (need_dinput) CheckNoForwardGradient(kName, input);
  auto [loss, dinput, inverse] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(input, target, log_target, eps, reduction, need_dinput, kernel);
  }();
  if (!need_dinput) return loss;
  if (MakesGradientInForward(input.scalar_type(), reduction)) {
    const auto node = NewNode<ScaledGradientsNode<KlDivOp, 1>>(input);
    node->SetAttributes({kernel});
    node->Save(0, dinput);
    torch::autograd::set_history(loss, node);
    return loss;
  }
  const auto node = NewNode<RecomputeNode>(input);
  node->SetAttributes({log_target, eps, reduction, kernel});
  node->Save(0, input);
  node->Save(1, target);
  node->Save(2, inverse);
  torch::autograd::set_history(loss, node);
  return loss;
}

Tensor WithoutAutograd(const Tensor& input, const Tensor& target, bool log_target, double eps,
                       int64_t reduction, int64_t kernel) {
  return std::get<0>(CallForward(input, target, log_target, eps, reduction,
                                 /*need_dinput=*/false, kernel));
}

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kKlDiv, kKlDivForward, kKlDivBackward}); }
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("kl_div_forward", Forward);
  m.impl("kl_div_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("kl_div_forward", Forward);
  m.impl("kl_div_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("kl_div_forward", ForwardMeta);
  m.impl("kl_div_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl("kl_div", WithoutAutograd); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl("kl_div", Autograd);
  RefuseSecondDerivatives(m, {"kl_div_forward", "kl_div_backward"});
}

}  // namespace
}  // namespace fuseboard::torch_binding
