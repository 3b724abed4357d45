#include "kernels/torch/rms_norm_composite.h"

#include "kernels/torch/checks.h"

namespace fuseboard::torch_binding {
namespace {

// offset + weight in the accumulation type; undefined without a weight.
at::Tensor Scale(const std::optional<at::Tensor>& weight, double offset,
                 at::ScalarType accumulate) {
  if (!weight.has_value()) return {};
  const at::Tensor scale = weight->to(accumulate);
  return offset == 0 ? scale : scale.add(offset);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> RmsNormComposite(const at::Tensor& x,
                                                    const std::optional<at::Tensor>& weight,
                                                    const FbRmsNormParams& params) {
  const at::ScalarType accumulate = AccumulationType(x.scalar_type());
  const at::Tensor wide = x.to(accumulate);
  const at::Tensor rstd = wide.pow(2).mean(-1, /*keepdim=*/true).add(params.eps).rsqrt();
  at::Tensor y = wide.mul(rstd);
  if (params.casting == FB_CASTING_LLAMA) {
    y = y.to(x.scalar_type());
    if (weight.has_value() && params.offset == 0) {
      y = weight->mul(y);
    } else if (weight.has_value()) {
      const at::ScalarType out = at::promoteTypes(x.scalar_type(), weight->scalar_type());
      y = Scale(weight, params.offset, accumulate).mul(y).to(out);
    }
  } else {
    if (weight.has_value()) y = y.mul(Scale(weight, params.offset, accumulate));
    y = y.to(x.scalar_type());
  }
  return {y.contiguous(), rstd.squeeze(-1).contiguous()};
}

std::tuple<at::Tensor, at::Tensor> RmsNormBackwardComposite(
    const at::Tensor& dy, const at::Tensor& x, const std::optional<at::Tensor>& weight,
    const at::Tensor& rstd, const FbRmsNormParams& params, bool need_dx, bool need_dweight) {
  const at::ScalarType accumulate = AccumulationType(x.scalar_type());
  const at::Tensor r = rstd.unsqueeze(-1);
  const at::Tensor normed = x.to(accumulate).mul(r);
  const at::Tensor grad = dy.to(accumulate);
  at::Tensor dx;
  at::Tensor dweight;
  if (need_dweight) {
    // The weight met the rounded value in the forward of FB_CASTING_LLAMA.
    const at::Tensor factor =
        params.casting == FB_CASTING_LLAMA ? normed.to(x.scalar_type()).to(accumulate) : normed;
    dweight = grad.mul(factor).reshape({-1, x.size(-1)}).sum(0).to(weight->scalar_type());
  }
  if (need_dx) {
    const at::Tensor scale = Scale(weight, params.offset, accumulate);
    const at::Tensor dnormed = scale.defined() ? grad.mul(scale) : grad;
    const at::Tensor mean = dnormed.mul(normed).mean(-1, /*keepdim=*/true);
    dx = dnormed.sub(normed.mul(mean)).mul(r).to(x.scalar_type()).contiguous();
  }
  return {dx, dweight};
}

}  // namespace fuseboard::torch_binding
