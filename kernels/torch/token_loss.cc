#include "kernels/torch/token_loss.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/torch/checks.h"
#include "kernels/torch/cross_entropy_targets.h"
#include "kernels/torch/device.h"
#include "kernels/torch/row_view.h"

namespace fuseboard::torch_binding {

using at::Tensor;

LinearLossInputs TokenLossInputs(Operation operation, const LinearHead& head, const Tensor& target,
                                 const TokenDistribution& distribution, bool need_entropy,
                                 int64_t kernel) {
  const char* name = NameOf(operation);
  CheckLinearHead(name, head);
  CheckTarget(name, "hidden.size(0)", head.hidden.sym_size(0), target);
  CheckSameDevice(name, "hidden", head.hidden, "target", target);
  const double temperature = distribution.temperature;
  TORCH_CHECK(temperature > 0, name, ": temperature is ", temperature, ", want more than 0");
  // cap(s l) / t is c / t * tanh((s / t) l / (c / t)): a cap of c / t of logits times s / t.
  const CrossEntropyOptions options{.ignore_index = distribution.ignore_index,
                                    .label_smoothing = 0,
                                    .softcap = distribution.softcap / temperature,
                                    .logit_scale = distribution.logit_scale / temperature,
                                    .z_loss_scale = 0,
                                    .z_loss_in_loss = false,
                                    .reduction = kReduceNone};
  options.Check(name);
  return {.operation = operation,
          .head = head,
          .target = target,
          .options = options,
          .need_entropy = need_entropy,
          .kernel = kernel};
}

TokenLossResult TokenLossForward(const LinearLossInputs& inputs, int sign) {
  const Tensor& hidden = inputs.head.hidden;
  CheckTargetsOnCpu(NameOf(inputs.operation), inputs.target, inputs.head.weight.size(0),
                    inputs.options.ignore_index);
  const c10::DeviceGuard guard(hidden.device());
  LinearLossOutputs outputs = LinearLossForward(inputs);
  if (!outputs.entropy.defined()) {
    outputs.entropy = Empty({0}, outputs.loss.scalar_type(), hidden.device());
  }
  at::Tensor dhidden = std::move(outputs.gradients.dhidden);
  const auto or_none = [&](at::Tensor& tensor) {
    if (!tensor.defined()) tensor = Empty({0}, hidden.scalar_type(), hidden.device());
  };
  or_none(dhidden);
  or_none(outputs.logits);
  // 0 - loss: ignored rows are 0, not -0.
  return {sign < 0 ? at::rsub(outputs.loss, 0) : std::move(outputs.loss),
          std::move(outputs.entropy), std::move(outputs.lse), std::move(dhidden),
          std::move(outputs.logits)};
}

TokenLossResult TokenLossForwardMeta(const LinearLossInputs& inputs) {
  const Tensor& hidden = inputs.head.hidden;
  const auto options = hidden.options().dtype(AccumulationType(hidden.scalar_type()));
  const auto statistic = hidden.options().dtype(StatisticType(hidden.scalar_type()));
  const auto per_row = hidden.sym_sizes().slice(0, 1);
  return {at::empty_symint(per_row, options),
          inputs.need_entropy ? at::empty_symint(per_row, statistic) : at::empty({0}, options),
          at::empty_symint(per_row, statistic),
          inputs.head.need_dhidden ? at::empty_symint(hidden.sym_sizes(), hidden.options())
                                   : at::empty({0}, hidden.options()),
          at::empty({0}, hidden.options())};
}

LinearHeadResult TokenLossBackward(const LinearLossInputs& inputs, int sign,
                                   const std::optional<Tensor>& dvalues,
                                   const std::optional<Tensor>& dentropy, const Tensor& lse,
                                   const std::optional<Tensor>& entropy,
                                   const std::optional<Tensor>& logits) {
  const char* name = NameOf(inputs.operation);
  const Tensor& hidden = inputs.head.hidden;
  CheckSameDevice(name, "hidden", hidden, "the gradient", ValueOrUndefined(dvalues));
  CheckSameDevice(name, "hidden", hidden, "the gradient", ValueOrUndefined(dentropy));
  const c10::DeviceGuard guard(hidden.device());
  const at::ScalarType dtype = AccumulationType(hidden.scalar_type());
  LinearLossRows rows{.scale = {}, .lse = lse};
  if (dvalues.has_value()) {
    rows.scale = dvalues->to(dtype);
    if (sign < 0) rows.scale = rows.scale.neg();
  } else {
    rows.scale = at::zeros({}, lse.options().dtype(dtype)).expand({hidden.size(0)});
  }
  if (dentropy.has_value()) {
    rows.entropy = ValueOrUndefined(entropy);
    rows.dentropy = dentropy->to(dtype);
  }
  rows.last_first = KeepsLastChunk(inputs.head);
  if (rows.last_first) rows.logits = ValueOrUndefined(logits);
  return ToResult(LinearLossBackward(inputs, rows), hidden);
}

}  // namespace fuseboard::torch_binding
