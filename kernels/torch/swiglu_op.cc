// torch.ops.fuseboard.swiglu: kernels, composite, fake functions and autograd.

#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernels/abi/swiglu.h"
#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/saved_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using TensorPair = std::tuple<Tensor, Tensor>;

// gate and up may differ in dtype where a model's own code promotes; no kernel takes that.
void Check(const Tensor& gate, const Tensor& up) {
  CheckFloating("swiglu", "gate", gate);
  CheckFloating("swiglu", "up", up);
  TORCH_CHECK(gate.dim() >= 1, "swiglu: gate has 0 dimensions, want at least 1");
  TORCH_CHECK(gate.dim() == up.dim(), "swiglu: gate has ", gate.dim(), " dimensions but up has ",
              up.dim());
  for (int64_t i = 0; i < gate.dim(); ++i) {
    TORCH_SYM_CHECK(gate.sym_size(i).sym_eq(up.sym_size(i)), "swiglu: gate has shape ",
                    gate.sym_sizes(), " but up has shape ", up.sym_sizes());
  }
  CheckSameDevice("swiglu", "gate", gate, "up", up);
}

at::ScalarType OutputType(const Tensor& gate, const Tensor& up) {
  return at::promoteTypes(gate.scalar_type(), up.scalar_type());
}

FbSwigluParams Params(bool round_activation) {
  return {sizeof(FbSwigluParams), round_activation ? 1 : 0};
}

// ---- Composites: with round_activation the very operators of `act_fn(gate) * up` and its
// autograd. ----

Tensor ForwardComposite(const Tensor& gate, const Tensor& up, bool round_activation) {
  const AutocastOff autocast_off;
  if (round_activation) return at::silu(gate).mul(up).contiguous();
  const at::ScalarType accumulate = AccumulationType(OutputType(gate, up));
  return at::silu(gate.to(accumulate)).mul(up.to(accumulate)).to(OutputType(gate, up)).contiguous();
}

TensorPair BackwardComposite(const Tensor& dout, const Tensor& gate, const Tensor& up,
                             bool round_activation, bool need_dgate, bool need_dup) {
  const AutocastOff autocast_off;
  const at::ScalarType accumulate = AccumulationType(OutputType(gate, up));
  const bool round = round_activation;
  const Tensor grad = round ? dout : dout.to(accumulate);
  const Tensor g = round ? gate : gate.to(accumulate);
  Tensor dgate;
  Tensor dup;
  if (need_dgate) {
    Tensor dsilu = grad.mul(round ? up : up.to(accumulate));
    if (round) dsilu = dsilu.to(gate.scalar_type());
    dgate = at::silu_backward(dsilu, g).to(gate.scalar_type()).contiguous();
  }
  if (need_dup) dup = grad.mul(at::silu(g)).to(up.scalar_type()).contiguous();
  return {std::move(dgate), std::move(dup)};
}

// ---- Forward and backward ----

Tensor Forward(const Tensor& gate, const Tensor& up, bool round_activation, int64_t kernel) {
  Check(gate, up);
  const c10::DeviceGuard guard(gate.device());
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    Tensor out = Empty(gate.sizes(), OutputType(gate, up), gate.device());
    const FbSwigluParams params = Params(round_activation);
    const RowView gate_rows(gate);
    const RowView up_rows(up);
    KernelCall call(Operation::kSwiglu, kernel, FB_FORWARD, gate.device());
    call.Inputs({gate_rows.view(), up_rows.view()});
    call.Outputs({RowView(out).view()});
    reason = call.Run(&params);
    if (reason == nullptr) {
      Counters::Instance().Add(Operation::kSwiglu, nullptr);
      return out;
    }
  }
  Counters::Instance().Add(Operation::kSwiglu, reason);
  return ForwardComposite(gate, up, round_activation);
}

Tensor ForwardMeta(const Tensor& gate, const Tensor& up, bool /*round_activation*/,
                   int64_t /*kernel*/) {
  Check(gate, up);
  return at::empty_symint(gate.sym_sizes(), gate.options().dtype(OutputType(gate, up)));
}

TensorPair Backward(const Tensor& dout, const Tensor& gate, const Tensor& up, bool round_activation,
                    bool need_dgate, bool need_dup, int64_t kernel) {
  Check(gate, up);
  CheckSameDevice("swiglu", "gate", gate, "the gradient", dout);
  const c10::DeviceGuard guard(gate.device());
  Tensor dgate =
      Empty(need_dgate ? gate.sizes() : at::IntArrayRef{0}, gate.scalar_type(), gate.device());
  Tensor dup = Empty(need_dup ? up.sizes() : at::IntArrayRef{0}, up.scalar_type(), gate.device());
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    const FbSwigluParams params = Params(round_activation);
    const RowView dout_rows(dout);
    const RowView gate_rows(gate);
    const RowView up_rows(up);
    KernelCall call(Operation::kSwiglu, kernel, FB_BACKWARD, gate.device());
    call.Inputs({dout_rows.view(), gate_rows.view(), up_rows.view()});
    call.Outputs(
        {need_dgate ? RowView(dgate).view() : kAbsent, need_dup ? RowView(dup).view() : kAbsent});
    reason = call.Run(&params);
  }
  Counters::Instance().Add(Operation::kSwiglu, reason);
  if (reason != nullptr) {
    auto [dgate_new, dup_new] =
        BackwardComposite(dout, gate, up, round_activation, need_dgate, need_dup);
    if (need_dgate) dgate = std::move(dgate_new);
    if (need_dup) dup = std::move(dup_new);
  }
  return {std::move(dgate), std::move(dup)};
}

TensorPair BackwardMeta(const Tensor& /*dout*/, const Tensor& gate, const Tensor& up,
                        bool /*round_activation*/, bool need_dgate, bool need_dup,
                        int64_t /*kernel*/) {
  Check(gate, up);
  return {need_dgate ? at::empty_symint(gate.sym_sizes(), gate.options())
                     : at::empty({0}, gate.options()),
          need_dup ? at::empty_symint(up.sym_sizes(), up.options()) : at::empty({0}, up.options())};
}

// ---- The differentiable operator ----

Tensor CallForward(const Tensor& gate, const Tensor& up, bool round_activation, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::swiglu_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(gate, up, round_activation, kernel);
}

class SwigluNode final : public SavedNode<SwigluNode, 2, 2, std::tuple<bool, int64_t>> {
 public:
  std::string name() const override { return "FuseboardSwigluBackward"; }

  static variable_list Compute(const Inputs& inputs) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::swiglu_backward", "")
                               .typed<decltype(Backward)>();
    const auto& [gate, up] = inputs.saved;
    const auto& [need_dgate, need_dup] = inputs.needs;
    const auto& [round_activation, kernel] = inputs.attributes;
    auto [dgate, dup] =
        op.call(inputs.grad, gate, up, round_activation, need_dgate, need_dup, kernel);
    return {need_dgate ? std::move(dgate) : Tensor(), need_dup ? std::move(dup) : Tensor()};
  }
};

Tensor Autograd(const Tensor& gate, const Tensor& up, bool round_activation, int64_t kernel) {
  std::shared_ptr<SwigluNode> node;
  if (torch::autograd::compute_requires_grad(gate, up)) {
    CheckNoForwardGradient("swiglu", gate);
    CheckNoForwardGradient("swiglu", up);
    node = NewNode<SwigluNode>(gate, up);
    node->SetAttributes({round_activation, kernel});
    node->Save(0, gate);
    node->Save(1, up);
  }
  Tensor out = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(gate, up, round_activation, kernel);
  }();
  if (node) torch::autograd::set_history(out, node);
  return out;
}

TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("swiglu_forward", Forward);
  m.impl("swiglu_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("swiglu_forward", Forward);
  m.impl("swiglu_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("swiglu_forward", ForwardMeta);
  m.impl("swiglu_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl("swiglu", CallForward); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) { m.impl("swiglu", Autograd); }

}  // namespace
}  // namespace fuseboard::torch_binding
