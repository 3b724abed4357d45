#include "kernels/torch/cross_entropy_targets.h"

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

at::Tensor RowScale(const at::Tensor& dloss, const at::Tensor& inverse_divisor, int64_t reduction,
                    int64_t rows, at::ScalarType dtype) {
  at::Tensor scale = dloss.to(dtype);
  if (reduction == kReduceNone) return scale;
  return (reduction == kReduceMean ? scale.mul(inverse_divisor) : scale).expand({rows});
}

}  // namespace fuseboard::torch_binding
