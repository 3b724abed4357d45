// torch.ops.fuseboard.fused_add_rms_norm: kernels, composite, fake functions and autograd.

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernels/abi/fused_add_rms_norm.h"
#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/rms_norm_composite.h"
#include "kernels/torch/saved_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
constexpr const char* kName = "fused_add_rms_norm";

// sum = x + residual and y = rms_norm(sum), kernels/abi/fused_add_rms_norm.h. x and residual
// [..., hidden] of one shape, any strides; weight [hidden] or None. Both results are
// differentiable.
constexpr char kSchema[] =
    "fused_add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float offset, "
    "int casting, int kernel) -> (Tensor y, Tensor sum)";
constexpr char kForwardSchema[] =
    "fused_add_rms_norm_forward(Tensor x, Tensor residual, Tensor? weight, float eps, "
    "float offset, int casting, int kernel) -> (Tensor y, Tensor sum, Tensor rstd)";
// dx is the gradient of x and of residual.
constexpr char kBackwardSchema[] =
    "fused_add_rms_norm_backward(Tensor? dy, Tensor? dsum, Tensor sum, Tensor? weight, "
    "Tensor rstd, float eps, float offset, int casting, bool need_dx, bool need_dweight, "
    "int kernel) -> (Tensor dx, Tensor dweight)";

void CheckNormed(const char* name, const Tensor& x, const OptionalTensor& weight, int64_t casting) {
  CheckFloating(kName, name, x);
  TORCH_CHECK(x.dim() >= 1, kName, ": ", name, " has 0 dimensions, want at least 1");
  TORCH_CHECK(casting >= FB_CASTING_LLAMA && casting <= FB_CASTING_NONE, kName, ": casting is ",
              casting, ", want 0 (llama), 1 (gemma) or 2 (none)");
  if (!weight.has_value()) return;
  CheckFloating(kName, "weight", *weight);
  CheckDim(kName, "weight", *weight, 1);
  CheckSize(kName, "weight.size(0)", weight->sym_size(0), "the last dimension", x.sym_size(-1));
  CheckSameDevice(kName, name, x, "weight", *weight);
}

void Check(const Tensor& x, const Tensor& residual, const OptionalTensor& weight, int64_t casting) {
  CheckNormed("x", x, weight, casting);
  CheckFloating(kName, "residual", residual);
  TORCH_CHECK(x.dim() == residual.dim(), kName, ": x has ", x.dim(),
              " dimensions but residual has ", residual.dim());
  for (int64_t i = 0; i < x.dim(); ++i) {
    TORCH_SYM_CHECK(x.sym_size(i).sym_eq(residual.sym_size(i)), kName, ": x has shape ",
                    x.sym_sizes(), " but residual has shape ", residual.sym_sizes());
  }
  CheckSameDevice(kName, "x", x, "residual", residual);
}

at::ScalarType SumType(const Tensor& x, const Tensor& residual) {
  return at::promoteTypes(x.scalar_type(), residual.scalar_type());
}

at::ScalarType OutputType(at::ScalarType sum, const OptionalTensor& weight, int64_t casting) {
  if (casting != FB_CASTING_LLAMA || !weight.has_value()) return sum;
  return at::promoteTypes(sum, weight->scalar_type());
}

FbFusedAddRmsNormParams Params(double eps, double offset, int64_t casting) {
  return {sizeof(FbFusedAddRmsNormParams), static_cast<int32_t>(casting), eps, offset};
}

FbTensor WeightView(const OptionalTensor& weight) {
  return weight.has_value() ? ViewOf(*weight) : kAbsent;
}

// ---- Forward ----

using ForwardResult = std::tuple<Tensor, Tensor, Tensor>;

ForwardResult Forward(const Tensor& x, const Tensor& residual, const OptionalTensor& weight,
                      double eps, double offset, int64_t casting, int64_t kernel) {
  Check(x, residual, weight, casting);
  const c10::DeviceGuard guard(x.device());
  const FbFusedAddRmsNormParams params = Params(eps, offset, casting);
  const at::ScalarType dtype = SumType(x, residual);
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    Tensor y = Empty(x.sizes(), OutputType(dtype, weight, casting), x.device());
    Tensor sum = Empty(x.sizes(), dtype, x.device());
    Tensor rstd = Empty(x.sizes().slice(0, x.dim() - 1), AccumulationType(dtype), x.device());
    const RowView x_rows(x);
    const RowView residual_rows(residual);
    KernelCall call(Operation::kFusedAddRmsNorm, kernel, FB_FORWARD, x.device());
    call.Inputs({x_rows.view(), residual_rows.view(), WeightView(weight)});
    call.Outputs({RowView(y).view(), RowView(sum).view(), FlatViewOf(rstd)});
    reason = call.Run(&params);
    if (reason == nullptr) {
      Counters::Instance().Add(Operation::kFusedAddRmsNorm, nullptr);
      return {std::move(y), std::move(sum), std::move(rstd)};
    }
  }
  Counters::Instance().Add(Operation::kFusedAddRmsNorm, reason);
  const AutocastOff autocast_off;
  Tensor sum = at::add(x, residual).contiguous();
  auto [y, rstd] = RmsNormComposite(sum, weight, params);
  return {std::move(y), std::move(sum), std::move(rstd)};
}

ForwardResult ForwardMeta(const Tensor& x, const Tensor& residual, const OptionalTensor& weight,
                          double /*eps*/, double /*offset*/, int64_t casting, int64_t /*kernel*/) {
  Check(x, residual, weight, casting);
  const at::ScalarType dtype = SumType(x, residual);
  const auto options = x.options();
  return {at::empty_symint(x.sym_sizes(), options.dtype(OutputType(dtype, weight, casting))),
          at::empty_symint(x.sym_sizes(), options.dtype(dtype)),
          at::empty_symint(x.sym_sizes().slice(0, x.dim() - 1),
                           options.dtype(AccumulationType(dtype)))};
}

// ---- Backward ----

using BackwardResult = std::tuple<Tensor, Tensor>;

// The gradient of the sum that does not come through the norm, or of nothing else.
Tensor PlusDsum(Tensor dx, const OptionalTensor& dsum) {
  return dsum.has_value() ? dx.add(*dsum) : std::move(dx);
}

BackwardResult Backward(const OptionalTensor& dy, const OptionalTensor& dsum, const Tensor& sum,
                        const OptionalTensor& weight, const Tensor& rstd, double eps, double offset,
                        int64_t casting, bool need_dx, bool need_dweight, int64_t kernel) {
  CheckNormed("sum", sum, weight, casting);
  TORCH_CHECK(dy.has_value() || dsum.has_value(), kName, ": want a gradient of y or of sum");
  CheckSameDevice(kName, "sum", sum, "the gradient", dy.has_value() ? *dy : *dsum);
  const c10::DeviceGuard guard(sum.device());
  const FbFusedAddRmsNormParams params = Params(eps, offset, casting);
  Tensor dx = Empty(need_dx ? sum.sizes() : at::IntArrayRef{0}, sum.scalar_type(), sum.device());
  Tensor dweight = Empty(need_dweight ? weight->sizes() : at::IntArrayRef{0},
                         need_dweight ? weight->scalar_type() : sum.scalar_type(), sum.device());
  const AutocastOff autocast_off;
  if (!dy.has_value()) {  // Only the sum was used.
    if (need_dx) dx.copy_(*dsum);
    if (need_dweight) dweight.zero_();
    return {std::move(dx), std::move(dweight)};
  }
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    const RowView dy_rows(*dy);
    const RowView dsum_rows(dsum.has_value() ? *dsum : *dy);
    const RowView sum_rows(sum);
    const Tensor rstd_flat = rstd.contiguous();
    KernelCall call(Operation::kFusedAddRmsNorm, kernel, FB_BACKWARD, sum.device());
    call.Inputs({dy_rows.view(), dsum.has_value() ? dsum_rows.view() : kAbsent, sum_rows.view(),
                 WeightView(weight), FlatViewOf(rstd_flat)});
    call.Outputs(
        {need_dx ? RowView(dx).view() : kAbsent, need_dweight ? ViewOf(dweight) : kAbsent});
    reason = call.Run(&params);
    // A sum over no rows; a kernel may take a problem without elements for nothing to do.
    if (need_dweight && sum.numel() == 0) dweight.zero_();
  }
  Counters::Instance().Add(Operation::kFusedAddRmsNorm, reason);
  if (reason != nullptr) {
    auto [dx_new, dweight_new] =
        RmsNormBackwardComposite(*dy, sum, weight, rstd, params, need_dx, need_dweight);
    if (need_dx) dx = PlusDsum(std::move(dx_new), dsum);
    if (need_dweight) dweight = std::move(dweight_new);
  }
  return {std::move(dx), std::move(dweight)};
}

BackwardResult BackwardMeta(const OptionalTensor& /*dy*/, const OptionalTensor& /*dsum*/,
                            const Tensor& sum, const OptionalTensor& weight, const Tensor& /*rstd*/,
                            double /*eps*/, double /*offset*/, int64_t casting, bool need_dx,
                            bool need_dweight, int64_t /*kernel*/) {
  CheckNormed("sum", sum, weight, casting);
  return {
      need_dx ? at::empty_symint(sum.sym_sizes(), sum.options()) : at::empty({0}, sum.options()),
      need_dweight ? at::empty_symint(weight->sym_sizes(), weight->options())
                   : at::empty({0}, sum.options())};
}

// ---- The differentiable operator ----

ForwardResult CallForward(const Tensor& x, const Tensor& residual, const OptionalTensor& weight,
                          double eps, double offset, int64_t casting, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::fused_add_rms_norm_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(x, residual, weight, eps, offset, casting, kernel);
}

class FusedAddRmsNormNode final
    : public SavedNode<FusedAddRmsNormNode, 3, 3, std::tuple<double, double, int64_t, int64_t>> {
 public:
  std::string name() const override { return "FuseboardFusedAddRmsNormBackward"; }

  static variable_list Compute(const Inputs& inputs) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::fused_add_rms_norm_backward", "")
                               .typed<decltype(Backward)>();
    const auto& [sum, weight, rstd] = inputs.saved;
    const auto& [need_x, need_residual, need_dweight] = inputs.needs;
    const auto& [eps, offset, casting, kernel] = inputs.attributes;
    const auto [dx, dweight] =
        op.call(OptionalOf(inputs.grads[0]), OptionalOf(inputs.grads[1]), sum, OptionalOf(weight),
                rstd, eps, offset, casting, need_x || need_residual, need_dweight, kernel);
    return {need_x ? dx : Tensor(), need_residual ? dx : Tensor(),
            need_dweight ? dweight : Tensor()};
  }
};

std::tuple<Tensor, Tensor> Autograd(const Tensor& x, const Tensor& residual,
                                    const OptionalTensor& weight, double eps, double offset,
                                    int64_t casting, int64_t kernel) {
  std::shared_ptr<FusedAddRmsNormNode> node;
  if (torch::autograd::compute_requires_grad(x, residual, weight)) {
    for (const Tensor& input : {x, residual, ValueOrUndefined(weight)}) {
      CheckNoForwardGradient(kName, input);
    }
    node = NewNode<FusedAddRmsNormNode>(x, residual, weight);
  }
  auto [y, sum, rstd] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(x, residual, weight, eps, offset, casting, kernel);
  }();
  if (node) {
    node->SetAttributes({eps, offset, casting, kernel});
    torch::autograd::set_history(y, node);
    torch::autograd::set_history(sum, node);
    node->SaveOutput(0, sum);
    node->Save(1, weight);
    node->Save(2, rstd);
  }
  return {std::move(y), std::move(sum)};
}

std::tuple<Tensor, Tensor> WithoutAutograd(const Tensor& x, const Tensor& residual,
                                           const OptionalTensor& weight, double eps, double offset,
                                           int64_t casting, int64_t kernel) {
  auto [y, sum, rstd] = CallForward(x, residual, weight, eps, offset, casting, kernel);
  return {std::move(y), std::move(sum)};
}

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kSchema, kForwardSchema, kBackwardSchema}); }
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("fused_add_rms_norm_forward", Forward);
  m.impl("fused_add_rms_norm_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("fused_add_rms_norm_forward", Forward);
  m.impl("fused_add_rms_norm_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("fused_add_rms_norm_forward", ForwardMeta);
  m.impl("fused_add_rms_norm_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl(kName, WithoutAutograd); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl(kName, Autograd);
  RefuseSecondDerivatives(m, {"fused_add_rms_norm_forward", "fused_add_rms_norm_backward"});
}

}  // namespace
}  // namespace fuseboard::torch_binding
