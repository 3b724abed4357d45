#include "kernels/torch/jsd_function.h"

#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <cmath>

namespace fuseboard::torch_binding {

using at::Tensor;

namespace {

// p * (y - x) of p = e^y: 0 where p is, whatever it is multiplied by, but NaN of NaN.
Tensor Divergence(const Tensor& p, const Tensor& y, const Tensor& x) {
  return at::where(p.gt(0), y.sub(x).mul_(p), at::where(x.isnan(), x, p));
}

}  // namespace

Tensor JsdFunction::Loss(const Tensor& input, const Tensor& target) const {
  if (beta_ == 0) return Divergence(at::exp(target), target, input);
  if (beta_ == 1) return Divergence(at::exp(input), input, target);
  const Tensor mixture = LogMixture(input, target);
  return Divergence(at::exp(target), target, mixture)
      .mul_(beta_)
      .add_(Divergence(at::exp(input), input, mixture), 1 - beta_);
}

Tensor JsdFunction::Gradient(const Tensor& input, const Tensor& target) const {
  if (beta_ == 0) return at::exp(target).neg_();
  const Tensor q = at::exp(input);
  if (beta_ == 1) return Divergence(q, input, target).add_(q);
  return Divergence(q, input, LogMixture(input, target)).mul_(1 - beta_);
}

// By log-sum-exp, as both probabilities may underflow.
Tensor JsdFunction::LogMixture(const Tensor& input, const Tensor& target) const {
  return at::logaddexp(target.add(std::log(beta_)), input.add(std::log1p(-beta_)));
}

void CheckBeta(const char* operation, double beta) {
  TORCH_CHECK(beta >= 0 && beta <= 1, operation, ": beta is ", beta, ", want a number in [0, 1]");
}

}  // namespace fuseboard::torch_binding
