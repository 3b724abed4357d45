// torch.ops.fuseboard.swiglu and swiglu_packed: schemas, composite and registration.

#include <ATen/ops/clamp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "kernels/abi/swiglu.h"
#include "kernels/torch/autocast_off.h"
#include "kernels/torch/gated_activation.h"
#include "kernels/torch/packed_gated_activation.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;

// out = silu(gate) * up, and with options what kernels/abi/swiglu.h says. gate and up of one shape
// [..., cols], any strides. round_activation: the activation is rounded to its dtype before the
// product, as in a model's own code.
constexpr char kSchema[] =
    "swiglu(Tensor gate, Tensor up, "
    "bool round_activation, int kernel, float gate_multiplier=1.0, float out_multiplier=1.0, "
    "float alpha=1.0, float limit=0.0, float up_offset=0.0) -> Tensor";
constexpr char kForwardSchema[] =
    "swiglu_forward(Tensor gate, Tensor up, "
    "bool round_activation, int kernel, float gate_multiplier=1.0, float out_multiplier=1.0, "
    "float alpha=1.0, float limit=0.0, float up_offset=0.0) -> Tensor";
constexpr char kBackwardSchema[] =
    "swiglu_backward(Tensor dout, Tensor gate, Tensor up, bool need_dgate, bool need_dup, "
    "bool round_activation, int kernel, float gate_multiplier=1.0, float out_multiplier=1.0, "
    "float alpha=1.0, float limit=0.0, float up_offset=0.0) -> (Tensor dgate, Tensor dup)";

// gate_up [..., 2 cols], any strides: gate and up are the halves of the last dimension or, if
// interleaved, its even and odd columns.
constexpr char kPackedSchema[] =
    "swiglu_packed(Tensor gate_up, bool interleaved, "
    "bool round_activation, int kernel, float gate_multiplier=1.0, float out_multiplier=1.0, "
    "float alpha=1.0, float limit=0.0, float up_offset=0.0) -> Tensor";
constexpr char kPackedForwardSchema[] =
    "swiglu_packed_forward(Tensor gate_up, bool interleaved, "
    "bool round_activation, int kernel, float gate_multiplier=1.0, float out_multiplier=1.0, "
    "float alpha=1.0, float limit=0.0, float up_offset=0.0) -> Tensor";
constexpr char kPackedBackwardSchema[] =
    "swiglu_packed_backward(Tensor dout, Tensor gate_up, bool interleaved, "
    "bool round_activation, int kernel, float gate_multiplier=1.0, float out_multiplier=1.0, "
    "float alpha=1.0, float limit=0.0, float up_offset=0.0) -> Tensor";

// What is multiplied, and on the way there what its derivative needs. The very operators of the
// models' own code; an option at its default costs none.
struct Terms {
  Terms(const Tensor& gate, const Tensor& up, const FbSwigluParams& p)
      : unlimited_gate(p.gate_multiplier != 1.0 ? gate.mul(p.gate_multiplier) : gate),
        gate(p.limit > 0.0 ? at::clamp(unlimited_gate, std::nullopt, p.limit) : unlimited_gate),
        up(p.limit > 0.0 ? at::clamp(up, -p.limit, p.limit) : up) {
    if (p.up_offset != 0.0) this->up = this->up.add(p.up_offset);
    if (p.alpha == 1.0) {
      activation = at::silu(this->gate);
    } else {
      sigmoid = at::sigmoid(this->gate.mul(p.alpha));
      activation = this->gate.mul(sigmoid);
    }
  }

  // The gradient of `gate` for one of `activation`.
  Tensor DGate(const Tensor& dactivation, const FbSwigluParams& p) const {
    if (p.alpha == 1.0) return at::silu_backward(dactivation, gate);
    const Tensor through_sigmoid = at::sigmoid_backward(dactivation.mul(gate), sigmoid);
    return dactivation.mul(sigmoid).add(through_sigmoid.mul(p.alpha));
  }

  Tensor unlimited_gate;
  Tensor gate;
  Tensor up;
  Tensor sigmoid;  // Undefined if alpha is 1.
  Tensor activation;
};

struct Swiglu {
  static constexpr const char* kName = "swiglu";
  static constexpr const char* kNodeName = "FuseboardSwigluBackward";
  static constexpr const char* kPackedName = "swiglu_packed";
  static constexpr const char* kPackedNodeName = "FuseboardSwigluPackedBackward";
  static constexpr Operation kOperation = Operation::kSwiglu;
  // round_activation, kernel, gate_multiplier, out_multiplier, alpha, limit, up_offset
  using Attributes = std::tuple<bool, int64_t, double, double, double, double, double>;

  static int64_t KernelOf(const Attributes& attributes) { return std::get<1>(attributes); }

  static FbSwigluParams ParamsOf(const Attributes& attributes) {
    const auto& [round_activation, kernel, gate_multiplier, out_multiplier, alpha, limit,
                 up_offset] = attributes;
    TORCH_CHECK(limit >= 0.0 && std::isfinite(limit), kName, ": limit is ", limit,
                ", want a finite number, at least 0 (none)");
    return {sizeof(FbSwigluParams),
            round_activation ? 1 : 0,
            gate_multiplier,
            out_multiplier,
            alpha,
            limit,
            up_offset};
  }

  // With round_activation in the dtypes of gate and up, else all in f32 or f64.
  static Tensor ForwardComposite(const Tensor& gate, const Tensor& up,
                                 const Attributes& attributes) {
    const AutocastOff autocast_off;
    const FbSwigluParams p = ParamsOf(attributes);
    const bool round = p.round_activation != 0;
    const at::ScalarType dtype = GatedOutputType(gate, up);
    const at::ScalarType accumulate = AccumulationType(dtype);
    const Terms terms(round ? gate : gate.to(accumulate), round ? up : up.to(accumulate), p);
    Tensor out = terms.activation.mul(terms.up);
    if (p.out_multiplier != 1.0) out = out.mul(p.out_multiplier);
    return out.to(dtype);
  }

  static std::tuple<Tensor, Tensor> BackwardComposite(const Tensor& dout, const Tensor& gate,
                                                      const Tensor& up, bool need_dgate,
                                                      bool need_dup, const Attributes& attributes) {
    const AutocastOff autocast_off;
    const FbSwigluParams p = ParamsOf(attributes);
    const bool round = p.round_activation != 0;
    const at::ScalarType accumulate = AccumulationType(GatedOutputType(gate, up));
    const Tensor u = round ? up : up.to(accumulate);
    const Terms terms(round ? gate : gate.to(accumulate), u, p);
    Tensor grad = round ? dout : dout.to(accumulate);
    if (p.out_multiplier != 1.0) grad = grad.mul(p.out_multiplier);
    Tensor dgate;
    Tensor dup;
    if (need_dgate) {
      dgate = terms.DGate(grad.mul(terms.up).to(terms.gate.scalar_type()), p);
      if (p.limit > 0.0) dgate = at::where(terms.unlimited_gate.le(p.limit), dgate, 0.0);
      if (p.gate_multiplier != 1.0) dgate = dgate.mul(p.gate_multiplier);
      dgate = dgate.to(gate.scalar_type());
    }
    if (need_dup) {
      dup = grad.mul(terms.activation).to(u.scalar_type());
      if (p.limit > 0.0) {
        dup = at::where(u.ge(-p.limit).logical_and_(u.le(p.limit)), dup, 0.0);
      }
      dup = dup.to(up.scalar_type());
    }
    return {std::move(dgate), std::move(dup)};
  }
};

using Operators = GatedActivation<Swiglu>;
using PackedOperators = PackedGatedActivation<Swiglu>;

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
