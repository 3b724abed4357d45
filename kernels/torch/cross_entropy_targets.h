// What a loss needs to know of its targets as a whole: that they are in range, and what the mean
// divides by.

#ifndef KERNELS_TORCH_CROSS_ENTROPY_TARGETS_H_
#define KERNELS_TORCH_CROSS_ENTROPY_TARGETS_H_

#include <ATen/core/Tensor.h>

namespace fuseboard::torch_binding {

// CPU only; on CUDA a wrong target makes its row NaN instead, because looking would wait for the
// device. Errors: IndexError naming the row, its target and `vocab`.
void CheckTargetsOnCpu(const char* operation, const at::Tensor& target, int64_t vocab,
                       int64_t ignore_index);

// 1 / D as a 0-dim tensor of `dtype` on target's device, and 0 where D is 0: then the loss and all
// gradients become 0 instead of NaN. D is `divisor` if defined, else the number, with class_weight
// the weight, of the rows that are not ignored. Does not wait for the device.
at::Tensor InverseDivisor(const at::Tensor& target, const at::Tensor& class_weight,
                          const at::Tensor& divisor, int64_t ignore_index, at::ScalarType dtype);

// Row values as the reduction gives them; `inverse_divisor` is for the mean.
at::Tensor Reduce(const at::Tensor& row_values, const at::Tensor& inverse_divisor,
                  int64_t reduction);

// The gradient of each row's loss, [rows] (stride 0 if all are alike), from the gradient of the
// reduced loss.
at::Tensor RowScale(const at::Tensor& dloss, const at::Tensor& inverse_divisor, int64_t reduction,
                    int64_t rows, at::ScalarType dtype);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_CROSS_ENTROPY_TARGETS_H_
