// The operators of a gated activation whose gate and up are one tensor: gate_up [..., 2 cols],
// whose halves (chunk(2, -1)) or, if interleaved, even and odd columns ([..., ::2] and [..., 1::2])
// they are. The gradient is one tensor of this form too, written in place. On top of the `Op` of
// gated_activation.h:
//
//   static constexpr const char* kPackedName = "geglu_packed";
//   static constexpr const char* kPackedNodeName = "FuseboardGegluPackedBackward";
//
// with the schemas, [...] standing for the attributes:
//
//   geglu_packed(Tensor gate_up, bool interleaved, [...]) -> Tensor
//   geglu_packed_forward(Tensor gate_up, bool interleaved, [...]) -> Tensor
//   geglu_packed_backward(Tensor dout, Tensor gate_up, bool interleaved, [...]) -> Tensor

#ifndef KERNELS_TORCH_PACKED_GATED_ACTIVATION_H_
#define KERNELS_TORCH_PACKED_GATED_ACTIVATION_H_

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <string>
#include <tuple>

#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/saved_node.h"

namespace fuseboard::torch_binding {

template <typename Op, typename Attributes = typename Op::Attributes>
class PackedGatedActivation;

template <typename Op, typename... As>
class PackedGatedActivation<Op, std::tuple<As...>> {
 public:
  static void ImplementForDevice(torch::Library& m) {
    m.impl(ForwardName().c_str(), Forward);
    m.impl(BackwardName().c_str(), Backward);
  }

  static void ImplementMeta(torch::Library& m) {
    m.impl(ForwardName().c_str(), ForwardMeta);
    m.impl(BackwardName().c_str(), BackwardMeta);
  }

  static void ImplementBelowAutograd(torch::Library& m) { m.impl(Op::kPackedName, CallForward); }

  static void ImplementAutograd(torch::Library& m) {
    m.impl(Op::kPackedName, Autograd);
    RefuseSecondDerivatives(m, {ForwardName().c_str(), BackwardName().c_str()});
  }

 private:
  using Tensor = at::Tensor;
  using Attributes = std::tuple<As...>;

  static std::string ForwardName() { return std::string(Op::kPackedName) + "_forward"; }
  static std::string BackwardName() { return std::string(Op::kPackedName) + "_backward"; }

  static void Check(const Tensor& gate_up) {
    CheckFloating(Op::kPackedName, "gate_up", gate_up);
    TORCH_CHECK(gate_up.dim() >= 1, Op::kPackedName, ": gate_up has 0 dimensions, want at least 1");
    TORCH_SYM_CHECK((gate_up.sym_size(-1) % 2).sym_eq(0), Op::kPackedName, ": gate_up has ",
                    gate_up.sym_size(-1), " columns, want an even number");
  }

  // gate and up as tensors.
  static std::array<Tensor, 2> PartsOf(const Tensor& gate_up, bool interleaved) {
    const int64_t cols = gate_up.size(-1) / 2;
    if (interleaved) {
      return {gate_up.slice(-1, 0, 2 * cols, 2), gate_up.slice(-1, 1, 2 * cols, 2)};
    }
    return {gate_up.narrow(-1, 0, cols), gate_up.narrow(-1, cols, cols)};
  }

  // gate and up in the memory of a packed matrix.
  static std::array<FbTensor, 2> PartsOf(const FbTensor& packed, bool interleaved,
                                         size_t element_bytes) {
    FbTensor gate = packed;
    gate.shape[1] /= 2;
    gate.stride[1] = interleaved ? 2 : 1;
    FbTensor up = gate;
    if (packed.data != nullptr) {
      const size_t ahead = interleaved ? 1 : static_cast<size_t>(gate.shape[1]);
      up.data = static_cast<char*>(packed.data) + ahead * element_bytes;
    }
    return {gate, up};
  }

  static Tensor Forward(const Tensor& gate_up, bool interleaved, As... as) {
    Check(gate_up);
    const Attributes attributes(as...);
    const auto params = Op::ParamsOf(attributes);
    const c10::DeviceGuard guard(gate_up.device());
    const char* reason = kNoKernelReason;
    if (Op::KernelOf(attributes) != kNoKernel) {
      c10::SmallVector<int64_t, 5> sizes(gate_up.sizes());
      sizes.back() /= 2;
      Tensor out = Empty(sizes, gate_up.scalar_type(), gate_up.device());
      const RowView rows(gate_up);
      const auto [gate, up] = PartsOf(rows.view(), interleaved, gate_up.element_size());
      KernelCall call(Op::kOperation, Op::KernelOf(attributes), FB_FORWARD, gate_up.device());
      call.Inputs({gate, up});
      call.Outputs({RowView(out).view()});
      reason = call.Run(&params);
      if (reason == nullptr) {
        Counters::Instance().Add(Op::kOperation, nullptr);
        return out;
      }
    }
    Counters::Instance().Add(Op::kOperation, reason);
    const auto [gate, up] = PartsOf(gate_up, interleaved);
    return Op::ForwardComposite(gate, up, attributes).contiguous();
  }

  static Tensor ForwardMeta(const Tensor& gate_up, bool /*interleaved*/, As... /*attributes*/) {
    Check(gate_up);
    c10::SymDimVector sizes(gate_up.sym_sizes());
    sizes.back() = sizes.back() / 2;
    return at::empty_symint(sizes, gate_up.options());
  }

  static Tensor Backward(const Tensor& dout, const Tensor& gate_up, bool interleaved, As... as) {
    Check(gate_up);
    CheckSameDevice(Op::kPackedName, "gate_up", gate_up, "the gradient", dout);
    const Attributes attributes(as...);
    const auto params = Op::ParamsOf(attributes);
    const c10::DeviceGuard guard(gate_up.device());
    Tensor dgate_up = Empty(gate_up.sizes(), gate_up.scalar_type(), gate_up.device());
    const char* reason = kNoKernelReason;
    if (Op::KernelOf(attributes) != kNoKernel) {
      const RowView dout_rows(dout);
      const RowView rows(gate_up);
      const size_t element_bytes = gate_up.element_size();
      const auto [gate, up] = PartsOf(rows.view(), interleaved, element_bytes);
      const auto [dgate, dup] = PartsOf(RowView(dgate_up).view(), interleaved, element_bytes);
      KernelCall call(Op::kOperation, Op::KernelOf(attributes), FB_BACKWARD, gate_up.device());
      call.Inputs({dout_rows.view(), gate, up});
      call.Outputs({dgate, dup});
      reason = call.Run(&params);
    }
    Counters::Instance().Add(Op::kOperation, reason);
    if (reason != nullptr) {
      const auto [gate, up] = PartsOf(gate_up, interleaved);
      const auto [dgate_new, dup_new] =
          Op::BackwardComposite(dout, gate, up, /*need_dgate=*/true, /*need_dup=*/true, attributes);
      const auto [dgate, dup] = PartsOf(dgate_up, interleaved);
      dgate.copy_(dgate_new);
      dup.copy_(dup_new);
    }
    return dgate_up;
  }

  static Tensor BackwardMeta(const Tensor& /*dout*/, const Tensor& gate_up, bool /*interleaved*/,
                             As... /*attributes*/) {
    Check(gate_up);
    return at::empty_symint(gate_up.sym_sizes(), gate_up.options());
  }

  static Tensor CallForward(const Tensor& gate_up, bool interleaved, As... attributes) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(("fuseboard::" + ForwardName()).c_str(), "")
                               .template typed<decltype(Forward)>();
    return op.call(gate_up, interleaved, attributes...);
  }

  class Node final : public SavedNode<Node, 1, 1, std::tuple<bool, As...>> {
   public:
    using Base = SavedNode<Node, 1, 1, std::tuple<bool, As...>>;

    std::string name() const override { return Op::kPackedNodeName; }

    static typename Base::variable_list Compute(const typename Base::Inputs& inputs) {
      static const auto op = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow(("fuseboard::" + BackwardName()).c_str(), "")
                                 .template typed<decltype(Backward)>();
      if (!inputs.needs[0]) return {Tensor()};
      return {std::apply(
          [&](const auto&... attributes) {
            return op.call(inputs.grad, inputs.saved[0], attributes...);
          },
          inputs.attributes)};
    }
  };

  static Tensor Autograd(const Tensor& gate_up, bool interleaved, As... attributes) {
    std::shared_ptr<Node> node;
    if (torch::autograd::compute_requires_grad(gate_up)) {
      CheckNoForwardGradient(Op::kPackedName, gate_up);
      node = NewNode<Node>(gate_up);
      node->SetAttributes({interleaved, attributes...});
      node->Save(0, gate_up);
    }
    Tensor out = [&] {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      return CallForward(gate_up, interleaved, attributes...);
    }();
    if (node) torch::autograd::set_history(out, node);
    return out;
  }
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_PACKED_GATED_ACTIVATION_H_
