#include "kernels/torch/qk_norm_rope_composite.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/torch/checks.h"
#include "kernels/torch/rms_norm_composite.h"

namespace fuseboard::torch_binding {
namespace {

// Heads as rows of what is normalised: with all_heads [(batch), positions, heads * dim].
at::Tensor RowsOf(const at::Tensor& heads, const HeadNorm& norm) {
  return norm.all_heads ? heads.transpose(-3, -2).flatten(-2) : heads;
}

// The inverse, for rows of `like`.
at::Tensor HeadsOfRows(const at::Tensor& rows, const at::Tensor& like, const HeadNorm& norm) {
  if (!norm.all_heads) return rows;
  return rows.reshape(like.transpose(-3, -2).sizes()).transpose(-3, -2);
}

}  // namespace

at::ScalarType NormedType(const at::Tensor& heads, const std::optional<at::Tensor>& weight,
                          const HeadNorm& norm) {
  if (norm.params.casting != FB_CASTING_LLAMA || !weight.has_value()) return heads.scalar_type();
  return at::promoteTypes(heads.scalar_type(), weight->scalar_type());
}

RotaryOptions RotaryOptionsFor(const HeadNorm& norm, RotaryOptions options) {
  if (norm.params.casting == FB_CASTING_NONE) options.round_products = false;
  return options;
}

void NormRopeComposite(const at::Tensor& heads, const std::optional<at::Tensor>& weight,
                       const HeadNorm& norm, const RotaryFactors& factors, const at::Tensor& out) {
  at::Tensor rows = RowsOf(heads, norm);
  if (norm.params.casting == FB_CASTING_NONE) rows = rows.to(AccumulationType(rows.scalar_type()));
  const at::Tensor normed = std::get<0>(RmsNormComposite(rows, weight, norm.params));
  factors.Rotate(HeadsOfRows(normed, heads, norm), /*inverse=*/false, out);
}

std::tuple<at::Tensor, at::Tensor> NormRopeBackwardComposite(
    const at::Tensor& upstream, const at::Tensor& heads, const std::optional<at::Tensor>& weight,
    const HeadNorm& norm, const RotaryFactors& factors, bool need_dheads, bool need_dweight) {
  if (heads.numel() == 0) {  // A row may have no elements, which no reshape can tell from no rows.
    return {need_dheads ? at::zeros_like(heads) : at::Tensor(),
            need_dweight ? at::zeros_like(*weight) : at::Tensor()};
  }
  const at::Tensor turned =
      at::empty(upstream.sizes(), upstream.options().dtype(NormedType(heads, weight, norm)));
  factors.Rotate(upstream, /*inverse=*/true, turned);
  const at::Tensor rows = RowsOf(heads, norm);
  const at::Tensor wide = rows.to(AccumulationType(rows.scalar_type()));
  const at::Tensor rstd = wide.pow(2).mean(-1).add(norm.params.eps).rsqrt();
  auto [drows, dweight] = RmsNormBackwardComposite(RowsOf(turned, norm), rows, weight, rstd,
                                                   norm.params, need_dheads, need_dweight);
  return {need_dheads ? HeadsOfRows(drows, heads, norm) : at::Tensor(), dweight};
}

}  // namespace fuseboard::torch_binding
