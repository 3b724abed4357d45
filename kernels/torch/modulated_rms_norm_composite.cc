#include "kernels/torch/modulated_rms_norm_composite.h"

#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/modulation.h"
#include "kernels/torch/rms_norm_composite.h"

namespace fuseboard::torch_binding {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

at::ScalarType ModulatedOutputType(const Tensor& x, const OptionalTensor& weight,
                                   const Tensor& scale, const Tensor& shift, int64_t casting) {
  at::ScalarType type = x.scalar_type();
  if (casting == FB_CASTING_LLAMA && weight.has_value()) {
    type = at::promoteTypes(type, weight->scalar_type());
  }
  return at::promoteTypes(at::promoteTypes(type, scale.scalar_type()), shift.scalar_type());
}

std::tuple<Tensor, Tensor> ModulatedRmsNormComposite(const Tensor& x, const OptionalTensor& weight,
                                                     const Tensor& scale, const Tensor& shift,
                                                     const FbModulatedRmsNormParams& params) {
  const AutocastOff autocast_off;
  if (params.casting == FB_CASTING_LLAMA) {
    auto [normed, rstd] = RmsNormComposite(x, weight, params);
    Tensor y = normed.mul(Spread(scale, x).add(1)).add(Spread(shift, x));
    return {y.contiguous(), std::move(rstd)};
  }
  const at::ScalarType accumulate = AccumulationType(x.scalar_type());
  const at::ScalarType dtype = ModulatedOutputType(x, weight, scale, shift, params.casting);
  auto [normed, rstd] = RmsNormComposite(x.to(accumulate), weight, params);
  const Tensor factor = Spread(scale, x).to(accumulate).add(1);
  const Tensor y = normed.mul(factor).add(Spread(shift, x).to(accumulate));
  return {y.to(dtype).contiguous(), std::move(rstd)};
}

void ModulatedRmsNormBackwardComposite(const Tensor& dy, const Tensor& x,
                                       const std::optional<Tensor>& weight, const Tensor& scale,
                                       const Tensor& rstd, const FbModulatedRmsNormParams& params,
                                       const ModulatedNeeds& needs, ModulatedGradients* out) {
  const AutocastOff autocast_off;
  const at::ScalarType accumulate = AccumulationType(x.scalar_type());
  const Tensor grad = dy.to(accumulate);
  if (needs.dx || needs.dweight) {
    const Tensor dnormed = grad.mul(Spread(scale, x).to(accumulate).add(1));
    auto [dx, dweight] =
        RmsNormBackwardComposite(dnormed, x, weight, rstd, params, needs.dx, needs.dweight);
    if (needs.dx) out->dx = std::move(dx);
    if (needs.dweight) out->dweight = std::move(dweight);
  }
  if (needs.dshift) out->dshift = SumLike(grad, scale).to(out->dshift.scalar_type());
  if (!needs.dscale) return;
  Tensor normed = x.to(accumulate).mul(rstd.unsqueeze(-1));
  if (params.casting == FB_CASTING_LLAMA) normed = normed.to(x.scalar_type()).to(accumulate);
  if (weight.has_value()) normed = normed.mul(weight->to(accumulate).add(params.offset));
  out->dscale = SumLike(grad.mul(normed), scale).to(scale.scalar_type());
}

}  // namespace fuseboard::torch_binding
