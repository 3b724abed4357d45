// torch.ops.fuseboard.geglu and geglu_packed: schemas, composite and registration.

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include "kernels/abi/geglu.h"
#include "kernels/torch/autocast_off.h"
#include "kernels/torch/gated_activation.h"
#include "kernels/torch/packed_gated_activation.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;

// out = gelu(gate) * up, kernels/abi/geglu.h. gate and up of one shape [..., cols], any strides.
// approximate_tanh: gelu by tanh; else exact, by erf. round_activation: gelu(gate) is rounded to
// its dtype before the product, as in a model's own code.
constexpr char kSchema[] =
    "geglu(Tensor gate, Tensor up, bool approximate_tanh, bool round_activation, int kernel) "
    "-> Tensor";
constexpr char kForwardSchema[] =
    "geglu_forward(Tensor gate, Tensor up, bool approximate_tanh, bool round_activation, "
    "int kernel) -> Tensor";
constexpr char kBackwardSchema[] =
    "geglu_backward(Tensor dout, Tensor gate, Tensor up, bool need_dgate, bool need_dup, "
    "bool approximate_tanh, bool round_activation, int kernel) -> (Tensor dgate, Tensor dup)";

// gate_up [..., 2 cols], any strides: gate and up are the halves of the last dimension or, if
// interleaved, its even and odd columns. No kernel takes the latter.
constexpr char kPackedSchema[] =
    "geglu_packed(Tensor gate_up, bool interleaved, bool approximate_tanh, bool round_activation, "
    "int kernel) -> Tensor";
constexpr char kPackedForwardSchema[] =
    "geglu_packed_forward(Tensor gate_up, bool interleaved, bool approximate_tanh, "
    "bool round_activation, int kernel) -> Tensor";
constexpr char kPackedBackwardSchema[] =
    "geglu_packed_backward(Tensor dout, Tensor gate_up, bool interleaved, bool approximate_tanh, "
    "bool round_activation, int kernel) -> Tensor";

struct Geglu {
  static constexpr const char* kName = "geglu";
  static constexpr const char* kNodeName = "FuseboardGegluBackward";
  static constexpr const char* kPackedName = "geglu_packed";
  static constexpr const char* kPackedNodeName = "FuseboardGegluPackedBackward";
  static constexpr Operation kOperation = Operation::kGeglu;
  // approximate_tanh, round_activation, kernel
  using Attributes = std::tuple<bool, bool, int64_t>;

  static int64_t KernelOf(const Attributes& attributes) { return std::get<2>(attributes); }

  static FbGegluParams ParamsOf(const Attributes& attributes) {
    const auto& [approximate_tanh, round_activation, kernel] = attributes;
    return {sizeof(FbGegluParams), round_activation ? 1 : 0,
            approximate_tanh ? FB_GELU_TANH : FB_GELU_EXACT};
  }

  static c10::string_view FormOf(const Attributes& attributes) {
    return std::get<0>(attributes) ? "tanh" : "none";
  }

  // With round_activation the very operators of `act_fn(gate) * up` and its autograd.
  static Tensor ForwardComposite(const Tensor& gate, const Tensor& up,
                                 const Attributes& attributes) {
    const AutocastOff autocast_off;
    if (std::get<1>(attributes)) return at::gelu(gate, FormOf(attributes)).mul(up);
    const at::ScalarType dtype = GatedOutputType(gate, up);
    const at::ScalarType accumulate = AccumulationType(dtype);
    return at::gelu(gate.to(accumulate), FormOf(attributes)).mul(up.to(accumulate)).to(dtype);
  }

  static std::tuple<Tensor, Tensor> BackwardComposite(const Tensor& dout, const Tensor& gate,
                                                      const Tensor& up, bool need_dgate,
                                                      bool need_dup, const Attributes& attributes) {
    const AutocastOff autocast_off;
    const bool round = std::get<1>(attributes);
    const at::ScalarType accumulate = AccumulationType(GatedOutputType(gate, up));
    const Tensor grad = round ? dout : dout.to(accumulate);
    const Tensor g = round ? gate : gate.to(accumulate);
    Tensor dgate;
    Tensor dup;
    if (need_dgate) {
      const Tensor dgelu = grad.mul(round ? up : up.to(accumulate)).to(g.scalar_type());
      dgate = at::gelu_backward(dgelu, g, FormOf(attributes)).to(gate.scalar_type());
    }
    if (need_dup) dup = grad.mul(at::gelu(g, FormOf(attributes))).to(up.scalar_type());
    return {std::move(dgate), std::move(dup)};
  }
};

using Operators = GatedActivation<Geglu>;
using PackedOperators = PackedGatedActivation<Geglu>;

TORCH_LIBRARY_FRAGMENT(fuseboard, m) {
  Define(m, {kSchema, kForwardSchema, kBackwardSchema});
  Define(m, {kPackedSchema, kPackedForwardSchema, kPackedBackwardSchema});
}
TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  Operators::ImplementForDevice(m);
  PackedOperators::ImplementForDevice(m);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  Operators::ImplementForDevice(m);
  PackedOperators::ImplementForDevice(m);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  Operators::ImplementMeta(m);
  PackedOperators::ImplementMeta(m);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) {
  Operators::ImplementBelowAutograd(m);
  PackedOperators::ImplementBelowAutograd(m);
}
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  Operators::ImplementAutograd(m);
  PackedOperators::ImplementAutograd(m);
}

}  // namespace
}  // namespace fuseboard::torch_binding
