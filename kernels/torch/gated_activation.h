// The operators of a gated activation, out = act(gate) * up, whose activation, composite and
// parameters are an `Op`:
//
//   struct Geglu {
//     static constexpr const char* kName = "geglu";
//     static constexpr const char* kNodeName = "FuseboardGegluBackward";
//     static constexpr Operation kOperation = Operation::kGeglu;
//     using Attributes = std::tuple<...>;  // The arguments after the tensors, in order.
//     static int64_t KernelOf(const Attributes&);
//     static FbGegluParams ParamsOf(const Attributes&);  // Throws for a value out of range.
//     static Tensor ForwardComposite(const Tensor& gate, const Tensor& up, const Attributes&);
//     static std::tuple<Tensor, Tensor> BackwardComposite(  // What is not needed is undefined.
//         const Tensor& dout, const Tensor& gate, const Tensor& up, bool need_dgate, bool need_dup,
//         const Attributes&);
//   };
//
// with the schemas (registration.h), [...] standing for the attributes:
//
//   geglu(Tensor gate, Tensor up, [...]) -> Tensor
//   geglu_forward(Tensor gate, Tensor up, [...]) -> Tensor
//   geglu_backward(Tensor dout, Tensor gate, Tensor up, bool need_dgate, bool need_dup, [...])
//     -> (Tensor dgate, Tensor dup)
//
// gate and up have one shape [..., cols] and any strides. They may differ in dtype where a model's
// own code promotes; no kernel takes that.

#ifndef KERNELS_TORCH_GATED_ACTIVATION_H_
#define KERNELS_TORCH_GATED_ACTIVATION_H_

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <utility>

#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/saved_node.h"

namespace fuseboard::torch_binding {

inline at::ScalarType GatedOutputType(const at::Tensor& gate, const at::Tensor& up) {
  return at::promoteTypes(gate.scalar_type(), up.scalar_type());
}

template <typename Op, typename Attributes = typename Op::Attributes>
class GatedActivation;

template <typename Op, typename... As>
class GatedActivation<Op, std::tuple<As...>> {
 public:
  using Tensor = at::Tensor;
  using TensorPair = std::tuple<Tensor, Tensor>;
  using Attributes = std::tuple<As...>;

  static void ImplementForDevice(torch::Library& m) {
    m.impl(ForwardName().c_str(), Forward);
    m.impl(BackwardName().c_str(), Backward);
  }

  static void ImplementMeta(torch::Library& m) {
    m.impl(ForwardName().c_str(), ForwardMeta);
    m.impl(BackwardName().c_str(), BackwardMeta);
  }

  static void ImplementBelowAutograd(torch::Library& m) { m.impl(Op::kName, CallForward); }

  static void ImplementAutograd(torch::Library& m) {
    m.impl(Op::kName, Autograd);
    RefuseSecondDerivatives(m, {ForwardName().c_str(), BackwardName().c_str()});
  }

 private:
  static std::string ForwardName() { return std::string(Op::kName) + "_forward"; }
  static std::string BackwardName() { return std::string(Op::kName) + "_backward"; }

  static void Check(const Tensor& gate, const Tensor& up) {
    CheckFloating(Op::kName, "gate", gate);
    CheckFloating(Op::kName, "up", up);
    TORCH_CHECK(gate.dim() >= 1, Op::kName, ": gate has 0 dimensions, want at least 1");
    TORCH_CHECK(gate.dim() == up.dim(), Op::kName, ": gate has ", gate.dim(),
                " dimensions but up has ", up.dim());
    for (int64_t i = 0; i < gate.dim(); ++i) {
      TORCH_SYM_CHECK(gate.sym_size(i).sym_eq(up.sym_size(i)), Op::kName, ": gate has shape ",
                      gate.sym_sizes(), " but up has shape ", up.sym_sizes());
    }
    CheckSameDevice(Op::kName, "gate", gate, "up", up);
  }

  static Tensor Forward(const Tensor& gate, const Tensor& up, As... as) {
    Check(gate, up);
    const Attributes attributes(as...);
    const auto params = Op::ParamsOf(attributes);
    const c10::DeviceGuard guard(gate.device());
    const char* reason = kNoKernelReason;
    if (Op::KernelOf(attributes) != kNoKernel) {
      Tensor out = Empty(gate.sizes(), GatedOutputType(gate, up), gate.device());
      const RowView gate_rows(gate);
      const RowView up_rows(up);
      KernelCall call(Op::kOperation, Op::KernelOf(attributes), FB_FORWARD, gate.device());
      call.Inputs({gate_rows.view(), up_rows.view()});
      call.Outputs({RowView(out).view()});
      reason = call.Run(&params);
      if (reason == nullptr) {
        Counters::Instance().Add(Op::kOperation, nullptr);
        return out;
      }
    }
    Counters::Instance().Add(Op::kOperation, reason);
    return Op::ForwardComposite(gate, up, attributes).contiguous();
  }

  static Tensor ForwardMeta(const Tensor& gate, const Tensor& up, As... /*attributes*/) {
    Check(gate, up);
    return at::empty_symint(gate.sym_sizes(), gate.options().dtype(GatedOutputType(gate, up)));
  }

  static TensorPair Backward(const Tensor& dout, const Tensor& gate, const Tensor& up,
                             bool need_dgate, bool need_dup, As... as) {
    Check(gate, up);
    CheckSameDevice(Op::kName, "gate", gate, "the gradient", dout);
    const Attributes attributes(as...);
    const auto params = Op::ParamsOf(attributes);
    const c10::DeviceGuard guard(gate.device());
    Tensor dgate =
        Empty(need_dgate ? gate.sizes() : at::IntArrayRef{0}, gate.scalar_type(), gate.device());
    Tensor dup = Empty(need_dup ? up.sizes() : at::IntArrayRef{0}, up.scalar_type(), gate.device());
    const char* reason = kNoKernelReason;
    if (Op::KernelOf(attributes) != kNoKernel) {
      const RowView dout_rows(dout);
      const RowView gate_rows(gate);
      const RowView up_rows(up);
      KernelCall call(Op::kOperation, Op::KernelOf(attributes), FB_BACKWARD, gate.device());
      call.Inputs({dout_rows.view(), gate_rows.view(), up_rows.view()});
      call.Outputs(
          {need_dgate ? RowView(dgate).view() : kAbsent, need_dup ? RowView(dup).view() : kAbsent});
      reason = call.Run(&params);
    }
    Counters::Instance().Add(Op::kOperation, reason);
    if (reason != nullptr) {
      auto [dgate_new, dup_new] =
          Op::BackwardComposite(dout, gate, up, need_dgate, need_dup, attributes);
      if (need_dgate) dgate = dgate_new.contiguous();
      if (need_dup) dup = dup_new.contiguous();
    }
    return {std::move(dgate), std::move(dup)};
  }

  static TensorPair BackwardMeta(const Tensor& /*dout*/, const Tensor& gate, const Tensor& up,
                                 bool need_dgate, bool need_dup, As... /*attributes*/) {
    Check(gate, up);
    return {
        need_dgate ? at::empty_symint(gate.sym_sizes(), gate.options())
                   : at::empty({0}, gate.options()),
        need_dup ? at::empty_symint(up.sym_sizes(), up.options()) : at::empty({0}, up.options())};
  }

  static Tensor CallForward(const Tensor& gate, const Tensor& up, As... attributes) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(("fuseboard::" + ForwardName()).c_str(), "")
                               .template typed<decltype(Forward)>();
    return op.call(gate, up, attributes...);
  }

  class Node final : public SavedNode<Node, 2, 2, Attributes> {
   public:
    using Base = SavedNode<Node, 2, 2, Attributes>;

    std::string name() const override { return Op::kNodeName; }

    static typename Base::variable_list Compute(const typename Base::Inputs& inputs) {
      static const auto op = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow(("fuseboard::" + BackwardName()).c_str(), "")
                                 .template typed<decltype(Backward)>();
      const bool need_dgate = inputs.needs[0];
      const bool need_dup = inputs.needs[1];
      auto [dgate, dup] = std::apply(
          [&](const As&... as) {
            return op.call(inputs.grad, inputs.saved[0], inputs.saved[1], need_dgate, need_dup,
                           as...);
          },
          inputs.attributes);
      return {need_dgate ? std::move(dgate) : Tensor(), need_dup ? std::move(dup) : Tensor()};
    }
  };

  static Tensor Autograd(const Tensor& gate, const Tensor& up, As... attributes) {
    std::shared_ptr<Node> node;
    if (torch::autograd::compute_requires_grad(gate, up)) {
      CheckNoForwardGradient(Op::kName, gate);
      CheckNoForwardGradient(Op::kName, up);
      node = NewNode<Node>(gate, up);
      node->SetAttributes({attributes...});
      node->Save(0, gate);
      node->Save(1, up);
    }
    Tensor out = [&] {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      return CallForward(gate, up, attributes...);
    }();
    if (node) torch::autograd::set_history(out, node);
    return out;
  }
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_GATED_ACTIVATION_H_
