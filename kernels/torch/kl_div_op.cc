// torch.ops.fuseboard.kl_div: what it has of its own; all else is row_loss_op.h's.

#include <ATen/ops/exp.h>
#include <ATen/ops/xlogy.h>
#include <torch/library.h>

#include "kernels/abi/kl_div.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/row_loss_op.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;

constexpr char kKlDiv[] =
    "kl_div(Tensor input, Tensor target, Tensor? label, bool log_target, float eps, "
    "int ignore_index, int reduction, int kernel) -> Tensor";
constexpr char kKlDivForward[] =
    "kl_div_forward(Tensor input, Tensor target, Tensor? label, bool log_target, float eps, "
    "int ignore_index, int reduction, bool need_dinput, int kernel) "
    "-> (Tensor loss, Tensor dinput, Tensor inverse_divisor)";
constexpr char kKlDivBackward[] =
    "kl_div_backward(Tensor dloss, Tensor input, Tensor target, Tensor? label, "
    "Tensor inverse_divisor, bool log_target, float eps, int ignore_index, int reduction, "
    "int kernel) -> Tensor dinput";

class KlDivFunction final : public RowLossFunction {
 public:
  KlDivFunction(bool log_target, double eps) : log_target_(log_target), eps_(eps) {}

  [[nodiscard]] Tensor Loss(const Tensor& input, const Tensor& target) const override {
    if (log_target_) return at::exp(target).mul_(target.sub(input));
    const Tensor least = eps_ > 0 ? target.clamp_min(eps_) : target;
    return at::xlogy(target, least).sub_(target.mul(input));
  }
  [[nodiscard]] Tensor Gradient(const Tensor& /*input*/, const Tensor& target) const override {
    return log_target_ ? at::exp(target).neg_() : target.neg();
  }

 private:
  bool log_target_;
  double eps_;
};

struct KlDivOp {
  using Function = KlDivFunction;
  static constexpr Operation kOperation = Operation::kKlDiv;
  static constexpr const char* kNodeName = "FuseboardKlDivBackward";
  static constexpr const char* kForward = "kl_div_forward";
  static constexpr const char* kBackward = "kl_div_backward";

  static FbKlDivParams ParamsOf(bool log_target, double eps, int64_t ignore_index) {
    return {sizeof(FbKlDivParams), log_target ? 1 : 0, eps, ignore_index};
  }
  static void CheckOptions(bool /*log_target*/, double eps) {
    TORCH_CHECK(eps >= 0, "kl_div: eps is ", eps, ", want 0 or more");
  }
  // As in F.kl_div.
  static int64_t ExamplesOf(const Tensor& input) { return input.size(0); }
};

using KlDiv = RowLossOperator<KlDivOp, bool, double>;

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kKlDiv, kKlDivForward, kKlDivBackward}); }
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("kl_div_forward", KlDiv::Forward);
  m.impl("kl_div_backward", KlDiv::Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("kl_div_forward", KlDiv::Forward);
  m.impl("kl_div_backward", KlDiv::Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("kl_div_forward", KlDiv::ForwardMeta);
  m.impl("kl_div_backward", KlDiv::BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) {
  m.impl("kl_div", KlDiv::WithoutAutograd);
}
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl("kl_div", KlDiv::Autograd);
  RefuseSecondDerivatives(m, {"kl_div_forward", "kl_div_backward"});
}

}  // namespace
}  // namespace fuseboard::torch_binding
