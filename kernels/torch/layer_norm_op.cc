// torch.ops.fuseboard.layer_norm: kernels, composite, fake functions and autograd.

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>

#include "kernels/abi/layer_norm.h"
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
using OptionalTensor = std::optional<Tensor>;
constexpr const char* kName = "layer_norm";

// kernels/abi/layer_norm.h over the last dimension. x [..., hidden], any strides; weight, bias
// [hidden] or None, of any floating dtype; the result has the dtype of x.
constexpr char kSchema[] =
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, int kernel) -> Tensor";
// mean and rstd have the shape of x's leading dimensions, f32 (f64 for f64 x).
constexpr char kForwardSchema[] =
    "layer_norm_forward(Tensor x, Tensor? weight, Tensor? bias, float eps, int kernel) "
    "-> (Tensor y, Tensor mean, Tensor rstd)";
// A gradient that is not wanted has the shape [0]. `bias` is read for its dtype only.
constexpr char kBackwardSchema[] =
    "layer_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, "
    "Tensor rstd, float eps, bool need_dx, bool need_dweight, bool need_dbias, int kernel) "
    "-> (Tensor dx, Tensor dweight, Tensor dbias)";

void CheckParameter(const char* name, const Tensor& x, const OptionalTensor& parameter) {
  if (!parameter.has_value()) return;
  CheckFloating(kName, name, *parameter);
  CheckDim(kName, name, *parameter, 1);
  CheckSize(kName, name, parameter->sym_size(0), "x.size(-1)", x.sym_size(-1));
  CheckSameDevice(kName, "x", x, name, *parameter);
}

void Check(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, double eps) {
  CheckFloating(kName, "x", x);
  TORCH_CHECK(x.dim() >= 1, kName, ": x has 0 dimensions, want at least 1");
  TORCH_CHECK(eps >= 0 && std::isfinite(eps), kName, ": eps is ", eps,
              ", want a finite number >= 0");
  CheckParameter("weight", x, weight);
  CheckParameter("bias", x, bias);
}

FbTensor ViewOrAbsent(const OptionalTensor& tensor) {
  return tensor.has_value() ? ViewOf(*tensor) : kAbsent;
}

FbLayerNormParams Params(double eps) { return {sizeof(FbLayerNormParams), eps}; }

// ---- Forward ----

using ForwardResult = std::tuple<Tensor, Tensor, Tensor>;

ForwardResult ForwardComposite(const Tensor& x, const OptionalTensor& weight,
                               const OptionalTensor& bias, double eps) {
  const at::ScalarType accumulate = AccumulationType(x.scalar_type());
  const Tensor wide = x.to(accumulate);
  const Tensor mean = wide.mean(-1, /*keepdim=*/true);
  const Tensor centred = wide.sub(mean);
  const Tensor rstd = centred.square().mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  Tensor y = centred.mul(rstd);
  if (weight.has_value()) y = y.mul(weight->to(accumulate));
  if (bias.has_value()) y = y.add(bias->to(accumulate));
  return {y.to(x.scalar_type()).contiguous(), mean.squeeze(-1).contiguous(),
          rstd.squeeze(-1).contiguous()};
}

ForwardResult Forward(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                      double eps, int64_t kernel) {
  Check(x, weight, bias, eps);
  const c10::DeviceGuard guard(x.device());
  const FbLayerNormParams params = Params(eps);
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    const auto per_row = x.sizes().slice(0, x.dim() - 1);
    Tensor y = Empty(x.sizes(), x.scalar_type(), x.device());
    Tensor mean = Empty(per_row, AccumulationType(x.scalar_type()), x.device());
    Tensor rstd = Empty(per_row, AccumulationType(x.scalar_type()), x.device());
    const RowView rows(x);
    KernelCall call(Operation::kLayerNorm, kernel, FB_FORWARD, x.device());
    call.Inputs({rows.view(), ViewOrAbsent(weight), ViewOrAbsent(bias)});
    call.Outputs({RowView(y).view(), FlatViewOf(mean), FlatViewOf(rstd)});
    reason = call.Run(&params);
    if (reason == nullptr) {
      Counters::Instance().Add(Operation::kLayerNorm, nullptr);
      return {std::move(y), std::move(mean), std::move(rstd)};
    }
  }
  Counters::Instance().Add(Operation::kLayerNorm, reason);
  const AutocastOff autocast_off;
  return ForwardComposite(x, weight, bias, eps);
}

ForwardResult ForwardMeta(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                          double eps, int64_t /*kernel*/) {
  Check(x, weight, bias, eps);
  const auto per_row = x.sym_sizes().slice(0, x.dim() - 1);
  const auto wide = x.options().dtype(AccumulationType(x.scalar_type()));
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(per_row, wide),
          at::empty_symint(per_row, wide)};
}

// ---- Backward ----

struct Needs {
  bool dx;
  bool dweight;
  bool dbias;
};

using BackwardResult = std::tuple<Tensor, Tensor, Tensor>;

BackwardResult BackwardComposite(const Tensor& dy, const Tensor& x, const OptionalTensor& weight,
                                 const OptionalTensor& bias, const Tensor& mean, const Tensor& rstd,
                                 const Needs& needs) {
  const at::ScalarType accumulate = AccumulationType(x.scalar_type());
  const Tensor r = rstd.unsqueeze(-1);
  const Tensor normed = x.to(accumulate).sub(mean.unsqueeze(-1)).mul(r);
  const Tensor grad = dy.to(accumulate);
  BackwardResult result;
  if (needs.dx) {
    const Tensor g = weight.has_value() ? grad.mul(weight->to(accumulate)) : grad;
    const Tensor product = g.mul(normed).mean(-1, /*keepdim=*/true);
    std::get<0>(result) = g.sub(g.mean(-1, /*keepdim=*/true))
                              .sub(normed.mul(product))
                              .mul(r)
                              .to(x.scalar_type())
                              .contiguous();
  }
  if (needs.dweight) {
    std::get<1>(result) =
        grad.mul(normed).reshape({-1, x.size(-1)}).sum(0).to(weight->scalar_type());
  }
  if (needs.dbias) {
    std::get<2>(result) = grad.reshape({-1, x.size(-1)}).sum(0).to(bias->scalar_type());
  }
  return result;
}

// [0] where it is not needed.
Tensor NewGradient(bool needed, const Tensor& like, const Tensor& x) {
  return Empty(needed ? like.sizes() : at::IntArrayRef{0},
               needed ? like.scalar_type() : x.scalar_type(), x.device());
}

BackwardResult Backward(const Tensor& dy, const Tensor& x, const OptionalTensor& weight,
                        const OptionalTensor& bias, const Tensor& mean, const Tensor& rstd,
                        double eps, bool need_dx, bool need_dweight, bool need_dbias,
                        int64_t kernel) {
  Check(x, weight, bias, eps);
  CheckSameDevice(kName, "x", x, "the gradient", dy);
  const c10::DeviceGuard guard(x.device());
  const FbLayerNormParams params = Params(eps);
  Tensor dx = NewGradient(need_dx, x, x);
  Tensor dweight = NewGradient(need_dweight, ValueOrUndefined(weight), x);
  Tensor dbias = NewGradient(need_dbias, ValueOrUndefined(bias), x);
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    const RowView dy_rows(dy);
    const RowView x_rows(x);
    const Tensor mean_flat = mean.contiguous();
    const Tensor rstd_flat = rstd.contiguous();
    KernelCall call(Operation::kLayerNorm, kernel, FB_BACKWARD, x.device());
    call.Inputs({dy_rows.view(), x_rows.view(), ViewOrAbsent(weight), FlatViewOf(mean_flat),
                 FlatViewOf(rstd_flat)});
    call.Outputs({need_dx ? RowView(dx).view() : kAbsent, need_dweight ? ViewOf(dweight) : kAbsent,
                  need_dbias ? ViewOf(dbias) : kAbsent});
    reason = call.Run(&params);
    if (x.numel() == 0) {  // Sums over no rows; a kernel may take this for nothing to do.
      if (need_dweight) dweight.zero_();
      if (need_dbias) dbias.zero_();
    }
  }
  Counters::Instance().Add(Operation::kLayerNorm, reason);
  if (reason != nullptr) {
    const AutocastOff autocast_off;
    auto [new_dx, new_dweight, new_dbias] =
        BackwardComposite(dy, x, weight, bias, mean, rstd, {need_dx, need_dweight, need_dbias});
    if (need_dx) dx = std::move(new_dx);
    if (need_dweight) dweight = std::move(new_dweight);
    if (need_dbias) dbias = std::move(new_dbias);
  }
  return {std::move(dx), std::move(dweight), std::move(dbias)};
}

BackwardResult BackwardMeta(const Tensor& /*dy*/, const Tensor& x, const OptionalTensor& weight,
                            const OptionalTensor& bias, const Tensor& /*mean*/,
                            const Tensor& /*rstd*/, double eps, bool need_dx, bool need_dweight,
                            bool need_dbias, int64_t /*kernel*/) {
  Check(x, weight, bias, eps);
  const auto like = [&](bool needed, const Tensor& tensor) {
    return needed ? at::empty_symint(tensor.sym_sizes(), tensor.options())
                  : at::empty({0}, x.options());
  };
  return {like(need_dx, x), like(need_dweight, ValueOrUndefined(weight)),
          like(need_dbias, ValueOrUndefined(bias))};
}

// ---- The differentiable operator ----

ForwardResult CallForward(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                          double eps, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::layer_norm_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(x, weight, bias, eps, kernel);
}

class LayerNormNode final : public SavedNode<LayerNormNode, 5, 3, std::tuple<double, int64_t>> {
 public:
  std::string name() const override { return "FuseboardLayerNormBackward"; }

  static variable_list Compute(const Inputs& inputs) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::layer_norm_backward", "")
                               .typed<decltype(Backward)>();
    const auto& [x, weight, bias, mean, rstd] = inputs.saved;
    const auto& [need_dx, need_dweight, need_dbias] = inputs.needs;
    const auto& [eps, kernel] = inputs.attributes;
    auto [dx, dweight, dbias] = op.call(inputs.grad, x, OptionalOf(weight), OptionalOf(bias), mean,
                                        rstd, eps, need_dx, need_dweight, need_dbias, kernel);
    return {need_dx ? std::move(dx) : Tensor(), need_dweight ? std::move(dweight) : Tensor(),
            need_dbias ? std::move(dbias) : Tensor()};
  }
};

Tensor Autograd(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                double eps, int64_t kernel) {
  std::shared_ptr<LayerNormNode> node;
  if (torch::autograd::compute_requires_grad(x, weight, bias)) {
    for (const Tensor& input : {x, ValueOrUndefined(weight), ValueOrUndefined(bias)}) {
      CheckNoForwardGradient(kName, input);
    }
    node = NewNode<LayerNormNode>(x, weight, bias);
  }
  auto [y, mean, rstd] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(x, weight, bias, eps, kernel);
  }();
  if (node) {
    node->SetAttributes({eps, kernel});
    node->Save(0, x);
    node->Save(1, weight);
    node->Save(2, bias);
    node->Save(3, mean);
    node->Save(4, rstd);
    torch::autograd::set_history(y, node);
  }
  return y;
}

Tensor WithoutAutograd(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                       double eps, int64_t kernel) {
  return std::get<0>(CallForward(x, weight, bias, eps, kernel));
}

// fp32 under autocast, as F.layer_norm runs there.
template <c10::DeviceType kDevice, c10::DispatchKey kKey>
Tensor Autocast(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                double eps, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::layer_norm", "")
                             .typed<decltype(Autograd)>();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  return op.call(at::autocast::cached_cast(at::kFloat, x, kDevice),
                 at::autocast::cached_cast(at::kFloat, weight, kDevice),
                 at::autocast::cached_cast(at::kFloat, bias, kDevice), eps, kernel);
}

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kSchema, kForwardSchema, kBackwardSchema}); }
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("layer_norm_forward", Forward);
  m.impl("layer_norm_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("layer_norm_forward", Forward);
  m.impl("layer_norm_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("layer_norm_forward", ForwardMeta);
  m.impl("layer_norm_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl(kName, WithoutAutograd); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl(kName, Autograd);
  RefuseSecondDerivatives(m, {"layer_norm_forward", "layer_norm_backward"});
}
TORCH_LIBRARY_IMPL(fuseboard, AutocastCUDA, m) {
  m.impl(kName, Autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace
}  // namespace fuseboard::torch_binding
