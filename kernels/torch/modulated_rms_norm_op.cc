// torch.ops.fuseboard.modulated_rms_norm: kernels, composite, fake functions and autograd.

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernels/abi/modulated_rms_norm.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/modulated_rms_norm_composite.h"
#include "kernels/torch/modulation.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/saved_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
constexpr const char* kName = "modulated_rms_norm";

// y = (1 + scale) * rms_norm(x) + shift, kernels/abi/modulated_rms_norm.h. x [..., hidden], any
// strides; weight [hidden] or None; scale and shift of one shape, modulation.h.
constexpr char kSchema[] =
    "modulated_rms_norm(Tensor x, Tensor? weight, Tensor scale, Tensor shift, float eps, "
    "float offset, int casting, int kernel) -> Tensor";
constexpr char kForwardSchema[] =
    "modulated_rms_norm_forward(Tensor x, Tensor? weight, Tensor scale, Tensor shift, float eps, "
    "float offset, int casting, int kernel) -> (Tensor y, Tensor rstd)";
// shift_dtype: a ScalarType, that of dshift, which has the shape of scale.
constexpr char kBackwardSchema[] =
    "modulated_rms_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor scale, Tensor rstd, "
    "int shift_dtype, float eps, float offset, int casting, bool need_dx, bool need_dweight, "
    "bool need_dscale, bool need_dshift, int kernel) "
    "-> (Tensor dx, Tensor dweight, Tensor dscale, Tensor dshift)";

void Check(const Tensor& x, const OptionalTensor& weight, const Tensor& scale, int64_t casting) {
  CheckFloating(kName, "x", x);
  TORCH_CHECK(x.dim() >= 1, kName, ": x has 0 dimensions, want at least 1");
  TORCH_CHECK(casting >= FB_CASTING_LLAMA && casting <= FB_CASTING_NONE, kName, ": casting is ",
              casting, ", want 0 (llama), 1 (gemma) or 2 (none)");
  CheckModulation(kName, "scale", scale, x);
  if (!weight.has_value()) return;
  CheckFloating(kName, "weight", *weight);
  CheckDim(kName, "weight", *weight, 1);
  CheckSize(kName, "weight.size(0)", weight->sym_size(0), "the last dimension", x.sym_size(-1));
  CheckSameDevice(kName, "x", x, "weight", *weight);
}

void CheckShift(const Tensor& scale, const Tensor& shift) {
  CheckFloating(kName, "shift", shift);
  TORCH_CHECK(scale.dim() == shift.dim(), kName, ": scale has ", scale.dim(),
              " dimensions but shift has ", shift.dim());
  for (int64_t i = 0; i < scale.dim(); ++i) {
    TORCH_SYM_CHECK(scale.sym_size(i).sym_eq(shift.sym_size(i)), kName, ": scale has shape ",
                    scale.sym_sizes(), " but shift has shape ", shift.sym_sizes());
  }
  CheckSameDevice(kName, "scale", scale, "shift", shift);
}

FbModulatedRmsNormParams Params(double eps, double offset, int64_t casting) {
  return {sizeof(FbModulatedRmsNormParams), static_cast<int32_t>(casting), eps, offset};
}

FbTensor WeightView(const OptionalTensor& weight) {
  return weight.has_value() ? ViewOf(*weight) : kAbsent;
}

Tensor EmptyIf(bool needed, const Tensor& like, at::ScalarType dtype) {
  return Empty(needed ? like.sizes() : at::IntArrayRef{0}, dtype, like.device());
}

using TensorPair = std::tuple<Tensor, Tensor>;

// ---- Forward ----

TensorPair Forward(const Tensor& x, const OptionalTensor& weight, const Tensor& scale,
                   const Tensor& shift, double eps, double offset, int64_t casting,
                   int64_t kernel) {
  Check(x, weight, scale, casting);
  CheckShift(scale, shift);
  const c10::DeviceGuard guard(x.device());
  const FbModulatedRmsNormParams params = Params(eps, offset, casting);
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    Tensor y = Empty(x.sizes(), ModulatedOutputType(x, weight, scale, shift, casting), x.device());
    Tensor rstd =
        Empty(x.sizes().slice(0, x.dim() - 1), AccumulationType(x.scalar_type()), x.device());
    const RowView x_rows(x);
    const RowView scale_rows(scale);
    const RowView shift_rows(shift);
    KernelCall call(Operation::kModulatedRmsNorm, kernel, FB_FORWARD, x.device());
    call.Inputs({x_rows.view(), WeightView(weight), scale_rows.view(), shift_rows.view()});
    call.Outputs({RowView(y).view(), FlatViewOf(rstd)});
    reason = call.Run(&params);
    if (reason == nullptr) {
      Counters::Instance().Add(Operation::kModulatedRmsNorm, nullptr);
      return {std::move(y), std::move(rstd)};
    }
  }
  Counters::Instance().Add(Operation::kModulatedRmsNorm, reason);
  return ModulatedRmsNormComposite(x, weight, scale, shift, params);
}

TensorPair ForwardMeta(const Tensor& x, const OptionalTensor& weight, const Tensor& scale,
                       const Tensor& shift, double /*eps*/, double /*offset*/, int64_t casting,
                       int64_t /*kernel*/) {
  Check(x, weight, scale, casting);
  CheckShift(scale, shift);
  const auto options = x.options();
  return {at::empty_symint(x.sym_sizes(),
                           options.dtype(ModulatedOutputType(x, weight, scale, shift, casting))),
          at::empty_symint(x.sym_sizes().slice(0, x.dim() - 1),
                           options.dtype(AccumulationType(x.scalar_type())))};
}

// ---- Backward ----

using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// Sums over no rows; a kernel may take a problem without elements for nothing to do.
void ZeroSums(const Tensor& x, const ModulatedGradients& gradients) {
  if (x.numel() != 0) return;
  for (const Tensor& sum : {gradients.dweight, gradients.dscale, gradients.dshift}) sum.zero_();
}

BackwardResult Backward(const Tensor& dy, const Tensor& x, const OptionalTensor& weight,
                        const Tensor& scale, const Tensor& rstd, int64_t shift_dtype, double eps,
                        double offset, int64_t casting, bool need_dx, bool need_dweight,
                        bool need_dscale, bool need_dshift, int64_t kernel) {
  Check(x, weight, scale, casting);
  CheckSameDevice(kName, "x", x, "the gradient", dy);
  const c10::DeviceGuard guard(x.device());
  const FbModulatedRmsNormParams params = Params(eps, offset, casting);
  const Tensor& weight_like = need_dweight ? *weight : x;
  ModulatedGradients out = {EmptyIf(need_dx, x, x.scalar_type()),
                            EmptyIf(need_dweight, weight_like, weight_like.scalar_type()),
                            EmptyIf(need_dscale, scale, scale.scalar_type()),
                            EmptyIf(need_dshift, scale, static_cast<at::ScalarType>(shift_dtype))};
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    const RowView dy_rows(dy);
    const RowView x_rows(x);
    const RowView scale_rows(scale);
    const Tensor rstd_flat = rstd.contiguous();
    KernelCall call(Operation::kModulatedRmsNorm, kernel, FB_BACKWARD, x.device());
    call.Inputs({dy_rows.view(), x_rows.view(), WeightView(weight), scale_rows.view(),
                 FlatViewOf(rstd_flat)});
    call.Outputs({need_dx ? RowView(out.dx).view() : kAbsent,
                  need_dweight ? ViewOf(out.dweight) : kAbsent,
                  need_dscale ? RowView(out.dscale).view() : kAbsent,
                  need_dshift ? RowView(out.dshift).view() : kAbsent});
    reason = call.Run(&params);
    ZeroSums(x, out);
  }
  Counters::Instance().Add(Operation::kModulatedRmsNorm, reason);
  if (reason != nullptr) {
    ModulatedRmsNormBackwardComposite(dy, x, weight, scale, rstd, params,
                                      {need_dx, need_dweight, need_dscale, need_dshift}, &out);
  }
  return {std::move(out.dx), std::move(out.dweight), std::move(out.dscale), std::move(out.dshift)};
}

BackwardResult BackwardMeta(const Tensor& /*dy*/, const Tensor& x, const OptionalTensor& weight,
                            const Tensor& scale, const Tensor& /*rstd*/, int64_t shift_dtype,
                            double /*eps*/, double /*offset*/, int64_t casting, bool need_dx,
                            bool need_dweight, bool need_dscale, bool need_dshift,
                            int64_t /*kernel*/) {
  Check(x, weight, scale, casting);
  const auto empty_if = [](bool needed, const Tensor& like, at::ScalarType dtype) {
    const auto options = like.options().dtype(dtype);
    return needed ? at::empty_symint(like.sym_sizes(), options) : at::empty({0}, options);
  };
  const Tensor& weight_like = need_dweight ? *weight : x;
  return {empty_if(need_dx, x, x.scalar_type()),
          empty_if(need_dweight, weight_like, weight_like.scalar_type()),
          empty_if(need_dscale, scale, scale.scalar_type()),
          empty_if(need_dshift, scale, static_cast<at::ScalarType>(shift_dtype))};
}

// ---- The differentiable operator ----

TensorPair CallForward(const Tensor& x, const OptionalTensor& weight, const Tensor& scale,
                       const Tensor& shift, double eps, double offset, int64_t casting,
                       int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::modulated_rms_norm_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(x, weight, scale, shift, eps, offset, casting, kernel);
}

// shift_dtype, eps, offset, casting, kernel
using Attributes = std::tuple<int64_t, double, double, int64_t, int64_t>;

class ModulatedRmsNormNode final : public SavedNode<ModulatedRmsNormNode, 4, 4, Attributes> {
 public:
  std::string name() const override { return "FuseboardModulatedRmsNormBackward"; }

  static variable_list Compute(const Inputs& inputs) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::modulated_rms_norm_backward", "")
                               .typed<decltype(Backward)>();
    const auto& [x, weight, scale, rstd] = inputs.saved;
    const auto& [need_dx, need_dweight, need_dscale, need_dshift] = inputs.needs;
    const auto& [shift_dtype, eps, offset, casting, kernel] = inputs.attributes;
    const auto [dx, dweight, dscale, dshift] =
        op.call(inputs.grad, x, OptionalOf(weight), scale, rstd, shift_dtype, eps, offset, casting,
                need_dx, need_dweight, need_dscale, need_dshift, kernel);
    return {need_dx ? dx : Tensor(), need_dweight ? dweight : Tensor(),
            need_dscale ? dscale : Tensor(), need_dshift ? dshift : Tensor()};
  }
};

Tensor Autograd(const Tensor& x, const OptionalTensor& weight, const Tensor& scale,
                const Tensor& shift, double eps, double offset, int64_t casting, int64_t kernel) {
  std::shared_ptr<ModulatedRmsNormNode> node;
  if (torch::autograd::compute_requires_grad(x, weight, scale, shift)) {
    for (const Tensor& input : {x, ValueOrUndefined(weight), scale, shift}) {
      CheckNoForwardGradient(kName, input);
    }
    node = NewNode<ModulatedRmsNormNode>(x, weight, scale, shift);
  }
  auto [y, rstd] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(x, weight, scale, shift, eps, offset, casting, kernel);
  }();
  if (node) {
    const auto shift_dtype = static_cast<int64_t>(shift.scalar_type());
    node->SetAttributes({shift_dtype, eps, offset, casting, kernel});
    node->Save(0, x);
    node->Save(1, weight);
    node->Save(2, scale);
    node->Save(3, rstd);
    torch::autograd::set_history(y, node);
  }
  return y;
}

Tensor WithoutAutograd(const Tensor& x, const OptionalTensor& weight, const Tensor& scale,
                       const Tensor& shift, double eps, double offset, int64_t casting,
                       int64_t kernel) {
  return std::get<0>(CallForward(x, weight, scale, shift, eps, offset, casting, kernel));
}

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kSchema, kForwardSchema, kBackwardSchema}); }
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("modulated_rms_norm_forward", Forward);
  m.impl("modulated_rms_norm_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("modulated_rms_norm_forward", Forward);
  m.impl("modulated_rms_norm_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("modulated_rms_norm_forward", ForwardMeta);
  m.impl("modulated_rms_norm_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl(kName, WithoutAutograd); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl(kName, Autograd);
  RefuseSecondDerivatives(m, {"modulated_rms_norm_forward", "modulated_rms_norm_backward"});
}

}  // namespace
}  // namespace fuseboard::torch_binding
