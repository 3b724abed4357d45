// torch.ops.fuseboard.fused_linear_cross_entropy: checks, fake functions, autocast and
// registration.

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernels/torch/checks.h"
#include "kernels/torch/cross_entropy_targets.h"
#include "kernels/torch/device.h"
#include "kernels/torch/fused_linear_cross_entropy.h"
#include "kernels/torch/fused_linear_cross_entropy_nodes.h"
#include "kernels/torch/row_view.h"
#include "kernels/torch/scale_gradients.h"
#include "kernels/torch/weight_gradient.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
constexpr const char* kName = "fused_linear_cross_entropy";

void Check(const LinearLossInputs& inputs) {
  const Tensor& hidden = inputs.head.hidden;
  CheckLinearHead(kName, inputs.head);
  CheckTarget(kName, "hidden.size(0)", hidden.sym_size(0), inputs.target);
  CheckSameDevice(kName, "hidden", hidden, "target", inputs.target);
  if (inputs.class_weight.defined()) {
    CheckClassWeight(kName, inputs.head.weight.sym_size(0), inputs.class_weight);
    CheckSameDevice(kName, "hidden", hidden, "class_weight", inputs.class_weight);
  }
  inputs.options.Check(kName);
}

// The inputs of a call, checked.
LinearLossInputs InputsOf(const LinearHead& head, const Tensor& target,
                          const OptionalTensor& class_weight, const OptionalTensor& divisor,
                          const CrossEntropyOptions& options, int64_t kernel) {
  LinearLossInputs inputs{.operation = Operation::kFusedLinearCrossEntropy,
                          .head = head,
                          .target = target,
                          .class_weight = ValueOrUndefined(class_weight),
                          .divisor = ValueOrUndefined(divisor),
                          .options = options,
                          .kernel = kernel};
  Check(inputs);
  return inputs;
}

// ---- Forward ----

LinearLossForwardResult Forward(const Tensor& hidden, const Tensor& weight,
                                const OptionalTensor& bias, const Tensor& target,
                                const OptionalTensor& class_weight, const OptionalTensor& divisor,
                                int64_t ignore_index, double label_smoothing, double softcap,
                                double logit_scale, double z_loss_scale, bool z_loss_in_loss,
                                int64_t reduction, int64_t dweight_dtype, int64_t chunk_bytes,
                                bool need_dhidden, bool need_dweight, bool need_dbias,
                                int64_t kernel) {
  const bool in_forward = HasGradientInForward(hidden.scalar_type(), reduction);
  const LinearLossInputs inputs =
      InputsOf({hidden, weight, ValueOrUndefined(bias), dweight_dtype, chunk_bytes,
                need_dhidden && in_forward, need_dweight && in_forward, need_dbias && in_forward},
               target, class_weight, divisor,
               {ignore_index, label_smoothing, softcap, logit_scale, z_loss_scale, z_loss_in_loss,
                reduction},
               kernel);
  CheckTargetsOnCpu(kName, target, weight.size(0), ignore_index);
  const c10::DeviceGuard guard(hidden.device());
  LinearLossOutputs outputs = LinearLossForward(inputs);
  const auto or_none = [&](const Tensor& tensor, at::ScalarType dtype) {
    return tensor.defined() ? tensor : Empty({0}, dtype, hidden.device());
  };
  const at::ScalarType wide = AccumulationType(hidden.scalar_type());
  return {outputs.loss,
          outputs.z_loss,
          or_none(outputs.lse, StatisticType(hidden.scalar_type())),
          or_none(outputs.inverse_divisor, wide),
          or_none(outputs.gradients.dhidden, hidden.scalar_type()),
          or_none(outputs.gradients.dweight, hidden.scalar_type()),
          or_none(outputs.gradients.dbias, hidden.scalar_type())};
}

LinearLossForwardResult ForwardMeta(const Tensor& hidden, const Tensor& weight,
                                    const OptionalTensor& bias, const Tensor& target,
                                    const OptionalTensor& class_weight,
                                    const OptionalTensor& divisor, int64_t ignore_index,
                                    double label_smoothing, double softcap, double logit_scale,
                                    double z_loss_scale, bool z_loss_in_loss, int64_t reduction,
                                    int64_t dweight_dtype, int64_t chunk_bytes, bool need_dhidden,
                                    bool need_dweight, bool need_dbias, int64_t kernel) {
  InputsOf({hidden, weight, ValueOrUndefined(bias), dweight_dtype, chunk_bytes, need_dhidden,
            need_dweight, need_dbias},
           target, class_weight, divisor,
           {ignore_index, label_smoothing, softcap, logit_scale, z_loss_scale, z_loss_in_loss,
            reduction},
           kernel);
  const bool in_forward = HasGradientInForward(hidden.scalar_type(), reduction);
  const auto wide = hidden.options().dtype(AccumulationType(hidden.scalar_type()));
  const auto statistic = hidden.options().dtype(StatisticType(hidden.scalar_type()));
  const auto per_row = hidden.sym_sizes().slice(0, 1);
  const auto scalar = hidden.sym_sizes().slice(0, 0);
  const auto loss = reduction == kReduceNone ? per_row : scalar;
  const auto like = [&](bool needed, const Tensor& tensor) {
    return needed && in_forward ? at::empty_symint(tensor.sym_sizes(), tensor.options())
                                : at::empty({0}, hidden.options());
  };
  return {at::empty_symint(loss, wide),
          at::empty_symint(loss, wide),
          in_forward ? at::empty({0}, statistic) : at::empty_symint(per_row, statistic),
          reduction == kReduceMean ? at::empty_symint(scalar, wide) : at::empty({0}, wide),
          like(need_dhidden, hidden),
          like(need_dweight, weight),
          like(need_dbias, ValueOrUndefined(bias))};
}

// ---- Backward, where the forward made no gradients ----

LinearLossBackwardResult Backward(const Tensor& dloss, const Tensor& hidden, const Tensor& weight,
                                  const OptionalTensor& bias, const Tensor& target,
                                  const OptionalTensor& class_weight, const Tensor& lse,
                                  const Tensor& inverse_divisor, int64_t ignore_index,
                                  double label_smoothing, double softcap, double logit_scale,
                                  double z_loss_scale, bool z_loss_in_loss, int64_t reduction,
                                  int64_t dweight_dtype, int64_t chunk_bytes, bool need_dhidden,
                                  bool need_dweight, bool need_dbias, int64_t kernel) {
  const LinearLossInputs inputs = InputsOf({hidden, weight, ValueOrUndefined(bias), dweight_dtype,
                                            chunk_bytes, need_dhidden, need_dweight, need_dbias},
                                           target, class_weight, /*divisor=*/{},
                                           {ignore_index, label_smoothing, softcap, logit_scale,
                                            z_loss_scale, z_loss_in_loss, reduction},
                                           kernel);
  CheckSameDevice(kName, "hidden", hidden, "the gradient", dloss);
  const c10::DeviceGuard guard(hidden.device());
  const Tensor row_scale = RowScale(dloss, inverse_divisor, reduction, hidden.size(0),
                                    AccumulationType(hidden.scalar_type()));
  return ToResult(LinearLossBackward(inputs, {.scale = row_scale, .lse = lse}), hidden);
}

LinearLossBackwardResult BackwardMeta(
    const Tensor& /*dloss*/, const Tensor& hidden, const Tensor& weight, const OptionalTensor& bias,
    const Tensor& /*target*/, const OptionalTensor& /*class_weight*/, const Tensor& /*lse*/,
    const Tensor& /*inverse_divisor*/, int64_t /*ignore_index*/, double /*label_smoothing*/,
    double /*softcap*/, double /*logit_scale*/, double /*z_loss_scale*/, bool /*z_loss_in_loss*/,
    int64_t /*reduction*/, int64_t /*dweight_dtype*/, int64_t /*chunk_bytes*/, bool need_dhidden,
    bool need_dweight, bool need_dbias, int64_t /*kernel*/) {
  return MetaResult({hidden, weight, ValueOrUndefined(bias), kWeightGradientByShape,
                     /*chunk_bytes=*/0, need_dhidden, need_dweight, need_dbias});
}

// ---- The differentiable operator ----

// Keeps of its only chunk what the backward makes the gradients of; not under a tracer, to whom the
// number of rows that count is not known.
std::tuple<Tensor, Tensor> WithDeferredGradients(LinearLossInputs inputs) {
  const Tensor& hidden = inputs.head.hidden;
  inputs.head.defer = true;
  const LinearLossOutputs outputs = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    CheckTargetsOnCpu(kName, inputs.target, inputs.head.weight.size(0),
                      inputs.options.ignore_index);
    const c10::DeviceGuard guard(hidden.device());
    return LinearLossForward(inputs);
  }();
  RecordDeferredLinearLoss(outputs.loss, inputs.head, outputs.deferred, inputs.kernel);
  return {outputs.loss, outputs.z_loss};
}

std::tuple<Tensor, Tensor> Autograd(const Tensor& hidden, const Tensor& weight,
                                    const OptionalTensor& bias, const Tensor& target,
                                    const OptionalTensor& class_weight,
                                    const OptionalTensor& divisor, int64_t ignore_index,
                                    double label_smoothing, double softcap, double logit_scale,
                                    double z_loss_scale, bool z_loss_in_loss, int64_t reduction,
                                    int64_t dweight_dtype, int64_t chunk_bytes, int64_t kernel) {
  CheckNoGradient(kName, "class_weight", ValueOrUndefined(class_weight));
  CheckNoGradient(kName, "divisor", ValueOrUndefined(divisor));
  for (const Tensor& input : {hidden, weight, ValueOrUndefined(bias)}) {
    CheckNoForwardGradient(kName, input);
  }
  const bool enabled = c10::GradMode::is_enabled();
  const bool need_dhidden = enabled && hidden.requires_grad();
  const bool need_dweight = enabled && weight.requires_grad();
  const bool need_dbias = enabled && bias.has_value() && bias->requires_grad();
  if (!IsTraced(hidden) && HasGradientInForward(hidden.scalar_type(), reduction)) {
    const LinearLossInputs inputs = InputsOf({hidden, weight, ValueOrUndefined(bias), dweight_dtype,
                                              chunk_bytes, need_dhidden, need_dweight, need_dbias},
                                             target, class_weight, divisor,
                                             {ignore_index, label_smoothing, softcap, logit_scale,
                                              z_loss_scale, z_loss_in_loss, reduction},
                                             kernel);
    if (DefersGradients(inputs.head, static_cast<int64_t>(hidden.element_size()))) {
      return WithDeferredGradients(inputs);
    }
  }
  LinearLossForwardResult result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallLinearLossForward(hidden, weight, bias, target, class_weight, divisor, ignore_index,
                                 label_smoothing, softcap, logit_scale, z_loss_scale,
                                 z_loss_in_loss, reduction, dweight_dtype, chunk_bytes,
                                 need_dhidden, need_dweight, need_dbias, kernel);
  }();
  if (torch::autograd::compute_requires_grad(hidden, weight, bias)) {
    RecordLinearLoss(result, hidden, weight, bias, target, class_weight,
                     {ignore_index, label_smoothing, softcap, logit_scale, z_loss_scale,
                      z_loss_in_loss, reduction, dweight_dtype, chunk_bytes, kernel});
  }
  return {std::get<0>(result), std::get<1>(result)};
}

std::tuple<Tensor, Tensor> WithoutAutograd(
    const Tensor& hidden, const Tensor& weight, const OptionalTensor& bias, const Tensor& target,
    const OptionalTensor& class_weight, const OptionalTensor& divisor, int64_t ignore_index,
    double label_smoothing, double softcap, double logit_scale, double z_loss_scale,
    bool z_loss_in_loss, int64_t reduction, int64_t dweight_dtype, int64_t chunk_bytes,
    int64_t kernel) {
  const LinearLossForwardResult result = CallLinearLossForward(
      hidden, weight, bias, target, class_weight, divisor, ignore_index, label_smoothing, softcap,
      logit_scale, z_loss_scale, z_loss_in_loss, reduction, dweight_dtype, chunk_bytes,
      /*need_dhidden=*/false, /*need_dweight=*/false, /*need_dbias=*/false, kernel);
  return {std::get<0>(result), std::get<1>(result)};
}

// Casts what F.linear casts; autograd casts the gradients back. The loss itself is fp32 anyway.
template <c10::DeviceType kDevice, c10::DispatchKey kKey>
std::tuple<Tensor, Tensor> Autocast(const Tensor& hidden, const Tensor& weight,
                                    const OptionalTensor& bias, const Tensor& target,
                                    const OptionalTensor& class_weight,
                                    const OptionalTensor& divisor, int64_t ignore_index,
                                    double label_smoothing, double softcap, double logit_scale,
                                    double z_loss_scale, bool z_loss_in_loss, int64_t reduction,
                                    int64_t dweight_dtype, int64_t chunk_bytes, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::fused_linear_cross_entropy", "")
                             .typed<decltype(Autograd)>();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(kDevice);
  return op.call(at::autocast::cached_cast(dtype, hidden, kDevice),
                 at::autocast::cached_cast(dtype, weight, kDevice),
                 at::autocast::cached_cast(dtype, bias, kDevice), target, class_weight, divisor,
                 ignore_index, label_smoothing, softcap, logit_scale, z_loss_scale, z_loss_in_loss,
                 reduction, dweight_dtype, chunk_bytes, kernel);
}

TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("fused_linear_cross_entropy_forward", Forward);
  m.impl("fused_linear_cross_entropy_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("fused_linear_cross_entropy_forward", Forward);
  m.impl("fused_linear_cross_entropy_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("fused_linear_cross_entropy_forward", ForwardMeta);
  m.impl("fused_linear_cross_entropy_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl(kName, WithoutAutograd); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) { m.impl(kName, Autograd); }
TORCH_LIBRARY_IMPL(fuseboard, AutocastCPU, m) {
  m.impl(kName, Autocast<at::kCPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(fuseboard, AutocastCUDA, m) {
  m.impl(kName, Autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace
}  // namespace fuseboard::torch_binding
