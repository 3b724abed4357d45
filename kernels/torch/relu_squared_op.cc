// torch.ops.fuseboard.relu_squared: kernels, composite, fake functions and autograd.

#include <ATen/ops/empty.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/threshold_backward.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernels/abi/relu_squared.h"
#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/saved_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
constexpr const char* kName = "relu_squared";

// y = max(x, 0)^2, kernels/abi/relu_squared.h. x [..., cols], any strides.
constexpr char kSchema[] = "relu_squared(Tensor x, int kernel) -> Tensor";
constexpr char kForwardSchema[] = "relu_squared_forward(Tensor x, int kernel) -> Tensor";
constexpr char kBackwardSchema[] =
    "relu_squared_backward(Tensor dy, Tensor x, int kernel) -> Tensor";

void Check(const Tensor& x) {
  CheckFloating(kName, "x", x);
  TORCH_CHECK(x.dim() >= 1, kName, ": x has 0 dimensions, want at least 1");
}

// ---- Composites: the very operators of `square(relu(x))` and its autograd. ----

Tensor ForwardComposite(const Tensor& x) {
  const AutocastOff autocast_off;
  return at::relu(x).square().contiguous();
}

Tensor BackwardComposite(const Tensor& dy, const Tensor& x) {
  const AutocastOff autocast_off;
  const Tensor relu = at::relu(x);
  return at::threshold_backward(dy.mul(relu.mul(2)), relu, 0).contiguous();
}

// ---- Forward and backward ----

Tensor Forward(const Tensor& x, int64_t kernel) {
  Check(x);
  const c10::DeviceGuard guard(x.device());
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    Tensor y = Empty(x.sizes(), x.scalar_type(), x.device());
    const RowView x_rows(x);
    KernelCall call(Operation::kReluSquared, kernel, FB_FORWARD, x.device());
    call.Inputs({x_rows.view()});
    call.Outputs({RowView(y).view()});
    reason = call.Run(nullptr);
    if (reason == nullptr) {
      Counters::Instance().Add(Operation::kReluSquared, nullptr);
      return y;
    }
  }
  Counters::Instance().Add(Operation::kReluSquared, reason);
  return ForwardComposite(x);
}

Tensor Backward(const Tensor& dy, const Tensor& x, int64_t kernel) {
  Check(x);
  CheckSameDevice(kName, "x", x, "the gradient", dy);
  const c10::DeviceGuard guard(x.device());
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    Tensor dx = Empty(x.sizes(), x.scalar_type(), x.device());
    const RowView dy_rows(dy);
    const RowView x_rows(x);
    KernelCall call(Operation::kReluSquared, kernel, FB_BACKWARD, x.device());
    call.Inputs({dy_rows.view(), x_rows.view()});
    call.Outputs({RowView(dx).view()});
    reason = call.Run(nullptr);
    if (reason == nullptr) {
      Counters::Instance().Add(Operation::kReluSquared, nullptr);
      return dx;
    }
  }
  Counters::Instance().Add(Operation::kReluSquared, reason);
  return BackwardComposite(dy, x);
}

Tensor ForwardMeta(const Tensor& x, int64_t /*kernel*/) {
  Check(x);
  return at::empty_symint(x.sym_sizes(), x.options());
}

Tensor BackwardMeta(const Tensor& /*dy*/, const Tensor& x, int64_t /*kernel*/) {
  Check(x);
  return at::empty_symint(x.sym_sizes(), x.options());
}

// ---- The differentiable operator ----

Tensor CallForward(const Tensor& x, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::relu_squared_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(x, kernel);
}

class ReluSquaredNode final : public SavedNode<ReluSquaredNode, 1, 1, std::tuple<int64_t>> {
 public:
  std::string name() const override { return "FuseboardReluSquaredBackward"; }

  static variable_list Compute(const Inputs& inputs) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::relu_squared_backward", "")
                               .typed<decltype(Backward)>();
    if (!inputs.needs[0]) return {Tensor()};
    return {op.call(inputs.grad, inputs.saved[0], std::get<0>(inputs.attributes))};
  }
};

Tensor Autograd(const Tensor& x, int64_t kernel) {
  std::shared_ptr<ReluSquaredNode> node;
  if (torch::autograd::compute_requires_grad(x)) {
    CheckNoForwardGradient(kName, x);
    node = NewNode<ReluSquaredNode>(x);
    node->SetAttributes({kernel});
    node->Save(0, x);
  }
  Tensor y = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(x, kernel);
  }();
  if (node) torch::autograd::set_history(y, node);
  return y;
}

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kSchema, kForwardSchema, kBackwardSchema}); }
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("relu_squared_forward", Forward);
  m.impl("relu_squared_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("relu_squared_forward", Forward);
  m.impl("relu_squared_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("relu_squared_forward", ForwardMeta);
  m.impl("relu_squared_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl(kName, CallForward); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl(kName, Autograd);
  RefuseSecondDerivatives(m, {"relu_squared_forward", "relu_squared_backward"});
}

}  // namespace
}  // namespace fuseboard::torch_binding
