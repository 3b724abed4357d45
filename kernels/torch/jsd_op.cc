// torch.ops.fuseboard.jsd: what it has of its own; all else is row_loss_op.h's.

#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <cmath>

#include "kernels/abi/jsd.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/row_loss_op.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;

constexpr char kJsd[] =
    "jsd(Tensor input, Tensor target, Tensor? label, float beta, "
    "int ignore_index, int reduction, int kernel) -> Tensor";
constexpr char kJsdForward[] =
    "jsd_forward(Tensor input, Tensor target, Tensor? label, float beta, "
    "int ignore_index, int reduction, bool need_dinput, int kernel) "
    "-> (Tensor loss, Tensor dinput, Tensor inverse_divisor)";
constexpr char kJsdBackward[] =
    "jsd_backward(Tensor dloss, Tensor input, Tensor target, Tensor? label, "
    "Tensor inverse_divisor, float beta, int ignore_index, int reduction, "
    "int kernel) -> Tensor dinput";

// p * (y - x) of p = e^y: 0 where p is, whatever it is multiplied by, but NaN of NaN.
Tensor Divergence(const Tensor& p, const Tensor& y, const Tensor& x) {
  return at::where(p.gt(0), y.sub(x).mul_(p), at::where(x.isnan(), x, p));
}

class JsdFunction final : public RowLossFunction {
 public:
  explicit JsdFunction(double beta) : beta_(beta) {}

  [[nodiscard]] Tensor Loss(const Tensor& input, const Tensor& target) const override {
    if (beta_ == 0) return Divergence(at::exp(target), target, input);
    if (beta_ == 1) return Divergence(at::exp(input), input, target);
    const Tensor mixture = LogMixture(input, target);
    return Divergence(at::exp(target), target, mixture)
        .mul_(beta_)
        .add_(Divergence(at::exp(input), input, mixture), 1 - beta_);
  }
  [[nodiscard]] Tensor Gradient(const Tensor& input, const Tensor& target) const override {
    if (beta_ == 0) return at::exp(target).neg_();
    const Tensor q = at::exp(input);
    if (beta_ == 1) return Divergence(q, input, target).add_(q);
    return Divergence(q, input, LogMixture(input, target)).mul_(1 - beta_);
  }

 private:
  // By log-sum-exp, as both probabilities may underflow.
  [[nodiscard]] Tensor LogMixture(const Tensor& input, const Tensor& target) const {
    return at::logaddexp(target.add(std::log(beta_)), input.add(std::log1p(-beta_)));
  }

  double beta_;
};

struct JsdOp {
  using Function = JsdFunction;
  static constexpr Operation kOperation = Operation::kJsd;
  static constexpr const char* kNodeName = "FuseboardJsdBackward";
  static constexpr const char* kForward = "jsd_forward";
  static constexpr const char* kBackward = "jsd_backward";

  static FbJsdParams ParamsOf(double beta, int64_t ignore_index) {
    return {sizeof(FbJsdParams), beta, ignore_index};
  }
  static void CheckOptions(double beta) {
    TORCH_CHECK(beta >= 0 && beta <= 1, "jsd: beta is ", beta, ", want a number in [0, 1]");
  }
  static int64_t ExamplesOf(const Tensor& input) { return RowsOf(input); }
};

using Jsd = RowLossOperator<JsdOp, double>;

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kJsd, kJsdForward, kJsdBackward}); }
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("jsd_forward", Jsd::Forward);
  m.impl("jsd_backward", Jsd::Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("jsd_forward", Jsd::Forward);
  m.impl("jsd_backward", Jsd::Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("jsd_forward", Jsd::ForwardMeta);
  m.impl("jsd_backward", Jsd::BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl("jsd", Jsd::WithoutAutograd); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl("jsd", Jsd::Autograd);
  RefuseSecondDerivatives(m, {"jsd_forward", "jsd_backward"});
}

}  // namespace
}  // namespace fuseboard::torch_binding
