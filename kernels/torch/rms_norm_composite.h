// RMSNorm in ATen operators: what runs when no kernel library does.
//
// In FB_CASTING_LLAMA the forward is, operator by operator, what transformers' LlamaRMSNorm runs,
// so its result has the same bits. Statistics in fp32, in fp64 for fp64 inputs. Any shape and
// strides.

#ifndef KERNELS_TORCH_RMS_NORM_COMPOSITE_H_
#define KERNELS_TORCH_RMS_NORM_COMPOSITE_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "kernels/abi/rms_norm.h"

namespace fuseboard::torch_binding {

// Returns y and rstd; both contiguous.
std::tuple<at::Tensor, at::Tensor> RmsNormComposite(const at::Tensor& x,
                                                    const std::optional<at::Tensor>& weight,
                                                    const FbRmsNormParams& params);

// Returns dx and dweight, each undefined if not needed. dweight is summed in fp32.
std::tuple<at::Tensor, at::Tensor> RmsNormBackwardComposite(
    const at::Tensor& dy, const at::Tensor& x, const std::optional<at::Tensor>& weight,
    const at::Tensor& rstd, const FbRmsNormParams& params, bool need_dx, bool need_dweight);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_RMS_NORM_COMPOSITE_H_
