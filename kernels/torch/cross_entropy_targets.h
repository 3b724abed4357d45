// What a loss needs to know beside its rows: that targets are in range, and what the upstream
// gradient makes of each row's.

#ifndef KERNELS_TORCH_CROSS_ENTROPY_TARGETS_H_
#define KERNELS_TORCH_CROSS_ENTROPY_TARGETS_H_

#include <ATen/core/Tensor.h>

namespace fuseboard::torch_binding {

// CPU only; on CUDA a wrong target makes its row NaN instead, because looking would wait for the
// device. Errors: IndexError naming the row, its target and `vocab`.
void CheckTargetsOnCpu(const char* operation, const at::Tensor& target, int64_t vocab,
                       int64_t ignore_index);

// The gradient of each row's loss, [rows] (stride 0 if all are alike), from the gradient of the
// reduced loss.
at::Tensor RowScale(const at::Tensor& dloss, const at::Tensor& inverse_divisor, int64_t reduction,
                    int64_t rows, at::ScalarType dtype);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_CROSS_ENTROPY_TARGETS_H_
