#include "kernels/torch/cross_entropy_composite.h"

#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/special_entr.h>

#include <algorithm>
#include <limits>

#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"

namespace fuseboard::torch_binding {
namespace {

// Two or three temporaries of this size are alive at once, four with the gradient of an entropy.
constexpr int64_t kBlockBytes = int64_t{24} << 20;

// A block of rows in the accumulation type; names as in kernels/abi/cross_entropy.h.
class Block {
 public:
  Block(const CrossEntropyRows& rows, const CrossEntropyOptions& options, bool lse_is_known)
      : rows_(rows), options_(options), vocab_(rows.logits.size(1)) {
    target_ = rows.target.to(at::kLong);
    ignored_ = target_.eq(options.ignore_index);
    // On the CPU targets were checked before; here a wrong one makes its row NaN.
    wrong_ = target_.lt(0).logical_or_(target_.ge(vocab_)).logical_and_(ignored_.logical_not());
    column_ = target_.clamp(0, vocab_ - 1).unsqueeze(1);
    z_ = rows.logits.to(AccumulationType(rows.logits.scalar_type()), /*non_blocking=*/false,
                        /*copy=*/true);
    if (options.logit_scale != 1) z_.mul_(options.logit_scale);
    if (options.softcap > 0) z_.div_(options.softcap).tanh_().mul_(options.softcap);
    lse_ = lse_is_known ? rows.lse.to(z_.scalar_type()) : at::logsumexp(z_, 1);
    if (rows.class_weight.defined()) target_weight_ = rows.class_weight.take(column_.squeeze(1));
  }

  void WriteForward() {
    if (rows_.lse.defined()) rows_.lse.copy_(lse_);
    if (rows_.entropy.defined()) WriteEntropy();
    const at::Tensor z_loss = lse_.square().mul_(options_.z_loss_scale).masked_fill_(ignored_, 0);
    if (rows_.z_loss.defined()) rows_.z_loss.copy_(Poison(z_loss.clone()));
    if (!rows_.loss.defined()) return;
    at::Tensor loss = lse_.sub(z_.gather(1, column_).squeeze(1));
    if (target_weight_.defined()) loss.mul_(target_weight_);
    if (options_.label_smoothing > 0) {
      loss.mul_(1 - options_.label_smoothing).add_(SmoothingLoss());
    }
    loss.masked_fill_(ignored_, 0);
    if (options_.z_loss_in_loss && options_.z_loss_scale > 0) loss.add_(z_loss);
    rows_.loss.copy_(Poison(loss));
  }

  // Overwrites z_.
  void WriteGradient() {
    const at::Tensor of_entropy = EntropyGradient();
    at::Tensor cap_slope;
    if (options_.softcap > 0) cap_slope = z_.div(options_.softcap).square_().neg_().add_(1);
    at::Tensor gradient = z_.sub_(lse_.unsqueeze(1)).exp_().mul_(ProbabilityFactor().unsqueeze(1));
    if (options_.label_smoothing > 0) {
      const double share = options_.label_smoothing / static_cast<double>(vocab_);
      if (rows_.class_weight.defined()) {
        gradient.sub_(rows_.class_weight, share);
      } else {
        gradient.sub_(share);
      }
    }
    gradient.scatter_add_(1, column_,
                          TargetWeight().mul(options_.label_smoothing - 1).unsqueeze(1));
    if (rows_.scale.defined()) gradient.mul_(rows_.scale.unsqueeze(1));
    if (of_entropy.defined()) gradient.add_(of_entropy);
    if (cap_slope.defined()) gradient.mul_(cap_slope);
    if (options_.logit_scale != 1) gradient.mul_(options_.logit_scale);
    gradient.masked_fill_(ignored_.unsqueeze(1), 0);
    rows_.dlogits.copy_(
        gradient.masked_fill_(wrong_.unsqueeze(1), std::numeric_limits<double>::quiet_NaN()));
  }

 private:
  [[nodiscard]] at::Tensor Poison(const at::Tensor& row_values) const {
    return row_values.masked_fill_(wrong_, std::numeric_limits<double>::quiet_NaN());
  }

  // -sum p log p, with 0 log 0 = 0: a class of logit -inf adds nothing.
  void WriteEntropy() {
    const at::Tensor p = z_.sub(lse_.unsqueeze(1)).exp_();
    rows_.entropy.copy_(Poison(at::special_entr(p).sum(1).masked_fill_(ignored_, 0)));
  }

  // d entropy / d z = -p (log p + entropy), times its upstream gradient; undefined if there is
  // none.
  [[nodiscard]] at::Tensor EntropyGradient() const {
    if (!rows_.dentropy.defined()) return {};
    at::Tensor surprise = z_.sub(lse_.unsqueeze(1));
    const at::Tensor p = surprise.exp();
    surprise.add_(rows_.entropy.to(z_.scalar_type()).unsqueeze(1)).masked_fill_(p.eq(0), 0);
    return surprise.mul_(p).mul_(rows_.dentropy.neg().unsqueeze(1));
  }

  [[nodiscard]] at::Tensor TargetWeight() const {
    return target_weight_.defined() ? target_weight_ : at::ones_like(lse_);
  }

  // (s / vocab) * sum_c w_c * (lse - z_c)
  [[nodiscard]] at::Tensor SmoothingLoss() const {
    const double share = options_.label_smoothing / static_cast<double>(vocab_);
    if (!rows_.class_weight.defined()) {
      return lse_.mul(static_cast<double>(vocab_)).sub_(z_.sum(1)).mul_(share);
    }
    return lse_.mul(rows_.class_weight.sum()).sub_(at::mv(z_, rows_.class_weight)).mul_(share);
  }

  // What multiplies the probabilities in the gradient.
  [[nodiscard]] at::Tensor ProbabilityFactor() const {
    at::Tensor factor = TargetWeight().mul(1 - options_.label_smoothing);
    if (options_.label_smoothing > 0) {
      if (rows_.class_weight.defined()) {
        factor.add_(rows_.class_weight.sum(),
                    options_.label_smoothing / static_cast<double>(vocab_));
      } else {
        factor.add_(options_.label_smoothing);
      }
    }
    if (options_.z_loss_in_loss && options_.z_loss_scale > 0) {
      factor.add_(lse_, 2 * options_.z_loss_scale);
    }
    return factor;
  }

  const CrossEntropyRows& rows_;
  const CrossEntropyOptions& options_;
  int64_t vocab_;
  at::Tensor target_;
  at::Tensor ignored_;
  at::Tensor wrong_;
  at::Tensor column_;
  at::Tensor z_;
  at::Tensor lse_;
  at::Tensor target_weight_;
};

}  // namespace

void CrossEntropyComposite(const CrossEntropyRows& rows, const CrossEntropyOptions& options,
                           bool lse_is_known) {
  const AutocastOff autocast_off;
  const int64_t num_rows = rows.logits.size(0);
  const int64_t row_bytes =
      std::max<int64_t>(1, rows.logits.size(1)) *
      static_cast<int64_t>(c10::elementSize(AccumulationType(rows.logits.scalar_type())));
  const int64_t block_rows = std::max<int64_t>(1, kBlockBytes / row_bytes);
  for (int64_t begin = 0; begin < num_rows; begin += block_rows) {
    const CrossEntropyRows slice = Slice(rows, begin, std::min(block_rows, num_rows - begin));
    Block block(slice, options, lse_is_known);
    if (!lse_is_known) block.WriteForward();
    if (slice.dlogits.defined()) block.WriteGradient();
  }
}

}  // namespace fuseboard::torch_binding
