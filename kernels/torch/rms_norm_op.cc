// torch.ops.fuseboard.rms_norm: kernels, fake functions and autograd.

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/rms_norm_composite.h"
#include "kernels/torch/saved_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using TensorPair = std::tuple<Tensor, Tensor>;

void Check(const Tensor& x, const OptionalTensor& weight, int64_t casting) {
  CheckFloating("rms_norm", "x", x);
  TORCH_CHECK(x.dim() >= 1, "rms_norm: x has 0 dimensions, want at least 1");
  TORCH_CHECK(casting >= FB_CASTING_LLAMA && casting <= FB_CASTING_NONE, "rms_norm: casting is ",
              casting, ", want 0 (llama), 1 (gemma) or 2 (none)");
  if (!weight.has_value()) return;
  CheckFloating("rms_norm", "weight", *weight);
  CheckDim("rms_norm", "weight", *weight, 1);
  CheckSize("rms_norm", "weight.size(0)", weight->sym_size(0), "x.size(-1)", x.sym_size(-1));
  CheckSameDevice("rms_norm", "x", x, "weight", *weight);
}

at::ScalarType OutputType(const Tensor& x, const OptionalTensor& weight, int64_t casting) {
  if (casting != FB_CASTING_LLAMA || !weight.has_value()) return x.scalar_type();
  return at::promoteTypes(x.scalar_type(), weight->scalar_type());
}

FbRmsNormParams Params(double eps, double offset, int64_t casting) {
  return {sizeof(FbRmsNormParams), static_cast<int32_t>(casting), eps, offset};
}

FbTensor WeightView(const OptionalTensor& weight) {
  return weight.has_value() ? ViewOf(*weight) : kAbsent;
}

// ---- Forward ----

TensorPair Forward(const Tensor& x, const OptionalTensor& weight, double eps, double offset,
                   int64_t casting, int64_t kernel) {
  Check(x, weight, casting);
  const c10::DeviceGuard guard(x.device());
  const FbRmsNormParams params = Params(eps, offset, casting);
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    Tensor y = Empty(x.sizes(), OutputType(x, weight, casting), x.device());
    Tensor rstd =
        Empty(x.sizes().slice(0, x.dim() - 1), AccumulationType(x.scalar_type()), x.device());
    const RowView rows(x);
    KernelCall call(Operation::kRmsNorm, kernel, FB_FORWARD, x.device());
    call.Inputs({rows.view(), WeightView(weight)});
    call.Outputs({RowView(y).view(), FlatViewOf(rstd)});
    reason = call.Run(&params);
    if (reason == nullptr) {
      Counters::Instance().Add(Operation::kRmsNorm, nullptr);
      return {std::move(y), std::move(rstd)};
    }
  }
  Counters::Instance().Add(Operation::kRmsNorm, reason);
  const AutocastOff autocast_off;
  return RmsNormComposite(x, weight, params);
}

TensorPair ForwardMeta(const Tensor& x, const OptionalTensor& weight, double /*eps*/,
                       double /*offset*/, int64_t casting, int64_t /*kernel*/) {
  Check(x, weight, casting);
  return {at::empty_symint(x.sym_sizes(), x.options().dtype(OutputType(x, weight, casting))),
          at::empty_symint(x.sym_sizes().slice(0, x.dim() - 1),
                           x.options().dtype(AccumulationType(x.scalar_type())))};
}

// ---- Backward ----

TensorPair Backward(const Tensor& dy, const Tensor& x, const OptionalTensor& weight,
                    const Tensor& rstd, double eps, double offset, int64_t casting, bool need_dx,
                    bool need_dweight, int64_t kernel) {
  Check(x, weight, casting);
  CheckSameDevice("rms_norm", "x", x, "the gradient", dy);
  const c10::DeviceGuard guard(x.device());
  const FbRmsNormParams params = Params(eps, offset, casting);
  Tensor dx = Empty(need_dx ? x.sizes() : at::IntArrayRef{0}, x.scalar_type(), x.device());
  Tensor dweight = Empty(need_dweight ? weight->sizes() : at::IntArrayRef{0},
                         need_dweight ? weight->scalar_type() : x.scalar_type(), x.device());
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    const RowView dy_rows(dy);
    const RowView x_rows(x);
    const Tensor rstd_flat = rstd.contiguous();
    KernelCall call(Operation::kRmsNorm, kernel, FB_BACKWARD, x.device());
    call.Inputs({dy_rows.view(), x_rows.view(), WeightView(weight), FlatViewOf(rstd_flat)});
    call.Outputs(
        {need_dx ? RowView(dx).view() : kAbsent, need_dweight ? ViewOf(dweight) : kAbsent});
    reason = call.Run(&params);
    // A sum over no rows; a kernel may take a problem without elements for nothing to do.
    if (need_dweight && x.numel() == 0) dweight.zero_();
  }
  Counters::Instance().Add(Operation::kRmsNorm, reason);
  if (reason != nullptr) {
    const AutocastOff autocast_off;
    auto [dx_new, dweight_new] =
        RmsNormBackwardComposite(dy, x, weight, rstd, params, need_dx, need_dweight);
    if (need_dx) dx = std::move(dx_new);
    if (need_dweight) dweight = std::move(dweight_new);
  }
  return {std::move(dx), std::move(dweight)};
}

TensorPair BackwardMeta(const Tensor& /*dy*/, const Tensor& x, const OptionalTensor& weight,
                        const Tensor& /*rstd*/, double /*eps*/, double /*offset*/, int64_t casting,
                        bool need_dx, bool need_dweight, int64_t /*kernel*/) {
  Check(x, weight, casting);
  return {need_dx ? at::empty_symint(x.sym_sizes(), x.options()) : at::empty({0}, x.options()),
          need_dweight ? at::empty_symint(weight->sym_sizes(), weight->options())
                       : at::empty({0}, x.options())};
}

// ---- The differentiable operator ----

TensorPair CallForward(const Tensor& x, const OptionalTensor& weight, double eps, double offset,
                       int64_t casting, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::rms_norm_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(x, weight, eps, offset, casting, kernel);
}

class RmsNormNode final
    : public SavedNode<RmsNormNode, 3, 2, std::tuple<double, double, int64_t, int64_t>> {
 public:
  std::string name() const override { return "FuseboardRmsNormBackward"; }

  static variable_list Compute(const Inputs& inputs) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::rms_norm_backward", "")
                               .typed<decltype(Backward)>();
    const auto& [x, weight, rstd] = inputs.saved;
    const auto& [need_dx, need_dweight] = inputs.needs;
    const auto& [eps, offset, casting, kernel] = inputs.attributes;
    auto [dx, dweight] = op.call(inputs.grad, x, OptionalOf(weight), rstd, eps, offset, casting,
                                 need_dx, need_dweight, kernel);
    return {need_dx ? std::move(dx) : Tensor(), need_dweight ? std::move(dweight) : Tensor()};
  }
};

Tensor Autograd(const Tensor& x, const OptionalTensor& weight, double eps, double offset,
                int64_t casting, int64_t kernel) {
  std::shared_ptr<RmsNormNode> node;
  if (torch::autograd::compute_requires_grad(x, weight)) {
    CheckNoForwardGradient("rms_norm", x);
    CheckNoForwardGradient("rms_norm", ValueOrUndefined(weight));
    node = NewNode<RmsNormNode>(x, weight);
  }
  auto [y, rstd] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(x, weight, eps, offset, casting, kernel);
  }();
  if (node) {
    node->SetAttributes({eps, offset, casting, kernel});
    node->Save(0, x);
    node->Save(1, weight);
    node->Save(2, rstd);
    torch::autograd::set_history(y, node);
  }
  return y;
}

Tensor WithoutAutograd(const Tensor& x, const OptionalTensor& weight, double eps, double offset,
                       int64_t casting, int64_t kernel) {
  return std::get<0>(CallForward(x, weight, eps, offset, casting, kernel));
}

TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("rms_norm_forward", Forward);
  m.impl("rms_norm_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("rms_norm_forward", Forward);
  m.impl("rms_norm_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("rms_norm_forward", ForwardMeta);
  m.impl("rms_norm_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl("rms_norm", WithoutAutograd); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) { m.impl("rms_norm", Autograd); }

}  // namespace
}  // namespace fuseboard::torch_binding
