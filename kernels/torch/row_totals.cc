#include "kernels/torch/row_totals.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "kernels/torch/cross_entropy_options.h"
#include "kernels/torch/device.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/row_view.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;

// The library's entry for f32 on a GPU; null: ATen does it.
const FbEntry* EntryFor(const Tensor& rows, at::ScalarType dtype, int64_t kernel,
                        FbEntry (FbKernel::*field)[FB_NUM_DEVICE_TYPES]) {
  if (kernel == kNoKernel || !rows.is_cuda() || dtype != at::kFloat) return nullptr;
  return OptionalEntryOf(KernelTable::Instance().Find(kernel), field, FB_CUDA);
}

FbTensor FlatOrAbsent(const Tensor& tensor) {
  return tensor.defined() ? FlatViewOf(tensor) : kAbsent;
}

// Undefined if no library does it.
Tensor InverseDivisorByKernel(const Tensor& target, const Tensor& class_weight,
                              int64_t ignore_index, at::ScalarType dtype, int64_t kernel) {
  const FbEntry* entry = EntryFor(target, dtype, kernel, &FbKernel::inverse_divisor);
  if (entry == nullptr) return {};
  Tensor inverse = Empty({}, at::kFloat, target.device());
  KernelCall call(KernelTable::Instance().Find(kernel), *entry, target.device());
  call.Inputs({ViewOf(target), FlatOrAbsent(class_weight)});
  call.Outputs({FlatViewOf(inverse)});
  return call.Run(&ignore_index) == nullptr ? inverse : Tensor();
}

// Whether a library did it. `z_total` undefined: not wanted.
bool TotalByKernel(const Tensor& loss, const Tensor& z_loss, const Tensor& factor,
                   const Tensor& total, const Tensor& z_total, int64_t kernel) {
  const FbEntry* entry = EntryFor(loss, loss.scalar_type(), kernel, &FbKernel::total);
  if (entry == nullptr) return false;
  KernelCall call(KernelTable::Instance().Find(kernel), *entry, loss.device());
  call.Inputs({FlatViewOf(loss), FlatOrAbsent(z_loss), FlatOrAbsent(factor)});
  call.Outputs({FlatViewOf(total), FlatOrAbsent(z_total)});
  return call.Run(nullptr) == nullptr;
}

Tensor SupervisedWeight(const Tensor& target, const Tensor& class_weight, int64_t ignore_index) {
  const Tensor valid = target.ne(ignore_index);
  if (!class_weight.defined()) return valid.sum();
  // An out-of-range target has made its row NaN already; here it must only not be read.
  const Tensor column = target.to(at::kLong).clamp(0, class_weight.size(0) - 1);
  return class_weight.take(column).mul_(valid).sum();
}

Tensor ScaledSumByAten(const Tensor& values, const Tensor& factor) {
  Tensor sum = values.sum();
  return factor.defined() ? sum.mul_(factor) : sum;
}

}  // namespace

Tensor InverseDivisor(const Tensor& target, const Tensor& class_weight, const Tensor& divisor,
                      int64_t ignore_index, at::ScalarType dtype, int64_t kernel) {
  const at::TensorOptions options = target.options().dtype(dtype);
  if (divisor.defined() && divisor.is_cpu()) {
    // Its value is at hand: a fill instead of a copy from pageable memory, which would wait.
    const double value = divisor.item().toDouble();
    return at::full({}, value == 0 ? 0.0 : 1 / value, options);
  }
  if (!divisor.defined()) {
    Tensor inverse = InverseDivisorByKernel(target, class_weight, ignore_index, dtype, kernel);
    if (inverse.defined()) return inverse;
  }
  const Tensor total = divisor.defined()
                           ? divisor.to(options, /*non_blocking=*/true).reshape({})
                           : SupervisedWeight(target, class_weight, ignore_index).to(dtype);
  return total.reciprocal().masked_fill_(total.eq(0), 0);
}

RowTotals Reduce(const Tensor& loss, const Tensor& z_loss, const Tensor& inverse_divisor,
                 int64_t reduction, int64_t kernel) {
  if (reduction == kReduceNone) {
    return {loss, z_loss.defined() ? z_loss : at::zeros(loss.sizes(), loss.options())};
  }
  const Tensor factor = reduction == kReduceMean ? inverse_divisor : Tensor();
  const RowTotals totals = {Empty({}, loss.scalar_type(), loss.device()),
                            Empty({}, loss.scalar_type(), loss.device())};
  if (TotalByKernel(loss, z_loss, factor, totals.loss, totals.z_loss, kernel)) return totals;
  return {ScaledSumByAten(loss, factor),
          z_loss.defined() ? ScaledSumByAten(z_loss, factor) : at::zeros({}, loss.options())};
}

Tensor ScaledSum(const Tensor& values, const Tensor& factor, int64_t kernel) {
  const Tensor total = Empty({}, values.scalar_type(), values.device());
  if (TotalByKernel(values, Tensor(), factor, total, Tensor(), kernel)) return total;
  return ScaledSumByAten(values, factor);
}

}  // namespace fuseboard::torch_binding
