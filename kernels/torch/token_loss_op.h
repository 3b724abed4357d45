// The operators of selected_log_probs and fused_linear_scaled_cross_entropy, which differ in a sign
// and in whether there is an entropy:
//
//   x_forward(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, int ignore_index,
//     float softcap, float logit_scale, float temperature, bool need_entropy, bool need_dhidden,
//     bool keep_logits, int chunk_bytes, int kernel)
//     -> (Tensor values, Tensor entropy, Tensor lse, Tensor dhidden, Tensor logits)
//   x_backward(Tensor? dvalues, Tensor? dentropy, Tensor hidden, Tensor weight, Tensor? bias,
//     Tensor target, Tensor lse, Tensor? entropy, Tensor? logits, int ignore_index, float softcap,
//     float logit_scale, float temperature, int dweight_dtype, int chunk_bytes, bool need_dhidden,
//     bool need_dweight, bool need_dbias, int kernel)
//     -> (Tensor dhidden, Tensor dweight, Tensor dbias)
//
// The forward keeps the log-sum-exp of each row (and its entropy), f64 beside f32 logits, of which
// the operators return what they return in f32; the backward makes the logits
// again, as each row has an upstream gradient of its own. But for a head that wants no gradient:
// dhidden of a row is linear in that number, so the forward makes it and the backward scales it, at
// two matrix products in all instead of three. Not with an entropy, whose gradient is another
// product; nor in f16, where probabilities underflow unless the upstream gradient is known.
//
// Of the logits that the backward needs, the forward keeps its last chunk, in the buffer that it
// has anyway: `logits`, which the backward overwrites. Not for a tracer, to whom its shape is not
// known.

#ifndef KERNELS_TORCH_TOKEN_LOSS_OP_H_
#define KERNELS_TORCH_TOKEN_LOSS_OP_H_

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/torch/checks.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/saved_node.h"
#include "kernels/torch/scaled_gradients_node.h"
#include "kernels/torch/token_loss.h"

namespace fuseboard::torch_binding {

template <typename Op>
class TokenLossNode;
template <typename Op>
class TokenLossScaleNode;

// `Op` has what the operation has of its own:
//   kOperation
//   kSign                  -1: values are log-probabilities
//   kNodeName              what a profile and grad_fn show
//   kForward, kBackward    the operators' names
template <typename Op>
class TokenLossOperator {
  using Tensor = at::Tensor;
  using OptionalTensor = std::optional<at::Tensor>;

 public:
  static TokenLossResult Forward(const Tensor& hidden, const Tensor& weight,
                                 const OptionalTensor& bias, const Tensor& target,
                                 int64_t ignore_index, double softcap, double logit_scale,
                                 double temperature, bool need_entropy, bool need_dhidden,
                                 bool keep_logits, int64_t chunk_bytes, int64_t kernel) {
    const LinearHead head = ForwardHead(hidden, weight, bias, need_dhidden, chunk_bytes);
    LinearLossInputs inputs =
        TokenLossInputs(Op::kOperation, head, target,
                        {ignore_index, softcap, logit_scale, temperature}, need_entropy, kernel);
    inputs.keep_logits = keep_logits;
    return TokenLossForward(inputs, Op::kSign);
  }

  static TokenLossResult ForwardMeta(const Tensor& hidden, const Tensor& weight,
                                     const OptionalTensor& bias, const Tensor& target,
                                     int64_t ignore_index, double softcap, double logit_scale,
                                     double temperature, bool need_entropy, bool need_dhidden,
                                     bool /*keep_logits*/, int64_t chunk_bytes, int64_t kernel) {
    const LinearHead head = ForwardHead(hidden, weight, bias, need_dhidden, chunk_bytes);
    return TokenLossForwardMeta(TokenLossInputs(Op::kOperation, head, target,
                                                {ignore_index, softcap, logit_scale, temperature},
                                                need_entropy, kernel));
  }

  static LinearHeadResult Backward(const OptionalTensor& dvalues, const OptionalTensor& dentropy,
                                   const Tensor& hidden, const Tensor& weight,
                                   const OptionalTensor& bias, const Tensor& target,
                                   const Tensor& lse, const OptionalTensor& entropy,
                                   const OptionalTensor& logits, int64_t ignore_index,
                                   double softcap, double logit_scale, double temperature,
                                   int64_t dweight_dtype, int64_t chunk_bytes, bool need_dhidden,
                                   bool need_dweight, bool need_dbias, int64_t kernel) {
    const LinearHead head{hidden,      weight,       ValueOrUndefined(bias), dweight_dtype,
                          chunk_bytes, need_dhidden, need_dweight,           need_dbias};
    return TokenLossBackward(TokenLossInputs(Op::kOperation, head, target,
                                             {ignore_index, softcap, logit_scale, temperature},
                                             /*need_entropy=*/false, kernel),
                             Op::kSign, dvalues, dentropy, lse, entropy, logits);
  }

  static LinearHeadResult BackwardMeta(
      const OptionalTensor& /*dvalues*/, const OptionalTensor& /*dentropy*/, const Tensor& hidden,
      const Tensor& weight, const OptionalTensor& bias, const Tensor& /*target*/,
      const Tensor& /*lse*/, const OptionalTensor& /*entropy*/, const OptionalTensor& /*logits*/,
      int64_t /*ignore_index*/, double /*softcap*/, double /*logit_scale*/, double /*temperature*/,
      int64_t /*dweight_dtype*/, int64_t /*chunk_bytes*/, bool need_dhidden, bool need_dweight,
      bool need_dbias, int64_t /*kernel*/) {
    return MetaResult({.hidden = hidden,
                       .weight = weight,
                       .bias = ValueOrUndefined(bias),
                       .need_dhidden = need_dhidden,
                       .need_dweight = need_dweight,
                       .need_dbias = need_dbias});
  }

  static TokenLossResult CallForward(const Tensor& hidden, const Tensor& weight,
                                     const OptionalTensor& bias, const Tensor& target,
                                     int64_t ignore_index, double softcap, double logit_scale,
                                     double temperature, bool need_entropy, bool need_dhidden,
                                     bool keep_logits, int64_t chunk_bytes, int64_t kernel) {
    static const auto op = Find(Op::kForward).template typed<decltype(Forward)>();
    return op.call(hidden, weight, bias, target, ignore_index, softcap, logit_scale, temperature,
                   need_entropy, need_dhidden, keep_logits, chunk_bytes, kernel);
  }

  template <typename... Arguments>
  static LinearHeadResult CallBackward(const Arguments&... arguments) {
    static const auto op = Find(Op::kBackward).template typed<decltype(Backward)>();
    return op.call(arguments...);
  }

  // values and entropy, functions of hidden, weight and bias.
  static std::tuple<Tensor, Tensor> Autograd(const Tensor& hidden, const Tensor& weight,
                                             const OptionalTensor& bias, const Tensor& target,
                                             int64_t ignore_index, double softcap,
                                             double logit_scale, double temperature,
                                             bool need_entropy, int64_t dweight_dtype,
                                             int64_t chunk_bytes, int64_t kernel) {
    for (const Tensor& input : {hidden, weight, ValueOrUndefined(bias)}) {
      CheckNoForwardGradient(NameOf(Op::kOperation), input);
    }
    CheckLinearHead(NameOf(Op::kOperation),
                    {hidden, weight, ValueOrUndefined(bias), dweight_dtype, chunk_bytes});
    const bool needs_gradient = torch::autograd::compute_requires_grad(hidden, weight, bias);
    const bool in_forward = needs_gradient && !need_entropy && hidden.scalar_type() != at::kHalf &&
                            !torch::autograd::compute_requires_grad(weight, bias);
    const bool keep_logits = needs_gradient && !in_forward && !IsTraced(hidden) &&
                             KeepsLastChunk({.hidden = hidden,
                                             .weight = weight,
                                             .bias = ValueOrUndefined(bias),
                                             .dweight_dtype = dweight_dtype,
                                             .chunk_bytes = chunk_bytes,
                                             .need_dweight = weight.requires_grad()});
    auto [values, exact_entropy, lse, dhidden, logits] = [&] {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      return CallForward(hidden, weight, bias, target, ignore_index, softcap, logit_scale,
                         temperature, need_entropy, in_forward, keep_logits, chunk_bytes, kernel);
    }();
    Tensor entropy = exact_entropy.to(values.scalar_type());
    if (in_forward) {
      const auto node = NewNode<TokenLossScaleNode<Op>>(hidden);
      node->SetAttributes({ignore_index});
      node->Save(0, dhidden);
      node->Save(1, target);
      torch::autograd::set_history(values, node);
    } else if (needs_gradient) {
      const auto node = NewNode<TokenLossNode<Op>>(hidden, weight, bias);
      node->SetAttributes(
          {ignore_index, softcap, logit_scale, temperature, dweight_dtype, chunk_bytes, kernel});
      node->Save(0, hidden);
      node->Save(1, weight);
      node->Save(2, bias);
      node->Save(3, target);
      node->Save(4, lse);
      if (keep_logits) node->Save(6, logits);
      torch::autograd::set_history(values, node);
      if (need_entropy) {
        torch::autograd::set_history(entropy, node);
        if (entropy.is_same(exact_entropy)) {
          node->SaveOutput(5, entropy);
        } else {
          node->Save(5, exact_entropy);
        }
      }
    }
    return {std::move(values), std::move(entropy)};
  }

  // Casts what F.linear casts; autograd casts the gradients back. The values are fp32 anyway.
  // `call` is called with hidden, weight and bias.
  template <c10::DispatchKey kKey, typename Fn>
  static auto WithAutocast(c10::DeviceType device, const Tensor& hidden, const Tensor& weight,
                           const OptionalTensor& bias, Fn call) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
    const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
    return call(at::autocast::cached_cast(dtype, hidden, device),
                at::autocast::cached_cast(dtype, weight, device),
                at::autocast::cached_cast(dtype, bias, device));
  }

 private:
  static LinearHead ForwardHead(const Tensor& hidden, const Tensor& weight,
                                const OptionalTensor& bias, bool need_dhidden,
                                int64_t chunk_bytes) {
    return {.hidden = hidden,
            .weight = weight,
            .bias = ValueOrUndefined(bias),
            .chunk_bytes = chunk_bytes,
            .need_dhidden = need_dhidden};
  }

  static c10::OperatorHandle Find(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(
        (std::string("fuseboard::") + name).c_str(), "");
  }
};

// The forward made dhidden of each row: only multiply it by the row's upstream gradient.
template <typename Op>
class TokenLossScaleNode final
    : public SavedNode<TokenLossScaleNode<Op>, 2, 1, std::tuple<int64_t>> {
  using Base = SavedNode<TokenLossScaleNode<Op>, 2, 1, std::tuple<int64_t>>;

 public:
  using variable_list = torch::autograd::variable_list;
  using Inputs = typename Base::Inputs;

  std::string name() const override { return Op::kNodeName; }

  static variable_list Compute(const Inputs& inputs) {
    if (!inputs.needs[0]) return variable_list(1);
    const auto& [dhidden, target] = inputs.saved;
    const auto& [ignore_index] = inputs.attributes;
    const c10::AutoGradMode no_grad(false);
    // Ignored rows have a gradient of 0, whatever their upstream gradient is.
    at::Tensor scale = inputs.grad.masked_fill(target.eq(ignore_index), 0);
    if (Op::kSign < 0) scale = scale.neg();
    return {dhidden.mul(scale.unsqueeze(1)).to(dhidden.scalar_type())};
  }

  variable_list apply(variable_list&& grads) override {
    variable_list result = Base::apply(std::move(grads));
    if (c10::GradMode::is_enabled()) RefuseSecondDerivative(Op::kBackward, *this, result);
    return result;
  }
};

template <typename Op>
class TokenLossNode final
    : public SavedNode<TokenLossNode<Op>, 7, 3,
                       std::tuple<int64_t, double, double, double, int64_t, int64_t, int64_t>> {
 public:
  using variable_list = torch::autograd::variable_list;
  using Inputs =
      BackwardInputs<7, 3, std::tuple<int64_t, double, double, double, int64_t, int64_t, int64_t>>;

  std::string name() const override { return Op::kNodeName; }

  static variable_list Compute(const Inputs& inputs) {
    using OptionalTensor = std::optional<at::Tensor>;
    const auto& [hidden, weight, bias, target, lse, entropy, kept] = inputs.saved;
    const auto& [need_dhidden, need_dweight, need_dbias] = inputs.needs;
    const auto& [ignore_index, softcap, logit_scale, temperature, dweight_dtype, chunk_bytes,
                 kernel] = inputs.attributes;
    // Another backward through this graph would find dlogits in their place.
    const OptionalTensor logits = inputs.may_overwrite_saved ? OptionalOf(kept) : std::nullopt;
    const OptionalTensor dentropy =
        inputs.grads.size() > 1 ? OptionalOf(inputs.grads[1]) : std::nullopt;
    auto [dhidden, dweight, dbias] = TokenLossOperator<Op>::CallBackward(
        OptionalOf(inputs.grads[0]), dentropy, hidden, weight, OptionalOf(bias), target, lse,
        OptionalOf(entropy), logits, ignore_index, softcap, logit_scale, temperature, dweight_dtype,
        chunk_bytes, need_dhidden, need_dweight, need_dbias, kernel);
    return {need_dhidden ? std::move(dhidden) : at::Tensor(),
            need_dweight ? std::move(dweight) : at::Tensor(),
            need_dbias ? std::move(dbias) : at::Tensor()};
  }
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_TOKEN_LOSS_OP_H_
