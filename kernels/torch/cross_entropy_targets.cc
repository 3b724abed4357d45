#include "kernels/torch/cross_entropy_targets.h"

#include <ATen/ops/full.h>

#include "kernels/torch/cross_entropy_options.h"

namespace fuseboard::torch_binding {
namespace {

template <typename T>
void CheckRange(const char* operation, const at::Tensor& target, int64_t vocab,
                int64_t ignore_index) {
  const T* values = target.const_data_ptr<T>();
  const int64_t stride = target.stride(0);
  for (int64_t row = 0; row < target.size(0); ++row) {
    const auto value = static_cast<int64_t>(values[row * stride]);
    TORCH_CHECK_INDEX((value >= 0 && value < vocab) || value == ignore_index, operation,
                      ": target[", row, "] is ", value, ", want [0, ", vocab, ") or ignore_index ",
                      ignore_index);
  }
}

at::Tensor SupervisedWeight(const at::Tensor& target, const at::Tensor& class_weight,
                            int64_t ignore_index) {
  const at::Tensor valid = target.ne(ignore_index);
  if (!class_weight.defined()) return valid.sum();
  // An out-of-range target has made its row NaN already; here it must only not be read.
  const at::Tensor column = target.to(at::kLong).clamp(0, class_weight.size(0) - 1);
  return class_weight.take(column).mul_(valid).sum();
}

}  // namespace

void CheckTargetsOnCpu(const char* operation, const at::Tensor& target, int64_t vocab,
                       int64_t ignore_index) {
  if (!target.is_cpu()) return;
  if (target.scalar_type() == at::kInt) {
    CheckRange<int32_t>(operation, target, vocab, ignore_index);
  } else {
    CheckRange<int64_t>(operation, target, vocab, ignore_index);
  }
}

at::Tensor InverseDivisor(const at::Tensor& target, const at::Tensor& class_weight,
                          const at::Tensor& divisor, int64_t ignore_index, at::ScalarType dtype) {
  const at::TensorOptions options = target.options().dtype(dtype);
  if (divisor.defined() && divisor.is_cpu()) {
    // Its value is at hand: a fill instead of a copy from pageable memory, which would wait.
    const double value = divisor.item().toDouble();
    return at::full({}, value == 0 ? 0.0 : 1 / value, options);
  }
  const at::Tensor total = divisor.defined()
                               ? divisor.to(options, /*non_blocking=*/true).reshape({})
                               : SupervisedWeight(target, class_weight, ignore_index).to(dtype);
  return total.reciprocal().masked_fill_(total.eq(0), 0);
}

at::Tensor Reduce(const at::Tensor& row_values, const at::Tensor& inverse_divisor,
                  int64_t reduction) {
  if (reduction == kReduceNone) return row_values;
  at::Tensor sum = row_values.sum();
  return reduction == kReduceMean ? sum.mul_(inverse_divisor) : sum;
}

at::Tensor RowScale(const at::Tensor& dloss, const at::Tensor& inverse_divisor, int64_t reduction,
                    int64_t rows, at::ScalarType dtype) {
  at::Tensor scale = dloss.to(dtype);
  if (reduction == kReduceNone) return scale;
  return (reduction == kReduceMean ? scale.mul(inverse_divisor) : scale).expand({rows});
}

}  // namespace fuseboard::torch_binding
