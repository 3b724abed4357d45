// torch.ops.fuseboard.cross_entropy: kernels, fake functions and autograd.
//
// With a mean or a sum the forward writes the gradient in its one pass over the logits, into a
// tensor of its own: 4 bytes per bf16 element. The backward scales that on the device, and leaves
// it alone if the upstream gradient is 1, as it is at the end of a training step's forward; else it
// reads and writes it once more.
//
// Otherwise the forward keeps loss and log-sum-exp and the backward reads the logits again: 2 + 4
// bytes. That is without a reduction; in f16, where 1 / rows times a probability underflows unless
// the upstream gradient is known; and for a tracer, to whom scaling is one more pass in any case.

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/cross_entropy_rows.h"
#include "kernels/torch/cross_entropy_targets.h"
#include "kernels/torch/device.h"
#include "kernels/torch/fused_linear_cross_entropy.h"
#include "kernels/torch/row_totals.h"
#include "kernels/torch/saved_node.h"
#include "kernels/torch/scaled_gradients_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
constexpr const char* kName = "cross_entropy";

void Check(const Tensor& logits, const Tensor& target, const OptionalTensor& class_weight,
           const CrossEntropyOptions& options) {
  CheckFloating(kName, "logits", logits);
  CheckDim(kName, "logits", logits, 2);
  CheckTarget(kName, "logits.size(0)", logits.sym_size(0), target);
  CheckSameDevice(kName, "logits", logits, "target", target);
  CheckClassWeight(kName, logits.sym_size(1), class_weight);
  CheckSameDevice(kName, "logits", logits, "class_weight", ValueOrUndefined(class_weight));
  options.Check(kName);
}

// ---- Forward ----

// loss, z_loss, lse, inverse_divisor, dlogits
using ForwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

ForwardResult Forward(const Tensor& logits, const Tensor& target,
                      const OptionalTensor& class_weight, const OptionalTensor& divisor,
                      int64_t ignore_index, double label_smoothing, double softcap,
                      double logit_scale, double z_loss_scale, bool z_loss_in_loss,
                      int64_t reduction, bool need_dlogits, int64_t kernel) {
  const CrossEntropyOptions options{ignore_index, label_smoothing, softcap,  logit_scale,
                                    z_loss_scale, z_loss_in_loss,  reduction};
  Check(logits, target, class_weight, options);
  CheckTargetsOnCpu(kName, target, logits.size(1), ignore_index);
  const c10::DeviceGuard guard(logits.device());
  const AutocastOff autocast_off;
  const at::ScalarType dtype = AccumulationType(logits.scalar_type());
  const int64_t num_rows = logits.size(0);
  CrossEntropyRows rows{.logits = logits, .target = target};
  if (class_weight.has_value()) rows.class_weight = class_weight->to(dtype).contiguous();
  rows.loss = Empty({num_rows}, dtype, logits.device());
  rows.lse = Empty({num_rows}, StatisticType(logits.scalar_type()), logits.device());
  if (z_loss_scale > 0) rows.z_loss = Empty({num_rows}, dtype, logits.device());
  Tensor inverse;
  if (reduction == kReduceMean) {
    inverse = InverseDivisor(target, rows.class_weight, ValueOrUndefined(divisor), ignore_index,
                             dtype, kernel);
  }
  if (need_dlogits) {
    rows.dlogits = Empty(logits.sizes(), logits.scalar_type(), logits.device());
    if (inverse.defined()) rows.scale = inverse.expand({num_rows});
  }
  Counters::Instance().Add(Operation::kCrossEntropy, CrossEntropyForward(rows, options, kernel));
  auto [loss, z_loss] = Reduce(rows.loss, rows.z_loss, inverse, reduction, kernel);
  if (!inverse.defined()) inverse = Empty({0}, dtype, logits.device());
  if (!need_dlogits) rows.dlogits = Empty({0}, logits.scalar_type(), logits.device());
  return {std::move(loss), std::move(z_loss), std::move(rows.lse), std::move(inverse),
          std::move(rows.dlogits)};
}

ForwardResult ForwardMeta(const Tensor& logits, const Tensor& target,
                          const OptionalTensor& class_weight, const OptionalTensor& /*divisor*/,
                          int64_t ignore_index, double label_smoothing, double softcap,
                          double logit_scale, double z_loss_scale, bool z_loss_in_loss,
                          int64_t reduction, bool need_dlogits, int64_t /*kernel*/) {
  Check(logits, target, class_weight,
        {ignore_index, label_smoothing, softcap, logit_scale, z_loss_scale, z_loss_in_loss,
         reduction});
  const auto options = logits.options().dtype(AccumulationType(logits.scalar_type()));
  const auto per_row = logits.sym_sizes().slice(0, 1);
  const auto scalar = logits.sym_sizes().slice(0, 0);
  const auto loss = reduction == kReduceNone ? per_row : scalar;
  return {at::empty_symint(loss, options), at::empty_symint(loss, options),
          at::empty_symint(per_row, options.dtype(StatisticType(logits.scalar_type()))),
          reduction == kReduceMean ? at::empty_symint(scalar, options) : at::empty({0}, options),
          need_dlogits ? at::empty_symint(logits.sym_sizes(), logits.options())
                       : at::empty({0}, logits.options())};
}

// ---- Backward ----

Tensor Backward(const Tensor& dloss, const Tensor& logits, const Tensor& target,
                const OptionalTensor& class_weight, const Tensor& lse,
                const Tensor& inverse_divisor, int64_t ignore_index, double label_smoothing,
                double softcap, double logit_scale, double z_loss_scale, bool z_loss_in_loss,
                int64_t reduction, int64_t kernel) {
  const CrossEntropyOptions options{ignore_index, label_smoothing, softcap,  logit_scale,
                                    z_loss_scale, z_loss_in_loss,  reduction};
  Check(logits, target, class_weight, options);
  CheckSameDevice(kName, "logits", logits, "the gradient", dloss);
  const c10::DeviceGuard guard(logits.device());
  const AutocastOff autocast_off;
  const at::ScalarType dtype = AccumulationType(logits.scalar_type());
  CrossEntropyRows rows{.logits = logits, .target = target, .lse = lse.contiguous()};
  if (class_weight.has_value()) rows.class_weight = class_weight->to(dtype).contiguous();
  rows.scale = RowScale(dloss, inverse_divisor, reduction, logits.size(0), dtype);
  rows.dlogits = Empty(logits.sizes(), logits.scalar_type(), logits.device());
  Counters::Instance().Add(Operation::kCrossEntropy, CrossEntropyBackward(rows, options, kernel));
  return std::move(rows.dlogits);
}

Tensor BackwardMeta(const Tensor& /*dloss*/, const Tensor& logits, const Tensor& /*target*/,
                    const OptionalTensor& /*class_weight*/, const Tensor& /*lse*/,
                    const Tensor& /*inverse_divisor*/, int64_t /*ignore_index*/,
                    double /*label_smoothing*/, double /*softcap*/, double /*logit_scale*/,
                    double /*z_loss_scale*/, bool /*z_loss_in_loss*/, int64_t /*reduction*/,
                    int64_t /*kernel*/) {
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

// ---- The differentiable operator ----

struct CrossEntropyOp {
  static constexpr const char* kNodeName = "FuseboardCrossEntropyBackward";
  static constexpr const char* kBackward = "cross_entropy_backward";
};

// The forward kept the log-sum-exp only.
class CrossEntropyNode final
    : public SavedNode<
          CrossEntropyNode, 5, 1,
          std::tuple<int64_t, double, double, double, double, bool, int64_t, int64_t>> {
 public:
  std::string name() const override { return CrossEntropyOp::kNodeName; }

  static variable_list Compute(const Inputs& inputs) {
    if (!inputs.needs[0]) return variable_list(1);
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::cross_entropy_backward", "")
                               .typed<decltype(Backward)>();
    const auto& [logits, target, class_weight, lse, inverse_divisor] = inputs.saved;
    const auto& [ignore_index, label_smoothing, softcap, logit_scale, z_loss_scale, z_loss_in_loss,
                 reduction, kernel] = inputs.attributes;
    return {op.call(inputs.grad, logits, target, OptionalOf(class_weight), lse, inverse_divisor,
                    ignore_index, label_smoothing, softcap, logit_scale, z_loss_scale,
                    z_loss_in_loss, reduction, kernel)};
  }
};

ForwardResult CallForward(const Tensor& logits, const Tensor& target,
                          const OptionalTensor& class_weight, const OptionalTensor& divisor,
                          int64_t ignore_index, double label_smoothing, double softcap,
                          double logit_scale, double z_loss_scale, bool z_loss_in_loss,
                          int64_t reduction, bool need_dlogits, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::cross_entropy_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(logits, target, class_weight, divisor, ignore_index, label_smoothing, softcap,
                 logit_scale, z_loss_scale, z_loss_in_loss, reduction, need_dlogits, kernel);
}

std::tuple<Tensor, Tensor> Autograd(const Tensor& logits, const Tensor& target,
                                    const OptionalTensor& class_weight,
                                    const OptionalTensor& divisor, int64_t ignore_index,
                                    double label_smoothing, double softcap, double logit_scale,
                                    double z_loss_scale, bool z_loss_in_loss, int64_t reduction,
                                    int64_t kernel) {
  CheckNoGradient(kName, "class_weight", ValueOrUndefined(class_weight));
  CheckNoGradient(kName, "divisor", ValueOrUndefined(divisor));
  const bool needs_gradient = torch::autograd::compute_requires_grad(logits);
  if (needs_gradient) CheckNoForwardGradient(kName, logits);
  const bool in_forward =
      needs_gradient && HasGradientInForward(logits.scalar_type(), reduction) && !IsTraced(logits);
  auto [loss, z_loss, lse, inverse, dlogits] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(logits, target, class_weight, divisor, ignore_index, label_smoothing,
                       softcap, logit_scale, z_loss_scale, z_loss_in_loss, reduction, in_forward,
                       kernel);
  }();
  if (in_forward) {
    const auto node = NewNode<ScaledGradientsNode<CrossEntropyOp, 1>>(logits);
    node->SetAttributes({kernel});
    node->Save(0, dlogits);
    torch::autograd::set_history(loss, node);
  } else if (needs_gradient) {
    const auto node = NewNode<CrossEntropyNode>(logits);
    node->SetAttributes({ignore_index, label_smoothing, softcap, logit_scale, z_loss_scale,
                         z_loss_in_loss, reduction, kernel});
    node->Save(0, logits);
    node->Save(1, target);
    node->Save(2, class_weight);
    node->Save(3, lse);
    node->Save(4, inverse);
    torch::autograd::set_history(loss, node);
  }
  return {std::move(loss), std::move(z_loss)};
}

std::tuple<Tensor, Tensor> WithoutAutograd(const Tensor& logits, const Tensor& target,
                                           const OptionalTensor& class_weight,
                                           const OptionalTensor& divisor, int64_t ignore_index,
                                           double label_smoothing, double softcap,
                                           double logit_scale, double z_loss_scale,
                                           bool z_loss_in_loss, int64_t reduction, int64_t kernel) {
  auto [loss, z_loss, lse, inverse, dlogits] = CallForward(
      logits, target, class_weight, divisor, ignore_index, label_smoothing, softcap, logit_scale,
      z_loss_scale, z_loss_in_loss, reduction, /*need_dlogits=*/false, kernel);
  return {std::move(loss), std::move(z_loss)};
}

TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("cross_entropy_forward", Forward);
  m.impl("cross_entropy_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("cross_entropy_forward", Forward);
  m.impl("cross_entropy_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("cross_entropy_forward", ForwardMeta);
  m.impl("cross_entropy_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) {
  m.impl("cross_entropy", WithoutAutograd);
}
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) { m.impl("cross_entropy", Autograd); }

}  // namespace
}  // namespace fuseboard::torch_binding
