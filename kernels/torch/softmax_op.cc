// torch.ops.fuseboard.softmax: kernels, composite, fake functions and autograd.

#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernels/abi/softmax.h"
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

// ---- softmax (kernels/abi/softmax.h). x [..., cols], any strides; over the last dimension. ----
constexpr char kSoftmax[] = "softmax(Tensor x, int kernel) -> Tensor";
constexpr char kSoftmaxForward[] = "softmax_forward(Tensor x, int kernel) -> Tensor";
constexpr char kSoftmaxBackward[] = "softmax_backward(Tensor dy, Tensor y, int kernel) -> Tensor";

void Check(const Tensor& x) {
  CheckFloating("softmax", "x", x);
  TORCH_CHECK(x.dim() >= 1, "softmax: x has 0 dimensions, want at least 1");
}

Tensor Forward(const Tensor& x, int64_t kernel) {
  Check(x);
  const c10::DeviceGuard guard(x.device());
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    Tensor y = Empty(x.sizes(), x.scalar_type(), x.device());
    const RowView x_rows(x);
    KernelCall call(Operation::kSoftmax, kernel, FB_FORWARD, x.device());
    call.Inputs({x_rows.view()});
    call.Outputs({RowView(y).view()});
    reason = call.Run(nullptr);
    if (reason == nullptr) {
      Counters::Instance().Add(Operation::kSoftmax, nullptr);
      return y;
    }
  }
  Counters::Instance().Add(Operation::kSoftmax, reason);
  const AutocastOff autocast_off;
  return at::_softmax(x.contiguous(), -1, /*half_to_float=*/false);
}

Tensor ForwardMeta(const Tensor& x, int64_t /*kernel*/) {
  Check(x);
  return at::empty_symint(x.sym_sizes(), x.options());
}

Tensor Backward(const Tensor& dy, const Tensor& y, int64_t kernel) {
  CheckSameDevice("softmax", "y", y, "the gradient", dy);
  const c10::DeviceGuard guard(y.device());
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    Tensor dx = Empty(y.sizes(), y.scalar_type(), y.device());
    const RowView dy_rows(dy);
    const RowView y_rows(y);
    KernelCall call(Operation::kSoftmax, kernel, FB_BACKWARD, y.device());
    call.Inputs({dy_rows.view(), y_rows.view()});
    call.Outputs({RowView(dx).view()});
    reason = call.Run(nullptr);
    if (reason == nullptr) {
      Counters::Instance().Add(Operation::kSoftmax, nullptr);
      return dx;
    }
  }
  Counters::Instance().Add(Operation::kSoftmax, reason);
  const AutocastOff autocast_off;
  return at::_softmax_backward_data(dy.contiguous(), y.contiguous(), -1, y.scalar_type());
}

Tensor BackwardMeta(const Tensor& /*dy*/, const Tensor& y, int64_t /*kernel*/) {
  return at::empty_symint(y.sym_sizes(), y.options());
}

// ---- The differentiable operator ----

Tensor CallForward(const Tensor& x, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::softmax_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(x, kernel);
}

class SoftmaxNode final : public SavedNode<SoftmaxNode, 1, 1, std::tuple<int64_t>> {
 public:
  std::string name() const override { return "FuseboardSoftmaxBackward"; }

  static variable_list Compute(const Inputs& inputs) {
    if (!inputs.needs[0]) return variable_list(1);
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::softmax_backward", "")
                               .typed<decltype(Backward)>();
    return {op.call(inputs.grad, inputs.saved[0], std::get<0>(inputs.attributes))};
  }
};

Tensor Autograd(const Tensor& x, int64_t kernel) {
  std::shared_ptr<SoftmaxNode> node;
  if (torch::autograd::compute_requires_grad(x)) {
    CheckNoForwardGradient("softmax", x);
    node = NewNode<SoftmaxNode>(x);
    node->SetAttributes({kernel});
  }
  Tensor y = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(x, kernel);
  }();
  if (node) {
    torch::autograd::set_history(y, node);
    node->SaveOutput(0, y);
  }
  return y;
}

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kSoftmax, kSoftmaxForward, kSoftmaxBackward}); }
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("softmax_forward", Forward);
  m.impl("softmax_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("softmax_forward", Forward);
  m.impl("softmax_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("softmax_forward", ForwardMeta);
  m.impl("softmax_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl("softmax", CallForward); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl("softmax", Autograd);
  RefuseSecondDerivatives(m, {"softmax_forward", "softmax_backward"});
}

}  // namespace
}  // namespace fuseboard::torch_binding
