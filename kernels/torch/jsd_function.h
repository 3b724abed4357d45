// The generalised Jensen-Shannon divergence of elements (kernels/abi/jsd.h) in ATen operators, as
// jsd and fused_linear_jsd fall back to it.

#ifndef KERNELS_TORCH_JSD_FUNCTION_H_
#define KERNELS_TORCH_JSD_FUNCTION_H_

#include "kernels/torch/row_loss.h"

namespace fuseboard::torch_binding {

class JsdFunction final : public RowLossFunction {
 public:
  explicit JsdFunction(double beta) : beta_(beta) {}

  [[nodiscard]] at::Tensor Loss(const at::Tensor& input, const at::Tensor& target) const override;
  [[nodiscard]] at::Tensor Gradient(const at::Tensor& input,
                                    const at::Tensor& target) const override;

 private:
  [[nodiscard]] at::Tensor LogMixture(const at::Tensor& input, const at::Tensor& target) const;

  double beta_;
};

// Errors: c10::Error naming `operation` and the value.
void CheckBeta(const char* operation, double beta);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_JSD_FUNCTION_H_
