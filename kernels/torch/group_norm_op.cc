// torch.ops.fuseboard.group_norm: kernels, fake functions and autograd.

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <cmath>

#include "kernels/abi/group_norm.h"
#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/group_norm_composite.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/saved_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
constexpr const char* kName = "group_norm";

// kernels/abi/group_norm.h. x [examples, channels, ...], any strides; weight, bias [channels] or
// None, of any floating dtype; the result has the dtype of x and is contiguous.
constexpr char kSchema[] =
    "group_norm(Tensor x, int num_groups, Tensor? weight, Tensor? bias, float eps, int kernel) "
    "-> Tensor";
// mean and rstd are [examples, num_groups], f32 (f64 for f64 x).
constexpr char kForwardSchema[] =
    "group_norm_forward(Tensor x, int num_groups, Tensor? weight, Tensor? bias, float eps, "
    "int kernel) -> (Tensor y, Tensor mean, Tensor rstd)";
// A gradient that is not wanted has the shape [0]. `bias` is read for its dtype only.
constexpr char kBackwardSchema[] =
    "group_norm_backward(Tensor dy, Tensor x, int num_groups, Tensor? weight, Tensor? bias, "
    "Tensor mean, Tensor rstd, float eps, bool need_dx, bool need_dweight, bool need_dbias, "
    "int kernel) -> (Tensor dx, Tensor dweight, Tensor dbias)";

void CheckParameter(const char* name, const Tensor& x, const OptionalTensor& parameter) {
  if (!parameter.has_value()) return;
  CheckFloating(kName, name, *parameter);
  CheckDim(kName, name, *parameter, 1);
  CheckSize(kName, name, parameter->sym_size(0), "x.size(1)", x.sym_size(1));
  CheckSameDevice(kName, "x", x, name, *parameter);
}

void Check(const Tensor& x, int64_t groups, const OptionalTensor& weight,
           const OptionalTensor& bias, double eps) {
  CheckFloating(kName, "x", x);
  TORCH_CHECK(x.dim() >= 2, kName, ": x has ", x.dim(), " dimensions, want at least 2");
  TORCH_CHECK(groups >= 1, kName, ": num_groups is ", groups, ", want at least 1");
  const c10::SymInt channels = x.sym_size(1);
  TORCH_SYM_CHECK((channels % groups).sym_eq(0), kName, ": x.size(1) is ", channels,
                  ", want a multiple of num_groups, ", groups);
  TORCH_CHECK(eps >= 0 && std::isfinite(eps), kName, ": eps is ", eps,
              ", want a finite number >= 0");
  CheckParameter("weight", x, weight);
  CheckParameter("bias", x, bias);
}

FbTensor ViewOrAbsent(const OptionalTensor& tensor) {
  return tensor.has_value() ? ViewOf(*tensor) : kAbsent;
}

FbGroupNormParams Params(int64_t groups, double eps) {
  return {sizeof(FbGroupNormParams), groups, eps};
}

// [examples, channels, elements] of a tensor in memory one element after the other.
FbTensor ImageView(const Tensor& tensor) {
  FbTensor view = FlatViewOf(tensor);
  const int64_t elements = c10::multiply_integers(tensor.sizes().slice(2));
  view.ndim = 3;
  view.shape[0] = tensor.size(0);
  view.shape[1] = tensor.size(1);
  view.shape[2] = elements;
  view.stride[0] = tensor.size(1) * elements;
  view.stride[1] = elements;
  view.stride[2] = 1;
  return view;
}

// ---- Forward ----

GroupNormResult Forward(const Tensor& x, int64_t groups, const OptionalTensor& weight,
                        const OptionalTensor& bias, double eps, int64_t kernel) {
  Check(x, groups, weight, bias, eps);
  const c10::DeviceGuard guard(x.device());
  const FbGroupNormParams params = Params(groups, eps);
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    const at::ScalarType wide = AccumulationType(x.scalar_type());
    const Tensor image = x.contiguous();
    Tensor y = Empty(x.sizes(), x.scalar_type(), x.device());
    Tensor mean = Empty({x.size(0), groups}, wide, x.device());
    Tensor rstd = Empty({x.size(0), groups}, wide, x.device());
    KernelCall call(Operation::kGroupNorm, kernel, FB_FORWARD, x.device());
    call.Inputs({ImageView(image), ViewOrAbsent(weight), ViewOrAbsent(bias)});
    call.Outputs({ImageView(y), FlatViewOf(mean), FlatViewOf(rstd)});
    reason = call.Run(&params);
    if (reason == nullptr) {
      Counters::Instance().Add(Operation::kGroupNorm, nullptr);
      return {std::move(y), std::move(mean), std::move(rstd)};
    }
  }
  Counters::Instance().Add(Operation::kGroupNorm, reason);
  const AutocastOff autocast_off;
  return GroupNormComposite(x, groups, weight, bias, eps);
}

GroupNormResult ForwardMeta(const Tensor& x, int64_t groups, const OptionalTensor& weight,
                            const OptionalTensor& bias, double eps, int64_t /*kernel*/) {
  Check(x, groups, weight, bias, eps);
  const c10::SymDimVector statistics = {x.sym_size(0), groups};
  const auto wide = x.options().dtype(AccumulationType(x.scalar_type()));
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(statistics, wide),
          at::empty_symint(statistics, wide)};
}

// ---- Backward ----

// [0] where it is not needed.
Tensor NewGradient(bool needed, const Tensor& like, const Tensor& x) {
  return Empty(needed ? like.sizes() : at::IntArrayRef{0},
               needed ? like.scalar_type() : x.scalar_type(), x.device());
}

GroupNormGradients Backward(const Tensor& dy, const Tensor& x, int64_t groups,
                            const OptionalTensor& weight, const OptionalTensor& bias,
                            const Tensor& mean, const Tensor& rstd, double eps, bool need_dx,
                            bool need_dweight, bool need_dbias, int64_t kernel) {
  Check(x, groups, weight, bias, eps);
  CheckSameDevice(kName, "x", x, "the gradient", dy);
  const c10::DeviceGuard guard(x.device());
  const FbGroupNormParams params = Params(groups, eps);
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    Tensor dx = NewGradient(need_dx, x, x);
    Tensor dweight = NewGradient(need_dweight, ValueOrUndefined(weight), x);
    Tensor dbias = NewGradient(need_dbias, ValueOrUndefined(bias), x);
    const Tensor dy_image = dy.contiguous();
    const Tensor image = x.contiguous();
    const Tensor mean_flat = mean.contiguous();
    const Tensor rstd_flat = rstd.contiguous();
    KernelCall call(Operation::kGroupNorm, kernel, FB_BACKWARD, x.device());
    call.Inputs({ImageView(dy_image), ImageView(image), ViewOrAbsent(weight), FlatViewOf(mean_flat),
                 FlatViewOf(rstd_flat)});
    call.Outputs({need_dx ? ImageView(dx) : kAbsent, need_dweight ? ViewOf(dweight) : kAbsent,
                  need_dbias ? ViewOf(dbias) : kAbsent});
    reason = call.Run(&params);
    if (reason == nullptr) {
      Counters::Instance().Add(Operation::kGroupNorm, nullptr);
      return {std::move(dx), std::move(dweight), std::move(dbias)};
    }
  }
  Counters::Instance().Add(Operation::kGroupNorm, reason);
  const AutocastOff autocast_off;
  return GroupNormBackwardComposite(dy, x, groups, weight, bias, mean, rstd,
                                    {need_dx, need_dweight, need_dbias});
}

GroupNormGradients BackwardMeta(const Tensor& /*dy*/, const Tensor& x, int64_t groups,
                                const OptionalTensor& weight, const OptionalTensor& bias,
                                const Tensor& /*mean*/, const Tensor& /*rstd*/, double eps,
                                bool need_dx, bool need_dweight, bool need_dbias,
                                int64_t /*kernel*/) {
  Check(x, groups, weight, bias, eps);
  const auto like = [&](bool needed, const Tensor& tensor) {
    return needed ? at::empty_symint(tensor.sym_sizes(), tensor.options())
                  : at::empty({0}, x.options());
  };
  return {like(need_dx, x), like(need_dweight, ValueOrUndefined(weight)),
          like(need_dbias, ValueOrUndefined(bias))};
}

// ---- The differentiable operator ----

GroupNormResult CallForward(const Tensor& x, int64_t groups, const OptionalTensor& weight,
                            const OptionalTensor& bias, double eps, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::group_norm_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(x, groups, weight, bias, eps, kernel);
}

class GroupNormNode final
    : public SavedNode<GroupNormNode, 5, 3, std::tuple<int64_t, double, int64_t>> {
 public:
  std::string name() const override { return "FuseboardGroupNormBackward"; }

  static variable_list Compute(const Inputs& inputs) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::group_norm_backward", "")
                               .typed<decltype(Backward)>();
    const auto& [x, weight, bias, mean, rstd] = inputs.saved;
    const auto& [need_dx, need_dweight, need_dbias] = inputs.needs;
    const auto& [groups, eps, kernel] = inputs.attributes;
    auto [dx, dweight, dbias] =
        op.call(inputs.grad, x, groups, OptionalOf(weight), OptionalOf(bias), mean, rstd, eps,
                need_dx, need_dweight, need_dbias, kernel);
    return {need_dx ? std::move(dx) : Tensor(), need_dweight ? std::move(dweight) : Tensor(),
            need_dbias ? std::move(dbias) : Tensor()};
  }
};

Tensor Autograd(const Tensor& x, int64_t groups, const OptionalTensor& weight,
                const OptionalTensor& bias, double eps, int64_t kernel) {
  std::shared_ptr<GroupNormNode> node;
  if (torch::autograd::compute_requires_grad(x, weight, bias)) {
    for (const Tensor& input : {x, ValueOrUndefined(weight), ValueOrUndefined(bias)}) {
      CheckNoForwardGradient(kName, input);
    }
    node = NewNode<GroupNormNode>(x, weight, bias);
  }
  auto [y, mean, rstd] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(x, groups, weight, bias, eps, kernel);
  }();
  if (node) {
    node->SetAttributes({groups, eps, kernel});
    node->Save(0, x);
    node->Save(1, weight);
    node->Save(2, bias);
    node->Save(3, mean);
    node->Save(4, rstd);
    torch::autograd::set_history(y, node);
  }
  return y;
}

Tensor WithoutAutograd(const Tensor& x, int64_t groups, const OptionalTensor& weight,
                       const OptionalTensor& bias, double eps, int64_t kernel) {
  return std::get<0>(CallForward(x, groups, weight, bias, eps, kernel));
}

// fp32 under autocast, as F.group_norm runs there.
template <c10::DeviceType kDevice, c10::DispatchKey kKey>
Tensor Autocast(const Tensor& x, int64_t groups, const OptionalTensor& weight,
                const OptionalTensor& bias, double eps, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::group_norm", "")
                             .typed<decltype(Autograd)>();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  return op.call(at::autocast::cached_cast(at::kFloat, x, kDevice), groups,
                 at::autocast::cached_cast(at::kFloat, weight, kDevice),
                 at::autocast::cached_cast(at::kFloat, bias, kDevice), eps, kernel);
}

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kSchema, kForwardSchema, kBackwardSchema}); }
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("group_norm_forward", Forward);
  m.impl("group_norm_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("group_norm_forward", Forward);
  m.impl("group_norm_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("group_norm_forward", ForwardMeta);
  m.impl("group_norm_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl(kName, WithoutAutograd); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl(kName, Autograd);
  RefuseSecondDerivatives(m, {"group_norm_forward", "group_norm_backward"});
}
TORCH_LIBRARY_IMPL(fuseboard, AutocastCUDA, m) {
  m.impl(kName, Autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace
}  // namespace fuseboard::torch_binding
