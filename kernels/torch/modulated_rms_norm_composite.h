// modulated_rms_norm in ATen operators: what runs when no kernel library does. Any shape and
// strides.

#ifndef KERNELS_TORCH_MODULATED_RMS_NORM_COMPOSITE_H_
#define KERNELS_TORCH_MODULATED_RMS_NORM_COMPOSITE_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "kernels/abi/modulated_rms_norm.h"

namespace fuseboard::torch_binding {

// The dtype of y.
at::ScalarType ModulatedOutputType(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                                   const at::Tensor& scale, const at::Tensor& shift,
                                   int64_t casting);

// Returns y and rstd; both contiguous. FB_CASTING_LLAMA: operator by operator what a model's own
// code runs, so with the same bits. Else rounded once.
std::tuple<at::Tensor, at::Tensor> ModulatedRmsNormComposite(
    const at::Tensor& x, const std::optional<at::Tensor>& weight, const at::Tensor& scale,
    const at::Tensor& shift, const FbModulatedRmsNormParams& params);

struct ModulatedGradients {
  at::Tensor dx;
  at::Tensor dweight;
  at::Tensor dscale;
  at::Tensor dshift;
};

struct ModulatedNeeds {
  bool dx;
  bool dweight;
  bool dscale;
  bool dshift;
};

// Replaces what is needed in `out`, whose dshift already has its dtype. Sums in fp32.
void ModulatedRmsNormBackwardComposite(const at::Tensor& dy, const at::Tensor& x,
                                       const std::optional<at::Tensor>& weight,
                                       const at::Tensor& scale, const at::Tensor& rstd,
                                       const FbModulatedRmsNormParams& params,
                                       const ModulatedNeeds& needs, ModulatedGradients* out);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_MODULATED_RMS_NORM_COMPOSITE_H_
