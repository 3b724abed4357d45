// torch.ops.fuseboard.fused_linear_scaled_cross_entropy: what it has of its own; all else is
// token_loss_op.h's.

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "kernels/torch/registration.h"
#include "kernels/torch/token_loss_op.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
constexpr const char* kName = "fused_linear_scaled_cross_entropy";

// ---- fused_linear_scaled_cross_entropy: cross entropy and entropy of each row. ----
// hidden [rows, in], weight [vocab, in], bias [vocab] or None, target [rows]. With
// z = cap(logit_scale * (hidden @ weight.T + bias)) / temperature, cap(v) = softcap * tanh(v /
// softcap) or v if softcap is 0, and p = softmax(z): -log p[target] and -sum p log p, both f32,
// [rows], differentiable, and 0 where target is ignore_index. Without return_entropy the entropy
// has the shape [0]. dweight_dtype, chunk_bytes and kernel as of fused_linear_cross_entropy.
constexpr char kFusedLinearScaledCrossEntropy[] =
    "fused_linear_scaled_cross_entropy(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, "
    "int ignore_index, float softcap, float logit_scale, float temperature, bool return_entropy, "
    ""
    "int dweight_dtype, int chunk_bytes, int kernel) -> (Tensor, Tensor)";
constexpr char kFusedLinearScaledCrossEntropyForward[] =
    "fused_linear_scaled_cross_entropy_forward(Tensor hidden, Tensor weight, Tensor? bias, Tensor "
    "target, "
    "int ignore_index, float softcap, float logit_scale, float temperature, bool need_entropy, "
    "bool need_dhidden, bool keep_logits, int chunk_bytes, int kernel) "
    "-> (Tensor values, Tensor entropy, Tensor lse, Tensor dhidden, Tensor logits)";
constexpr char kFusedLinearScaledCrossEntropyBackward[] =
    "fused_linear_scaled_cross_entropy_backward(Tensor? dvalues, Tensor? dentropy, Tensor hidden, "
    "Tensor weight, "
    "Tensor? bias, Tensor target, Tensor lse, Tensor? entropy, Tensor? logits, int ignore_index, "
    "float softcap, "
    "float logit_scale, float temperature, int dweight_dtype, int chunk_bytes, bool need_dhidden, "
    "bool need_dweight, bool need_dbias, int kernel) "
    "-> (Tensor dhidden, Tensor dweight, Tensor dbias)";

struct FusedLinearScaledCrossEntropyOp {
  static constexpr Operation kOperation = Operation::kFusedLinearScaledCrossEntropy;
  static constexpr int kSign = 1;
  static constexpr const char* kNodeName = "FuseboardFusedLinearScaledCrossEntropyBackward";
  static constexpr const char* kForward = "fused_linear_scaled_cross_entropy_forward";
  static constexpr const char* kBackward = "fused_linear_scaled_cross_entropy_backward";
};

using TokenLoss = TokenLossOperator<FusedLinearScaledCrossEntropyOp>;

std::tuple<Tensor, Tensor> Autograd(const Tensor& hidden, const Tensor& weight,
                                    const OptionalTensor& bias, const Tensor& target,
                                    int64_t ignore_index, double softcap, double logit_scale,
                                    double temperature, bool return_entropy, int64_t dweight_dtype,
                                    int64_t chunk_bytes, int64_t kernel) {
  return TokenLoss::Autograd(hidden, weight, bias, target, ignore_index, softcap, logit_scale,
                             temperature, return_entropy, dweight_dtype, chunk_bytes, kernel);
}

std::tuple<Tensor, Tensor> WithoutAutograd(const Tensor& hidden, const Tensor& weight,
                                           const OptionalTensor& bias, const Tensor& target,
                                           int64_t ignore_index, double softcap, double logit_scale,
                                           double temperature, bool return_entropy,
                                           int64_t /*dweight_dtype*/, int64_t chunk_bytes,
                                           int64_t kernel) {
  auto [values, entropy, lse, dhidden, logits] = TokenLoss::CallForward(
      hidden, weight, bias, target, ignore_index, softcap, logit_scale, temperature, return_entropy,
      /*need_dhidden=*/false, /*keep_logits=*/false, chunk_bytes, kernel);
  entropy = entropy.to(values.scalar_type());
  return {std::move(values), std::move(entropy)};
}

template <c10::DeviceType kDevice, c10::DispatchKey kKey>
std::tuple<Tensor, Tensor> Autocast(const Tensor& hidden, const Tensor& weight,
                                    const OptionalTensor& bias, const Tensor& target,
                                    int64_t ignore_index, double softcap, double logit_scale,
                                    double temperature, bool return_entropy, int64_t dweight_dtype,
                                    int64_t chunk_bytes, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::fused_linear_scaled_cross_entropy", "")
                             .typed<decltype(Autograd)>();
  return TokenLoss::WithAutocast<kKey>(
      kDevice, hidden, weight, bias,
      [&](const Tensor& cast_hidden, const Tensor& cast_weight, const OptionalTensor& cast_bias) {
        return op.call(cast_hidden, cast_weight, cast_bias, target, ignore_index, softcap,
                       logit_scale, temperature, return_entropy, dweight_dtype, chunk_bytes,
                       kernel);
      });
}

TORCH_LIBRARY_FRAGMENT(fuseboard, m) {
  Define(m, {kFusedLinearScaledCrossEntropy, kFusedLinearScaledCrossEntropyForward,
             kFusedLinearScaledCrossEntropyBackward});
}
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("fused_linear_scaled_cross_entropy_forward", TokenLoss::Forward);
  m.impl("fused_linear_scaled_cross_entropy_backward", TokenLoss::Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("fused_linear_scaled_cross_entropy_forward", TokenLoss::Forward);
  m.impl("fused_linear_scaled_cross_entropy_backward", TokenLoss::Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("fused_linear_scaled_cross_entropy_forward", TokenLoss::ForwardMeta);
  m.impl("fused_linear_scaled_cross_entropy_backward", TokenLoss::BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl(kName, WithoutAutograd); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl(kName, Autograd);
  RefuseSecondDerivatives(m, {"fused_linear_scaled_cross_entropy_forward",
                              "fused_linear_scaled_cross_entropy_backward"});
}
TORCH_LIBRARY_IMPL(fuseboard, AutocastCPU, m) {
  m.impl(kName, Autocast<at::kCPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(fuseboard, AutocastCUDA, m) {
  m.impl(kName, Autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace
}  // namespace fuseboard::torch_binding
