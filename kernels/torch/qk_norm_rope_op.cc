// torch.ops.fuseboard.qk_norm_rope: schemas, kernels, composite, fake functions and autograd.

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/qk_norm_rope_arguments.h"
#include "kernels/torch/qk_norm_rope_composite.h"
#include "kernels/torch/registration.h"
#include "kernels/torch/rotary_heads.h"
#include "kernels/torch/saved_node.h"

namespace fuseboard::torch_binding {
namespace {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using TensorPair = std::tuple<Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// ---- qk_norm_rope (kernels/abi/qk_norm_rope.h). q, k, cos, sin, rotary_dim to round_products as
// of rope. q_weight [dim], or [heads * dim] with all_heads, or None; k_weight alike. casting: 0
// llama, 1 gemma, 2 none, as of rms_norm. Returns q and k, normalised and rotated, in the order of
// their dimensions in memory; [0] for a k that is None. cos and sin get no gradient. ----
constexpr char kSchema[] =
    "qk_norm_rope(Tensor q, Tensor? k, Tensor? q_weight, Tensor? k_weight, Tensor cos, Tensor sin, "
    "float eps, float offset, int casting, bool all_heads, int rotary_dim, int[] sections, "
    "bool interleaved, bool round_products, int kernel) -> (Tensor, Tensor)";
constexpr char kForwardSchema[] =
    "qk_norm_rope_forward(Tensor q, Tensor? k, Tensor? q_weight, Tensor? k_weight, Tensor cos, "
    "Tensor sin, float eps, float offset, int casting, bool all_heads, int rotary_dim, "
    "int[] sections, bool interleaved, bool round_products, int kernel) "
    "-> (Tensor q_out, Tensor k_out)";
// needs: of the four results; one that is not wanted, or has no upstream gradient, is [0].
constexpr char kBackwardSchema[] =
    "qk_norm_rope_backward(Tensor? dq_out, Tensor? dk_out, Tensor q, Tensor? k, Tensor? q_weight, "
    "Tensor? k_weight, Tensor cos, Tensor sin, float eps, float offset, int casting, "
    "bool all_heads, int rotary_dim, int[] sections, bool interleaved, bool round_products, "
    "bool[4] needs, int kernel) -> (Tensor dq, Tensor dk, Tensor dq_weight, Tensor dk_weight)";

constexpr const char* kUpstreamNames[] = {"dq_out", "dk_out"};

// Holds the copies that views need.
class SideViews {
 public:
  explicit SideViews(const Tensor& heads) {
    if (heads.defined()) heads_.emplace(heads);
  }
  FbTensor view() const { return heads_.has_value() ? heads_->view() : kAbsent; }

 private:
  std::optional<HeadsView> heads_;
};

FbTensor WeightView(const OptionalTensor& weight) {
  return weight.has_value() ? ViewOf(*weight) : kAbsent;
}

FbTensor OutView(const Tensor& out) { return out.defined() ? HeadsView(out).view() : kAbsent; }

// ---- Forward ----

const char* RunForward(int64_t kernel, const NormRopeArguments& a,
                       const std::array<Tensor, 2>& out) {
  const FbQkNormRopeParams params = a.params();
  const bool streams = !a.rotary.sections.empty();
  const SideViews q(a.heads(0));
  const SideViews k(a.heads(1));
  KernelCall call(Operation::kQkNormRope, kernel, FB_FORWARD, a.device());
  call.Inputs({q.view(), k.view(), TableView(a.cos, streams), TableView(a.sin, streams),
               WeightView(a.weight(0)), WeightView(a.weight(1))});
  call.Outputs({OutView(out[0]), OutView(out[1])});
  return call.Run(&params);
}

TensorPair Forward(const Tensor& q, const OptionalTensor& k, const OptionalTensor& q_weight,
                   const OptionalTensor& k_weight, const Tensor& cos, const Tensor& sin, double eps,
                   double offset, int64_t casting, bool all_heads, int64_t rotary_dim,
                   IntArrayRef sections, bool interleaved, bool round_products, int64_t kernel) {
  const NormRopeArguments a(q, k, q_weight, k_weight, cos, sin, eps, offset, casting, all_heads,
                            {rotary_dim, sections, interleaved, round_products});
  a.Check();
  const c10::DeviceGuard guard(q.device());
  std::array<Tensor, 2> out;
  for (const size_t side : {0, 1}) {
    const Tensor& heads = a.heads(side);
    if (!heads.defined()) continue;
    out[side] = EmptyHeads(heads.sizes(), HeadOrderOf(heads), a.ResultType(side), heads.device());
  }
  const char* reason = kernel == kNoKernel ? kNoKernelReason : RunForward(kernel, a, out);
  Counters::Instance().Add(Operation::kQkNormRope, reason);
  if (reason != nullptr) {
    const AutocastOff autocast_off;
    const RotaryFactors factors(cos, sin, RotaryOptionsFor(a.norm, a.rotary));
    for (const size_t side : {0, 1}) {
      if (!out[side].defined()) continue;
      NormRopeComposite(a.heads(side), a.weight(side), a.norm, factors, out[side]);
    }
  }
  if (!out[1].defined()) out[1] = Empty({0}, q.scalar_type(), q.device());
  return {std::move(out[0]), std::move(out[1])};
}

TensorPair ForwardMeta(const Tensor& q, const OptionalTensor& k, const OptionalTensor& q_weight,
                       const OptionalTensor& k_weight, const Tensor& cos, const Tensor& sin,
                       double eps, double offset, int64_t casting, bool all_heads,
                       int64_t rotary_dim, IntArrayRef sections, bool interleaved,
                       bool round_products, int64_t /*kernel*/) {
  const NormRopeArguments a(q, k, q_weight, k_weight, cos, sin, eps, offset, casting, all_heads,
                            {rotary_dim, sections, interleaved, round_products});
  a.Check();
  const auto empty_like = [&](size_t side) {
    const Tensor& heads = a.heads(side);
    if (!heads.defined()) return at::empty({0}, q.options());
    return EmptyHeadsMeta(heads.sym_sizes(), HeadOrderOf(heads),
                          heads.options().dtype(a.ResultType(side)));
  };
  return {empty_like(0), empty_like(1)};
}

// ---- Backward ----

// The upstream gradients, and which results there will be.
struct Wanted {
  std::array<Tensor, 2> upstream;  // Undefined where no result of its side is wanted.
  std::array<bool, 2> heads{};
  std::array<bool, 2> weight{};

  Wanted(const NormRopeArguments& a, const OptionalTensor& dq_out, const OptionalTensor& dk_out,
         const std::array<bool, 4>& needs) {
    for (const size_t side : {0, 1}) {
      const OptionalTensor& dy = side == 0 ? dq_out : dk_out;
      if (!dy.has_value() || !a.heads(side).defined()) continue;
      CheckSameDevice("qk_norm_rope", "q", a.heads(0), kUpstreamNames[side], *dy);
      TORCH_CHECK(dy->dim() == a.heads(side).dim(), "qk_norm_rope: ", kUpstreamNames[side], " has ",
                  dy->dim(), " dimensions, want ", a.heads(side).dim());
      heads[side] = needs[side];
      weight[side] = needs[2 + side] && a.weight(side).has_value();
      if (heads[side] || weight[side]) upstream[side] = *dy;
    }
  }
};

// dq, dk, dq_weight, dk_weight; undefined if not wanted.
using FourTensors = std::array<Tensor, 4>;

const char* RunBackward(int64_t kernel, const NormRopeArguments& a, const Wanted& wanted,
                        const FourTensors& out) {
  const FbQkNormRopeParams params = a.params();
  const bool streams = !a.rotary.sections.empty();
  const SideViews q(a.heads(0));
  const SideViews k(a.heads(1));
  const SideViews dq_out(wanted.upstream[0]);
  const SideViews dk_out(wanted.upstream[1]);
  KernelCall call(Operation::kQkNormRope, kernel, FB_BACKWARD, a.device());
  call.Inputs({dq_out.view(), dk_out.view(), q.view(), k.view(), TableView(a.cos, streams),
               TableView(a.sin, streams), WeightView(a.weight(0)), WeightView(a.weight(1))});
  const auto weight_view = [](const Tensor& dweight) {
    return dweight.defined() ? ViewOf(dweight) : kAbsent;
  };
  call.Outputs({OutView(out[0]), OutView(out[1]), weight_view(out[2]), weight_view(out[3])});
  return call.Run(&params);
}

void RunBackwardComposite(const NormRopeArguments& a, const Wanted& wanted,
                          const FourTensors& out) {
  const AutocastOff autocast_off;
  const RotaryFactors factors(a.cos, a.sin, RotaryOptionsFor(a.norm, a.rotary));
  for (const size_t side : {0, 1}) {
    if (!wanted.upstream[side].defined()) continue;
    const auto [dheads, dweight] =
        NormRopeBackwardComposite(wanted.upstream[side], a.heads(side), a.weight(side), a.norm,
                                  factors, wanted.heads[side], wanted.weight[side]);
    if (wanted.heads[side]) out[side].copy_(dheads);
    if (wanted.weight[side]) out[2 + side].copy_(dweight);
  }
}

Gradients Backward(const OptionalTensor& dq_out, const OptionalTensor& dk_out, const Tensor& q,
                   const OptionalTensor& k, const OptionalTensor& q_weight,
                   const OptionalTensor& k_weight, const Tensor& cos, const Tensor& sin, double eps,
                   double offset, int64_t casting, bool all_heads, int64_t rotary_dim,
                   IntArrayRef sections, bool interleaved, bool round_products,
                   std::array<bool, 4> needs, int64_t kernel) {
  const NormRopeArguments a(q, k, q_weight, k_weight, cos, sin, eps, offset, casting, all_heads,
                            {rotary_dim, sections, interleaved, round_products});
  a.Check();
  const Wanted wanted(a, dq_out, dk_out, needs);
  const c10::DeviceGuard guard(q.device());
  FourTensors out;
  for (const size_t side : {0, 1}) {
    const Tensor& heads = a.heads(side);
    if (wanted.heads[side]) {
      out[side] =
          EmptyHeads(heads.sizes(), HeadOrderOf(heads), heads.scalar_type(), heads.device());
    }
    if (wanted.weight[side]) {
      const Tensor& weight = *a.weight(side);
      out[2 + side] = Empty(weight.sizes(), weight.scalar_type(), weight.device());
    }
  }
  const char* reason = kernel == kNoKernel ? kNoKernelReason : RunBackward(kernel, a, wanted, out);
  Counters::Instance().Add(Operation::kQkNormRope, reason);
  if (reason != nullptr) RunBackwardComposite(a, wanted, out);
  for (Tensor& tensor : out) {
    if (!tensor.defined()) tensor = Empty({0}, q.scalar_type(), q.device());
  }
  return {std::move(out[0]), std::move(out[1]), std::move(out[2]), std::move(out[3])};
}

Gradients BackwardMeta(const OptionalTensor& dq_out, const OptionalTensor& dk_out, const Tensor& q,
                       const OptionalTensor& k, const OptionalTensor& q_weight,
                       const OptionalTensor& k_weight, const Tensor& cos, const Tensor& sin,
                       double eps, double offset, int64_t casting, bool all_heads,
                       int64_t rotary_dim, IntArrayRef sections, bool interleaved,
                       bool round_products, std::array<bool, 4> needs, int64_t /*kernel*/) {
  const NormRopeArguments a(q, k, q_weight, k_weight, cos, sin, eps, offset, casting, all_heads,
                            {rotary_dim, sections, interleaved, round_products});
  a.Check();
  const Wanted wanted(a, dq_out, dk_out, needs);
  const auto heads = [&](size_t side) {
    const Tensor& of = a.heads(side);
    if (!wanted.heads[side]) return at::empty({0}, q.options());
    return EmptyHeadsMeta(of.sym_sizes(), HeadOrderOf(of), of.options());
  };
  const auto weight = [&](size_t side) {
    if (!wanted.weight[side]) return at::empty({0}, q.options());
    return at::empty_symint(a.weight(side)->sym_sizes(), a.weight(side)->options());
  };
  return {heads(0), heads(1), weight(0), weight(1)};
}

// ---- The differentiable operator ----

TensorPair CallForward(const Tensor& q, const OptionalTensor& k, const OptionalTensor& q_weight,
                       const OptionalTensor& k_weight, const Tensor& cos, const Tensor& sin,
                       double eps, double offset, int64_t casting, bool all_heads,
                       int64_t rotary_dim, IntArrayRef sections, bool interleaved,
                       bool round_products, int64_t kernel) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fuseboard::qk_norm_rope_forward", "")
                             .typed<decltype(Forward)>();
  return op.call(q, k, q_weight, k_weight, cos, sin, eps, offset, casting, all_heads, rotary_dim,
                 sections, interleaved, round_products, kernel);
}

// An output that needs no gradient has no place among the node's; `q_grad` and `k_grad` say which
// do.
struct Attributes {
  using Tuple = std::tuple<double, double, int64_t, bool, int64_t, std::vector<int64_t>, bool, bool,
                           bool, bool, int64_t>;
};

class QkNormRopeNode final : public SavedNode<QkNormRopeNode, 6, 4, Attributes::Tuple> {
 public:
  std::string name() const override { return "FuseboardQkNormRopeBackward"; }

  static variable_list Compute(const Inputs& inputs) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fuseboard::qk_norm_rope_backward", "")
                               .typed<decltype(Backward)>();
    const auto& [q, k, q_weight, k_weight, cos, sin] = inputs.saved;
    const auto& [eps, offset, casting, all_heads, rotary_dim, sections, interleaved, round_products,
                 q_grad, k_grad, kernel] = inputs.attributes;
    const OptionalTensor dq_out = q_grad ? OptionalOf(inputs.grads[0]) : std::nullopt;
    const OptionalTensor dk_out = k_grad ? OptionalOf(inputs.grads[q_grad ? 1 : 0]) : std::nullopt;
    std::array<bool, 4> needs = inputs.needs;
    for (const size_t i : {0, 2}) needs[i] = needs[i] && dq_out.has_value();
    for (const size_t i : {1, 3}) needs[i] = needs[i] && dk_out.has_value();
    auto [dq, dk, dq_weight, dk_weight] =
        op.call(dq_out, dk_out, q, OptionalOf(k), OptionalOf(q_weight), OptionalOf(k_weight), cos,
                sin, eps, offset, casting, all_heads, rotary_dim, sections, interleaved,
                round_products, needs, kernel);
    return {needs[0] ? std::move(dq) : Tensor(), needs[1] ? std::move(dk) : Tensor(),
            needs[2] ? std::move(dq_weight) : Tensor(), needs[3] ? std::move(dk_weight) : Tensor()};
  }
};

TensorPair Autograd(const Tensor& q, const OptionalTensor& k, const OptionalTensor& q_weight,
                    const OptionalTensor& k_weight, const Tensor& cos, const Tensor& sin,
                    double eps, double offset, int64_t casting, bool all_heads, int64_t rotary_dim,
                    IntArrayRef sections, bool interleaved, bool round_products, int64_t kernel) {
  CheckNoGradient("qk_norm_rope", "cos", cos);
  CheckNoGradient("qk_norm_rope", "sin", sin);
  const bool q_grad = torch::autograd::compute_requires_grad(q, q_weight);
  const bool k_grad = torch::autograd::compute_requires_grad(k, k_weight);
  for (const Tensor* tensor :
       {&q, &ValueOrUndefined(k), &ValueOrUndefined(q_weight), &ValueOrUndefined(k_weight)}) {
    CheckNoForwardGradient("qk_norm_rope", *tensor);
  }
  TensorPair out = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return CallForward(q, k, q_weight, k_weight, cos, sin, eps, offset, casting, all_heads,
                       rotary_dim, sections, interleaved, round_products, kernel);
  }();
  if (!q_grad && !k_grad) return out;
  const auto node = NewNode<QkNormRopeNode>(q, k, q_weight, k_weight);
  node->SetAttributes({eps, offset, casting, all_heads, rotary_dim, sections.vec(), interleaved,
                       round_products, q_grad, k_grad, kernel});
  node->Save(0, q);
  node->Save(1, k);
  node->Save(2, q_weight);
  node->Save(3, k_weight);
  node->Save(4, cos);
  node->Save(5, sin);
  if (q_grad) torch::autograd::set_history(std::get<0>(out), node);
  if (k_grad) torch::autograd::set_history(std::get<1>(out), node);
  return out;
}

TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kSchema, kForwardSchema, kBackwardSchema}); }

TORCH_LIBRARY_IMPL(fuseboard, CPU, m) {
  m.impl("qk_norm_rope_forward", Forward);
  m.impl("qk_norm_rope_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, CUDA, m) {
  m.impl("qk_norm_rope_forward", Forward);
  m.impl("qk_norm_rope_backward", Backward);
}
TORCH_LIBRARY_IMPL(fuseboard, Meta, m) {
  m.impl("qk_norm_rope_forward", ForwardMeta);
  m.impl("qk_norm_rope_backward", BackwardMeta);
}
TORCH_LIBRARY_IMPL(fuseboard, CompositeExplicitAutograd, m) { m.impl("qk_norm_rope", CallForward); }
TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
  m.impl("qk_norm_rope", Autograd);
  RefuseSecondDerivatives(m, {"qk_norm_rope_forward", "qk_norm_rope_backward"});
}

}  // namespace
}  // namespace fuseboard::torch_binding
