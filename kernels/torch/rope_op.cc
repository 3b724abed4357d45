// torch.ops.fuseboard.rope: schemas, kernels, composite, fake functions and autograd.

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>

#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/rope_composite.h"
#include "kernels/torch/rotary_heads.h"
#include "kernels/torch/saved_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using TensorPair = std::tuple<Tensor, Tensor>;

// ---- rope (kernels/abi/rope.h). q [batch, heads, positions, dim] or [heads, positions, dim], any
// strides; k alike with its own number of heads, or None. cos and sin [positions, width] or [1 or
// batch, positions, width], in front of them 3 streams if there are sections; width is rotary_dim,
// or rotary_dim / 2 for one factor per pair. Returns the rotated q and k in the dtypes of q and k
// and in the order of their dimensions in memory; [0] for a k that is None. cos and sin get no
// gradient. ----
constexpr char kSchema[] =
    "rope(Tensor q, Tensor? k, Tensor cos, Tensor sin, int rotary_dim, int[] sections, "
    "bool interleaved, bool round_products, int kernel) -> (Tensor, Tensor)";
constexpr char kForwardSchema[] =
    "rope_forward(Tensor q, Tensor? k, Tensor cos, Tensor sin, int rotary_dim, int[] sections, "
    "bool interleaved, bool round_products, int kernel) -> (Tensor q_out, Tensor k_out)";
// dq_order, dk_order: the order in memory of the results' leading dimensions (HeadOrderOf).
constexpr char kBackwardSchema[] =
    "rope_backward(Tensor? dq_out, Tensor? dk_out, Tensor cos, Tensor sin, int rotary_dim, "
    "int[] sections, bool interleaved, bool round_products, int[] dq_order, int[] dk_order, "
    "int kernel) -> (Tensor dq, Tensor dk)";

// ---- Both phases: the heads of q and k, of which either may be undefined, through one kernel.
// ----

// Results of the shape and dtype of `heads`.
Tensor EmptyFor(const Tensor& heads, IntArrayRef order, const Tensor& cos) {
  if (!heads.defined()) return Empty({0}, cos.scalar_type(), cos.device());
  return EmptyHeads(heads.sizes(), order, heads.scalar_type(), heads.device());
}

Tensor EmptyMetaFor(const Tensor& heads, IntArrayRef order, const Tensor& cos) {
  if (!heads.defined()) return at::empty({0}, cos.options());
  return EmptyHeadsMeta(heads.sym_sizes(), order, heads.options());
}

// Null, or why the composite must run.
const char* RunKernel(FbPhase phase, int64_t kernel, const Tensor& q, const Tensor& k,
                      const Tensor& cos, const Tensor& sin, const RotaryOptions& options,
                      const TensorPair& out) {
  const std::optional<HeadsView> q_view = q.defined() ? std::optional<HeadsView>(q) : std::nullopt;
  const std::optional<HeadsView> k_view = k.defined() ? std::optional<HeadsView>(k) : std::nullopt;
  const auto view = [](const std::optional<HeadsView>& heads) {
    return heads.has_value() ? heads->view() : kAbsent;
  };
  const auto out_view = [](const Tensor& input, const Tensor& result) {
    return input.defined() ? HeadsView(result).view() : kAbsent;
  };
  const bool streams = !options.sections.empty();
  const FbRopeParams params = options.params();
  KernelCall call(Operation::kRope, kernel, phase, cos.device());
  call.Inputs({view(q_view), view(k_view), TableView(cos, streams), TableView(sin, streams)});
  call.Outputs({out_view(q, std::get<0>(out)), out_view(k, std::get<1>(out))});
  return call.Run(&params);
}

TensorPair Rotate(FbPhase phase, int64_t kernel, const Tensor& q, const Tensor& k,
                  const Tensor& cos, const Tensor& sin, const RotaryOptions& options,
                  IntArrayRef q_order, IntArrayRef k_order) {
  const c10::DeviceGuard guard(cos.device());
  TensorPair out = {EmptyFor(q, q_order, cos), EmptyFor(k, k_order, cos)};
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) reason = RunKernel(phase, kernel, q, k, cos, sin, options, out);
  Counters::Instance().Add(Operation::kRope, reason);
  if (reason != nullptr) {
    const AutocastOff autocast_off;
    const RotaryFactors factors(cos, sin, options);
    const bool inverse = phase == FB_BACKWARD;
    if (q.defined()) factors.Rotate(q, inverse, std::get<0>(out));
    if (k.defined()) factors.Rotate(k, inverse, std::get<1>(out));
  }
  return out;
}

std::vector<int64_t> OrderOf(const Tensor& heads) {
  return heads.defined() ? HeadOrderOf(heads) : std::vector<int64_t>();
}

// ---- Forward ----

TensorPair Forward(const Tensor& q, const OptionalTensor& k, const Tensor& cos, const Tensor& sin,
                   int64_t rotary_dim, IntArrayRef sections, bool interleaved, bool round_products,
                   int64_t kernel) {
  const RotaryOptions options = {rotary_dim, sections, interleaved, round_products};
  CheckRotary("rope", q, k, cos, sin, options);
  const Tensor& keys = ValueOrUndefined(k);
  return Rotate(FB_FORWARD, kernel, q, keys, cos, sin, options, OrderOf(q), OrderOf(keys));
}

TensorPair ForwardMeta(const Tensor& q, const OptionalTensor& k, const Tensor& cos,
                       const Tensor& sin, int64_t rotary_dim, IntArrayRef sections,
                       bool interleaved, bool round_products, int64_t /*kernel*/) {
  CheckRotary("rope", q, k, cos, sin, {rotary_dim, sections, interleaved, round_products});
  const Tensor& keys = ValueOrUndefined(k);
  return {EmptyMetaFor(q, OrderOf(q), cos), EmptyMetaFor(keys, OrderOf(keys), cos)};
}

// ---- Backward ----

// Of whichever gradients there are.
void CheckGradients(const OptionalTensor& dq_out, const OptionalTensor& dk_out, const Tensor& cos,
                    const Tensor& sin, const RotaryOptions& options) {
  if (dq_out.has_value()) {
    CheckRotary("rope", *dq_out, dk_out, cos, sin, options);
  } else if (dk_out.has_value()) {
    CheckRotary("rope", *dk_out, std::nullopt, cos, sin, options);
  }
}

void CheckOrder(const char* name, const OptionalTensor& heads, IntArrayRef order) {
  if (!heads.has_value()) return;
  std::vector<int64_t> sorted = order.vec();
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> want(static_cast<size_t>(heads->dim() - 1));
  std::iota(want.begin(), want.end(), 0);
  TORCH_CHECK(sorted == want, "rope: ", name, " is ", order, ", want the numbers from 0 to ",
              heads->dim() - 2);
}

TensorPair Backward(const OptionalTensor& dq_out, const OptionalTensor& dk_out, const Tensor& cos,
                    const Tensor& sin, int64_t rotary_dim, IntArrayRef sections, bool interleaved,
                    bool round_products, IntArrayRef dq_order, IntArrayRef dk_order,
                    int64_t kernel) {
  const RotaryOptions options = {rotary_dim, sections, interleaved, round_products};
  CheckGradients(dq_out, dk_out, cos, sin, options);
  CheckOrder("dq_order", dq_out, dq_order);
  CheckOrder("dk_order", dk_out, dk_order);
  return Rotate(FB_BACKWARD, kernel, ValueOrUndefined(dq_out), ValueOrUndefined(dk_out), cos, sin,
                options, dq_order, dk_order);
}

TensorPair BackwardMeta(const OptionalTensor& dq_out, const OptionalTensor& dk_out,
                        const Tensor& cos, const Tensor& sin, int64_t rotary_dim,
                        IntArrayRef sections, bool interleaved, bool round_products,
                        IntArrayRef dq_order, IntArrayRef dk_order, int64_t /*kernel*/) {
  CheckGradients(dq_out, dk_out, cos, sin, {rotary_dim, sections, interleaved, round_products});
  return {EmptyMetaFor(ValueOrUndefined(dq_out), dq_order, cos),
          EmptyMetaFor(ValueOrUndefined(dk_out), dk_order, cos)};
}

// ---- The differentiable operator ----

TensorPair CallForward(const Tensor& q, const OptionalTensor& k, const Tensor& cos,
                       const Tensor& sin, int64_t rotary_dim, IntArrayRef sections,
                       bool interleaved, bool round_products, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::rope_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(q, k, cos, sin, rotary_dim, sections, interleaved, round_products, kernel);
}

// Saves the tables only: the map is linear. An output that needs no gradient has no place among the
// node's; `q_grad` and `k_grad` say which do.
struct Attributes {
  using Tuple = std::tuple<int64_t, std::vector<int64_t>, bool, bool, std::vector<int64_t>,
                           std::vector<int64_t>, bool, bool, int64_t>;
};

class RopeNode final : public SavedNode<RopeNode, 2, 2, Attributes::Tuple> {
 public:
  std::string name() const override { return "FuseboardRopeBackward"; }

  static variable_list Compute(const Inputs& inputs) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::rope_backward", "")
                               .typed<decltype(Backward)>();
    const auto& [cos, sin] = inputs.saved;
    const auto& [rotary_dim, sections, interleaved, round_products, q_order, k_order, q_grad,
                 k_grad, kernel] = inputs.attributes;
    const auto wanted = [&](bool has_grad, size_t index, bool need) -> OptionalTensor {
      return has_grad && need ? OptionalOf(inputs.grads[index]) : std::nullopt;
    };
    const OptionalTensor dq_out = wanted(q_grad, 0, inputs.needs[0]);
    const OptionalTensor dk_out = wanted(k_grad, q_grad ? 1 : 0, inputs.needs[1]);
    if (!dq_out.has_value() && !dk_out.has_value()) return variable_list(2);
    auto [dq, dk] = op.call(dq_out, dk_out, cos, sin, rotary_dim, sections, interleaved,
                            round_products, q_order, k_order, kernel);
    return {dq_out.has_value() ? std::move(dq) : Tensor(),
            dk_out.has_value() ? std::move(dk) : Tensor()};
  }
};

TensorPair Autograd(const Tensor& q, const OptionalTensor& k, const Tensor& cos, const Tensor& sin,
                    int64_t rotary_dim, IntArrayRef sections, bool interleaved, bool round_products,
                    int64_t kernel) {
  CheckNoGradient("rope", "cos", cos);
  CheckNoGradient("rope", "sin", sin);
  const Tensor& keys = ValueOrUndefined(k);
  const bool q_grad = torch::autograd::compute_requires_grad(q);
  const bool k_grad = keys.defined() && torch::autograd::compute_requires_grad(keys);
  CheckNoForwardGradient("rope", q);
  CheckNoForwardGradient("rope", keys);
  TensorPair out = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(q, k, cos, sin, rotary_dim, sections, interleaved, round_products, kernel);
  }();
  if (!q_grad && !k_grad) return out;
  const auto node = NewNode<RopeNode>(q, keys);
  node->SetAttributes({rotary_dim, sections.vec(), interleaved, round_products, OrderOf(q),
                       OrderOf(keys), q_grad, k_grad, kernel});
  node->Save(0, cos);
  node->Save(1, sin);
  if (q_grad) torch::autograd::set_history(std::get<0>(out), node);
  if (k_grad) torch::autograd::set_history(std::get<1>(out), node);
  return out;
}

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kSchema, kForwardSchema, kBackwardSchema}); }

TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("rope_forward", Forward);
  m.impl("rope_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("rope_forward", Forward);
  m.impl("rope_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("rope_forward", ForwardMeta);
  m.impl("rope_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl("rope", CallForward); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl("rope", Autograd);
  RefuseSecondDerivatives(m, {"rope_forward", "rope_backward"});
}

}  // namespace
}  // namespace fuseboard::torch_binding
