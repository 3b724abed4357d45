// torch.ops.fuseboard.jsd: what it has of its own; all else is row_loss_op.h's.

#include <torch/library.h>

#include "kernels/abi/jsd.h"
#include "kernels/torch/jsd_function.h"
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

struct JsdOp {
  using Function = JsdFunction;
  static constexpr Operation kOperation = Operation::kJsd;
  static constexpr const char* kNodeName = "FuseboardJsdBackward";
  static constexpr const char* kForward = "jsd_forward";
  static constexpr const char* kBackward = "jsd_backward";

  static FbJsdParams ParamsOf(double beta, int64_t ignore_index) {
    return {sizeof(FbJsdParams), beta, ignore_index, /*temperature=*/0.0};
  }
  static void CheckOptions(double beta) { CheckBeta("jsd", beta); }
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
