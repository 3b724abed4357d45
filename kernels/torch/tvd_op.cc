// torch.ops.fuseboard.tvd: what it has of its own; all else is row_loss_op.h's.

#include <torch/library.h>

#include "kernels/abi/tvd.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/row_loss_op.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;

constexpr char kTvd[] =
    "tvd(Tensor input, Tensor target, Tensor? label, "
    "int ignore_index, int reduction, int kernel) -> Tensor";
constexpr char kTvdForward[] =
    "tvd_forward(Tensor input, Tensor target, Tensor? label, "
    "int ignore_index, int reduction, bool need_dinput, int kernel) "
    "-> (Tensor loss, Tensor dinput, Tensor inverse_divisor)";
constexpr char kTvdBackward[] =
    "tvd_backward(Tensor dloss, Tensor input, Tensor target, Tensor? label, "
    "Tensor inverse_divisor, int ignore_index, int reduction, "
    "int kernel) -> Tensor dinput";

class TvdFunction final : public RowLossFunction {
 public:
  [[nodiscard]] Tensor Loss(const Tensor& input, const Tensor& target) const override {
    return input.sub(target).abs_().mul_(0.5);
  }
  [[nodiscard]] Tensor Gradient(const Tensor& input, const Tensor& target) const override {
    return input.sub(target).sign_().mul_(0.5);
  }
};

struct TvdOp {
  using Function = TvdFunction;
  static constexpr Operation kOperation = Operation::kTvd;
  static constexpr const char* kNodeName = "FuseboardTvdBackward";
  static constexpr const char* kForward = "tvd_forward";
  static constexpr const char* kBackward = "tvd_backward";

  static FbTvdParams ParamsOf(int64_t ignore_index) { return {sizeof(FbTvdParams), ignore_index}; }
  static void CheckOptions() {}
  static int64_t ExamplesOf(const Tensor& input) { return RowsOf(input); }
};

using Tvd = RowLossOperator<TvdOp>;

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kTvd, kTvdForward, kTvdBackward}); }
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("tvd_forward", Tvd::Forward);
  m.impl("tvd_backward", Tvd::Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("tvd_forward", Tvd::Forward);
  m.impl("tvd_backward", Tvd::Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("tvd_forward", Tvd::ForwardMeta);
  m.impl("tvd_backward", Tvd::BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl("tvd", Tvd::WithoutAutograd); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl("tvd", Tvd::Autograd);
  RefuseSecondDerivatives(m, {"tvd_forward", "tvd_backward"});
}

}  // namespace
}  // namespace fuseboard::torch_binding
