// qk_norm_rope in ATen operators: what runs when no kernel library does.
//
// With FB_CASTING_LLAMA or FB_CASTING_GEMMA the forward is, operator by operator, a model's own
// RMSNorm (rms_norm_composite.h) and then its rotation (rope_composite.h), so that results have the
// same bits. Any shape, strides and mix of dtypes.

#ifndef KERNELS_TORCH_QK_NORM_ROPE_COMPOSITE_H_
#define KERNELS_TORCH_QK_NORM_ROPE_COMPOSITE_H_

#include <tuple>

#include "kernels/abi/rms_norm.h"
#include "kernels/torch/rope_composite.h"

namespace fuseboard::torch_binding {

// The options of kernels/abi/qk_norm_rope.h that are not rope's.
struct HeadNorm {
  FbRmsNormParams params;
  bool all_heads;
};

// The dtype of the normalised heads, and of the results.
at::ScalarType NormedType(const at::Tensor& heads, const std::optional<at::Tensor>& weight,
                          const HeadNorm& norm);

// q or k through both, written to `out`, of the same shape and of NormedType, any strides.
// `factors` are made with RotaryOptionsFor.
void NormRopeComposite(const at::Tensor& heads, const std::optional<at::Tensor>& weight,
                       const HeadNorm& norm, const RotaryFactors& factors, const at::Tensor& out);

// The gradients of q or k and of its weight, each undefined if not needed.
std::tuple<at::Tensor, at::Tensor> NormRopeBackwardComposite(
    const at::Tensor& upstream, const at::Tensor& heads, const std::optional<at::Tensor>& weight,
    const HeadNorm& norm, const RotaryFactors& factors, bool need_dheads, bool need_dweight);

// FB_CASTING_NONE rounds once, at the end.
RotaryOptions RotaryOptionsFor(const HeadNorm& norm, RotaryOptions options);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_QK_NORM_ROPE_COMPOSITE_H_
