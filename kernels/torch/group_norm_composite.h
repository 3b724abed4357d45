// group_norm by ATen operations: where no kernel runs, and for f64. One thread per call.

#ifndef KERNELS_TORCH_GROUP_NORM_COMPOSITE_H_
#define KERNELS_TORCH_GROUP_NORM_COMPOSITE_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace fuseboard::torch_binding {

using GroupNormResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;     // y, mean, rstd
using GroupNormGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // dx, dweight, dbias

struct GroupNormNeeds {
  bool dx;
  bool dweight;
  bool dbias;
};

// As the operator group_norm_forward.
GroupNormResult GroupNormComposite(const at::Tensor& x, int64_t groups,
                                   const std::optional<at::Tensor>& weight,
                                   const std::optional<at::Tensor>& bias, double eps);

// As the operator group_norm_backward.
GroupNormGradients GroupNormBackwardComposite(const at::Tensor& dy, const at::Tensor& x,
                                              int64_t groups,
                                              const std::optional<at::Tensor>& weight,
                                              const std::optional<at::Tensor>& bias,
                                              const at::Tensor& mean, const at::Tensor& rstd,
                                              const GroupNormNeeds& needs);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_GROUP_NORM_COMPOSITE_H_
