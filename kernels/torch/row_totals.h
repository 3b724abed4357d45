// What a loss of rows with a reduction needs before its rows and after them: what the mean divides
// by, and the sum. By a library's `inverse_divisor` and `total` entries, in one launch each, or by
// ATen.

#ifndef KERNELS_TORCH_ROW_TOTALS_H_
#define KERNELS_TORCH_ROW_TOTALS_H_

#include <ATen/core/Tensor.h>

namespace fuseboard::torch_binding {

// 1 / D as a 0-dim tensor of `dtype` on target's device, and 0 where D is 0: then the loss and all
// gradients become 0 instead of NaN. D is `divisor` if defined, else the number, with class_weight
// the weight, of the rows that are not ignored. Does not wait for the device. `kernel` is a
// library's handle or kNoKernel.
at::Tensor InverseDivisor(const at::Tensor& target, const at::Tensor& class_weight,
                          const at::Tensor& divisor, int64_t ignore_index, at::ScalarType dtype,
                          int64_t kernel);

struct RowTotals {
  at::Tensor loss;
  at::Tensor z_loss;
};

// Row values as the reduction gives them. Without `z_loss` that is 0. `inverse_divisor` is for the
// mean. `kernel` as above.
RowTotals Reduce(const at::Tensor& loss, const at::Tensor& z_loss,
                 const at::Tensor& inverse_divisor, int64_t reduction, int64_t kernel);

// `factor`, 0-dim or undefined, times the sum of a vector.
at::Tensor ScaledSum(const at::Tensor& values, const at::Tensor& factor, int64_t kernel);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_ROW_TOTALS_H_
