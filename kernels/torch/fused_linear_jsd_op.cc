// torch.ops.fuseboard.fused_linear_jsd: checks, fake functions, autograd, autocast and
// registration.

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/torch/checks.h"
#include "kernels/torch/deferred_head_node.h"
#include "kernels/torch/device.h"
#include "kernels/torch/fused_linear_jsd.h"
#include "kernels/torch/jsd_function.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/saved_node.h"
#include "kernels/torch/scaled_gradients_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
constexpr const char* kName = "fused_linear_jsd";

// ---- fused_linear_jsd: the divergence of two heads' distributions, without their logits. ----
// student_hidden [rows, in], student_weight [vocab, in], student_bias [vocab] or None; the
// teacher's likewise, of another width and dtype if need be. label [rows] or None. With the
// log-softmax of each one's logits / temperature: the sum of jsd (kernels/abi/jsd.h; beta is the
// teacher's weight) over the rows whose label is not ignore_index, over their number; 0 if there
// are none. f32, []. Gradients for the student's tensors alone. chunk_bytes is the budget of both
// logits buffers, 0: 512 MiB; dweight_dtype as of fused_linear_cross_entropy. kernel is the handle
// of jsd, or -1.
constexpr char kFusedLinearJsd[] =
    "fused_linear_jsd(Tensor student_hidden, Tensor student_weight, Tensor? student_bias, "
    "Tensor teacher_hidden, Tensor teacher_weight, Tensor? teacher_bias, Tensor? label, "
    "float beta, int ignore_index, float temperature, int dweight_dtype, int chunk_bytes, "
    "int kernel) -> Tensor";
// The gradients come from the forward unless the student is f16.
constexpr char kFusedLinearJsdForward[] =
    "fused_linear_jsd_forward(Tensor student_hidden, Tensor student_weight, Tensor? student_bias, "
    "Tensor teacher_hidden, Tensor teacher_weight, Tensor? teacher_bias, Tensor? label, "
    "float beta, int ignore_index, float temperature, int dweight_dtype, int chunk_bytes, "
    "bool need_dhidden, bool need_dweight, bool need_dbias, int kernel) "
    "-> (Tensor loss, Tensor inverse_divisor, Tensor dhidden, Tensor dweight, Tensor dbias)";
constexpr char kFusedLinearJsdBackward[] =
    "fused_linear_jsd_backward(Tensor dloss, Tensor student_hidden, Tensor student_weight, "
    "Tensor? student_bias, Tensor teacher_hidden, Tensor teacher_weight, Tensor? teacher_bias, "
    "Tensor? label, Tensor inverse_divisor, float beta, int ignore_index, float temperature, "
    "int dweight_dtype, int chunk_bytes, bool need_dhidden, bool need_dweight, bool need_dbias, "
    "int kernel) -> (Tensor dhidden, Tensor dweight, Tensor dbias)";

using ForwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// 1 / rows times a probability underflows in f16, unless the upstream gradient is known.
bool HasGradientInForward(const Tensor& student_hidden) {
  return student_hidden.scalar_type() != at::kHalf;
}

at::ScalarType LossType(const LinearJsdInputs& inputs) {
  return AccumulationType(
      at::promoteTypes(inputs.student.hidden.scalar_type(), inputs.teacher.hidden.scalar_type()));
}

void Check(const LinearJsdInputs& inputs) {
  const Tensor& hidden = inputs.student.hidden;
  CheckLinearHead(kName, inputs.student, "student_");
  CheckLinearHead(kName, inputs.teacher, "teacher_");
  CheckSize(kName, "teacher_hidden.size(0)", inputs.teacher.hidden.sym_size(0),
            "student_hidden.size(0)", hidden.sym_size(0));
  CheckSize(kName, "teacher_weight.size(0)", inputs.teacher.weight.sym_size(0),
            "student_weight.size(0)", inputs.student.weight.sym_size(0));
  CheckSameDevice(kName, "student_hidden", hidden, "teacher_hidden", inputs.teacher.hidden);
  if (inputs.label.defined()) {
    TORCH_CHECK(inputs.label.scalar_type() == at::kLong || inputs.label.scalar_type() == at::kInt,
                kName, ": label has dtype ", inputs.label.scalar_type(), ", want Long or Int");
    CheckDim(kName, "label", inputs.label, 1);
    CheckSize(kName, "label.size(0)", inputs.label.sym_size(0), "student_hidden.size(0)",
              hidden.sym_size(0));
    CheckSameDevice(kName, "student_hidden", hidden, "label", inputs.label);
  }
  CheckBeta(kName, inputs.beta);
  TORCH_CHECK(inputs.temperature > 0, kName, ": temperature is ", inputs.temperature,
              ", want more than 0");
}

// The inputs of a call, checked.
LinearJsdInputs InputsOf(const LinearHead& student, const Tensor& teacher_hidden,
                         const Tensor& teacher_weight, const OptionalTensor& teacher_bias,
                         const OptionalTensor& label, double beta, int64_t ignore_index,
                         double temperature, int64_t kernel) {
  LinearJsdInputs inputs{.student = student,
                         .teacher = {.hidden = teacher_hidden,
                                     .weight = teacher_weight,
                                     .bias = ValueOrUndefined(teacher_bias)},
                         .label = ValueOrUndefined(label),
                         .beta = beta,
                         .ignore_index = ignore_index,
                         .temperature = temperature,
                         .kernel = kernel};
  Check(inputs);
  return inputs;
}

// ---- Forward ----

ForwardResult Forward(const Tensor& student_hidden, const Tensor& student_weight,
                      const OptionalTensor& student_bias, const Tensor& teacher_hidden,
                      const Tensor& teacher_weight, const OptionalTensor& teacher_bias,
                      const OptionalTensor& label, double beta, int64_t ignore_index,
                      double temperature, int64_t dweight_dtype, int64_t chunk_bytes,
                      bool need_dhidden, bool need_dweight, bool need_dbias, int64_t kernel) {
  const bool in_forward = HasGradientInForward(student_hidden);
  const LinearJsdInputs inputs = InputsOf(
      {student_hidden, student_weight, ValueOrUndefined(student_bias), dweight_dtype, chunk_bytes,
       need_dhidden && in_forward, need_dweight && in_forward, need_dbias && in_forward},
      teacher_hidden, teacher_weight, teacher_bias, label, beta, ignore_index, temperature, kernel);
  const c10::DeviceGuard guard(student_hidden.device());
  LinearJsdOutputs outputs = LinearJsdForward(inputs);
  auto [dhidden, dweight, dbias] = ToResult(outputs.gradients, student_hidden);
  return {std::move(outputs.loss), std::move(outputs.inverse_divisor), std::move(dhidden),
          std::move(dweight), std::move(dbias)};
}

ForwardResult ForwardMeta(const Tensor& student_hidden, const Tensor& student_weight,
                          const OptionalTensor& student_bias, const Tensor& teacher_hidden,
                          const Tensor& teacher_weight, const OptionalTensor& teacher_bias,
                          const OptionalTensor& label, double beta, int64_t ignore_index,
                          double temperature, int64_t dweight_dtype, int64_t chunk_bytes,
                          bool need_dhidden, bool need_dweight, bool need_dbias, int64_t kernel) {
  const bool in_forward = HasGradientInForward(student_hidden);
  const LinearJsdInputs inputs = InputsOf(
      {student_hidden, student_weight, ValueOrUndefined(student_bias), dweight_dtype, chunk_bytes,
       need_dhidden && in_forward, need_dweight && in_forward, need_dbias && in_forward},
      teacher_hidden, teacher_weight, teacher_bias, label, beta, ignore_index, temperature, kernel);
  const auto options = student_hidden.options().dtype(LossType(inputs));
  const auto scalar = student_hidden.sym_sizes().slice(0, 0);
  auto [dhidden, dweight, dbias] = MetaResult(inputs.student);
  return {at::empty_symint(scalar, options), at::empty_symint(scalar, options), std::move(dhidden),
          std::move(dweight), std::move(dbias)};
}

// ---- Backward, where the forward made no gradients ----

LinearHeadResult Backward(const Tensor& dloss, const Tensor& student_hidden,
                          const Tensor& student_weight, const OptionalTensor& student_bias,
                          const Tensor& teacher_hidden, const Tensor& teacher_weight,
                          const OptionalTensor& teacher_bias, const OptionalTensor& label,
                          const Tensor& inverse_divisor, double beta, int64_t ignore_index,
                          double temperature, int64_t dweight_dtype, int64_t chunk_bytes,
                          bool need_dhidden, bool need_dweight, bool need_dbias, int64_t kernel) {
  const LinearJsdInputs inputs = InputsOf(
      {student_hidden, student_weight, ValueOrUndefined(student_bias), dweight_dtype, chunk_bytes,
       need_dhidden, need_dweight, need_dbias},
      teacher_hidden, teacher_weight, teacher_bias, label, beta, ignore_index, temperature, kernel);
  CheckSameDevice(kName, "student_hidden", student_hidden, "the gradient", dloss);
  const c10::DeviceGuard guard(student_hidden.device());
  const Tensor scale = dloss.to(inverse_divisor.scalar_type()).mul(inverse_divisor);
  return ToResult(LinearJsdBackward(inputs, scale), student_hidden);
}

LinearHeadResult BackwardMeta(const Tensor& /*dloss*/, const Tensor& student_hidden,
                              const Tensor& student_weight, const OptionalTensor& student_bias,
                              const Tensor& /*teacher_hidden*/, const Tensor& /*teacher_weight*/,
                              const OptionalTensor& /*teacher_bias*/,
                              const OptionalTensor& /*label*/, const Tensor& /*inverse_divisor*/,
                              double /*beta*/, int64_t /*ignore_index*/, double /*temperature*/,
                              int64_t /*dweight_dtype*/, int64_t /*chunk_bytes*/, bool need_dhidden,
                              bool need_dweight, bool need_dbias, int64_t /*kernel*/) {
  return MetaResult({.hidden = student_hidden,
                     .weight = student_weight,
                     .bias = ValueOrUndefined(student_bias),
                     .need_dhidden = need_dhidden,
                     .need_dweight = need_dweight,
                     .need_dbias = need_dbias});
}

// ---- The differentiable operator ----

ForwardResult CallForward(const Tensor& student_hidden, const Tensor& student_weight,
                          const OptionalTensor& student_bias, const Tensor& teacher_hidden,
                          const Tensor& teacher_weight, const OptionalTensor& teacher_bias,
                          const OptionalTensor& label, double beta, int64_t ignore_index,
                          double temperature, int64_t dweight_dtype, int64_t chunk_bytes,
                          bool need_dhidden, bool need_dweight, bool need_dbias, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::fused_linear_jsd_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(student_hidden, student_weight, student_bias, teacher_hidden, teacher_weight,
                 teacher_bias, label, beta, ignore_index, temperature, dweight_dtype, chunk_bytes,
                 need_dhidden, need_dweight, need_dbias, kernel);
}

struct LinearJsdOp {
  static constexpr const char* kNodeName = "FuseboardFusedLinearJsdBackward";
  static constexpr const char* kBackward = "fused_linear_jsd_backward";
};

class RecomputeNode final
    : public SavedNode<RecomputeNode, 8, 3,
                       std::tuple<double, int64_t, double, int64_t, int64_t, int64_t>> {
 public:
  std::string name() const override { return LinearJsdOp::kNodeName; }

  static variable_list Compute(const Inputs& inputs) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::fused_linear_jsd_backward", "")
                               .typed<decltype(Backward)>();
    const auto& [student_hidden, student_weight, student_bias, teacher_hidden, teacher_weight,
                 teacher_bias, label, inverse_divisor] = inputs.saved;
    const auto& [need_dhidden, need_dweight, need_dbias] = inputs.needs;
    const auto& [beta, ignore_index, temperature, dweight_dtype, chunk_bytes, kernel] =
        inputs.attributes;
    auto [dhidden, dweight, dbias] =
        op.call(inputs.grad, student_hidden, student_weight, OptionalOf(student_bias),
                teacher_hidden, teacher_weight, OptionalOf(teacher_bias), OptionalOf(label),
                inverse_divisor, beta, ignore_index, temperature, dweight_dtype, chunk_bytes,
                need_dhidden, need_dweight, need_dbias, kernel);
    return {need_dhidden ? std::move(dhidden) : Tensor(),
            need_dweight ? std::move(dweight) : Tensor(), need_dbias ? std::move(dbias) : Tensor()};
  }
};

// As of fused_linear_cross_entropy.
Tensor WithDeferredGradients(LinearJsdInputs inputs) {
  inputs.student.defer = true;
  const LinearJsdOutputs outputs = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::DeviceGuard guard(inputs.student.hidden.device());
    return LinearJsdForward(inputs);
  }();
  RecordDeferredHead<LinearJsdOp>(outputs.loss, inputs.student, outputs.deferred, inputs.kernel);
  return outputs.loss;
}

Tensor Autograd(const Tensor& student_hidden, const Tensor& student_weight,
                const OptionalTensor& student_bias, const Tensor& teacher_hidden,
                const Tensor& teacher_weight, const OptionalTensor& teacher_bias,
                const OptionalTensor& label, double beta, int64_t ignore_index, double temperature,
                int64_t dweight_dtype, int64_t chunk_bytes, int64_t kernel) {
  CheckNoGradient(kName, "teacher_hidden", teacher_hidden);
  CheckNoGradient(kName, "teacher_weight", teacher_weight);
  CheckNoGradient(kName, "teacher_bias", ValueOrUndefined(teacher_bias));
  for (const Tensor& input : {student_hidden, student_weight, ValueOrUndefined(student_bias)}) {
    CheckNoForwardGradient(kName, input);
  }
  const bool enabled = c10::GradMode::is_enabled();
  const bool need_dhidden = enabled && student_hidden.requires_grad();
  const bool need_dweight = enabled && student_weight.requires_grad();
  const bool need_dbias = enabled && student_bias.has_value() && student_bias->requires_grad();
  if (!IsTraced(student_hidden) && HasGradientInForward(student_hidden)) {
    const LinearJsdInputs inputs =
        InputsOf({student_hidden, student_weight, ValueOrUndefined(student_bias), dweight_dtype,
                  chunk_bytes, need_dhidden, need_dweight, need_dbias},
                 teacher_hidden, teacher_weight, teacher_bias, label, beta, ignore_index,
                 temperature, kernel);
    if (DefersGradients(inputs.student, RowBytesPerClass(inputs))) {
      return WithDeferredGradients(inputs);
    }
  }
  auto [loss, inverse_divisor, dhidden, dweight, dbias] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(student_hidden, student_weight, student_bias, teacher_hidden, teacher_weight,
                       teacher_bias, label, beta, ignore_index, temperature, dweight_dtype,
                       chunk_bytes, need_dhidden, need_dweight, need_dbias, kernel);
  }();
  if (!need_dhidden && !need_dweight && !need_dbias) return loss;
  if (HasGradientInForward(student_hidden)) {
    const auto node =
        NewNode<ScaledGradientsNode<LinearJsdOp, 3>>(student_hidden, student_weight, student_bias);
    node->SetAttributes({kernel});
    if (need_dhidden) node->Save(0, dhidden);
    if (need_dweight) node->Save(1, dweight);
    if (need_dbias) node->Save(2, dbias);
    torch::autograd::set_history(loss, node);
    return loss;
  }
  const auto node = NewNode<RecomputeNode>(student_hidden, student_weight, student_bias);
  node->SetAttributes({beta, ignore_index, temperature, dweight_dtype, chunk_bytes, kernel});
  node->Save(0, student_hidden);
  node->Save(1, student_weight);
  node->Save(2, student_bias);
  node->Save(3, teacher_hidden);
  node->Save(4, teacher_weight);
  node->Save(5, teacher_bias);
  node->Save(6, label);
  node->Save(7, inverse_divisor);
  torch::autograd::set_history(loss, node);
  return loss;
}

Tensor WithoutAutograd(const Tensor& student_hidden, const Tensor& student_weight,
                       const OptionalTensor& student_bias, const Tensor& teacher_hidden,
                       const Tensor& teacher_weight, const OptionalTensor& teacher_bias,
                       const OptionalTensor& label, double beta, int64_t ignore_index,
                       double temperature, int64_t dweight_dtype, int64_t chunk_bytes,
                       int64_t kernel) {
  return std::get<0>(CallForward(student_hidden, student_weight, student_bias, teacher_hidden,
                                 teacher_weight, teacher_bias, label, beta, ignore_index,
                                 temperature, dweight_dtype, chunk_bytes, /*need_dhidden=*/false,
                                 /*need_dweight=*/false, /*need_dbias=*/false, kernel));
}

// Casts what F.linear casts; autograd casts the gradients back. The loss itself is fp32 anyway.
template <c10::DeviceType kDevice, c10::DispatchKey kKey>
Tensor Autocast(const Tensor& student_hidden, const Tensor& student_weight,
                const OptionalTensor& student_bias, const Tensor& teacher_hidden,
                const Tensor& teacher_weight, const OptionalTensor& teacher_bias,
                const OptionalTensor& label, double beta, int64_t ignore_index, double temperature,
                int64_t dweight_dtype, int64_t chunk_bytes, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::fused_linear_jsd", "")
                             .typed<decltype(Autograd)>();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  const auto cast = [dtype = at::autocast::get_autocast_dtype(kDevice)](const auto& tensor) {
    return at::autocast::cached_cast(dtype, tensor, kDevice);
  };
  return op.call(cast(student_hidden), cast(student_weight), cast(student_bias),
                 cast(teacher_hidden), cast(teacher_weight), cast(teacher_bias), label, beta,
                 ignore_index, temperature, dweight_dtype, chunk_bytes, kernel);
}

TORCH_LIBRARY_FRAGMENT(fuseboard, m) {
  Define(m, {kFusedLinearJsd, kFusedLinearJsdForward, kFusedLinearJsdBackward});
}
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("fused_linear_jsd_forward", Forward);
  m.impl("fused_linear_jsd_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("fused_linear_jsd_forward", Forward);
  m.impl("fused_linear_jsd_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("fused_linear_jsd_forward", ForwardMeta);
  m.impl("fused_linear_jsd_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl(kName, WithoutAutograd); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl(kName, Autograd);
  RefuseSecondDerivatives(m, {"fused_linear_jsd_forward", "fused_linear_jsd_backward"});
}
TORCH_LIBRARY_IMPL(fuseboard, AutocastCPU, m) {
  m.impl(kName, Autocast<at::kCPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(fuseboard, AutocastCUDA, m) {
  m.impl(kName, Autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace
}  // namespace fuseboard::torch_binding
