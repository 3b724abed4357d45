#include "kernels/torch/row_loss.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/row_totals.h"
#include "kernels/torch/row_view.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;

// Three or four temporaries of this size are alive at once in a composite.
constexpr int64_t kBlockBytes = int64_t{16} << 20;

at::ScalarType AccumulationOf(const Tensor& input, const Tensor& target) {
  return AccumulationType(at::promoteTypes(input.scalar_type(), target.scalar_type()));
}

FbTensor ViewOrAbsent(const Tensor& tensor) { return tensor.defined() ? ViewOf(tensor) : kAbsent; }

// Of a tensor that is contiguous.
FbTensor RowsOrAbsent(const Tensor& tensor) {
  return tensor.defined() ? RowView(tensor).view() : kAbsent;
}

const char* RunKernel(const RowLoss& r, const RowLossPass& pass) {
  if (r.kernel == kNoKernel) return kNoKernelReason;
  if (r.input.size(-1) == 0) return "input has no columns";
  const RowView input(r.input);
  const RowView target(r.target);
  const FbTensor label = ViewOrAbsent(r.label);
  if (pass.dloss.defined()) {
    const RowView dloss(pass.dloss);
    KernelCall call(r.operation, r.kernel, FB_BACKWARD, r.input.device());
    call.Inputs({dloss.view(), input.view(), target.view(), label});
    call.Outputs({RowsOrAbsent(pass.dinput)});
    return call.Run(r.params);
  }
  KernelCall call(r.operation, r.kernel, FB_FORWARD, r.input.device());
  call.Inputs({input.view(), target.view(), ViewOrAbsent(pass.scale), label});
  call.Outputs({ViewOrAbsent(pass.loss), RowsOrAbsent(pass.losses), RowsOrAbsent(pass.dinput)});
  return call.Run(r.params);
}

// By ATen, some rows at a time.
void RunComposite(const RowLoss& r, const RowLossPass& pass) {
  const AutocastOff autocast_off;
  const at::ScalarType dtype = AccumulationOf(r.input, r.target);
  const int64_t rows = RowsOf(r.input);
  const int64_t cols = r.input.size(-1);
  const auto matrix = [&](const Tensor& t) {
    return t.defined() ? t.reshape({rows, cols}) : Tensor();
  };
  const Tensor input = matrix(r.input);
  const Tensor target = matrix(r.target);
  const Tensor dloss = matrix(pass.dloss);
  const Tensor losses = matrix(pass.losses);
  const Tensor dinput = matrix(pass.dinput);
  const int64_t row_bytes =
      std::max<int64_t>(1, cols) * static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t step = std::max<int64_t>(1, kBlockBytes / row_bytes);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const Tensor x = input.narrow(0, begin, count).to(dtype);
    const Tensor y = target.narrow(0, begin, count).to(dtype);
    Tensor ignored;
    if (r.label.defined()) {
      ignored = r.label.narrow(0, begin, count).eq(r.ignore_index).unsqueeze(1);
    }
    const auto masked = [&](const Tensor& elements) {
      return ignored.defined() ? elements.masked_fill(ignored, 0) : elements;
    };
    if (pass.loss.defined() || losses.defined()) {
      const Tensor elements = masked(r.function.Loss(x, y));
      if (losses.defined()) losses.narrow(0, begin, count).copy_(elements);
      if (pass.loss.defined()) pass.loss.narrow(0, begin, count).copy_(elements.sum(1));
    }
    if (!dinput.defined()) continue;
    Tensor gradient = r.function.Gradient(x, y);
    if (pass.scale.defined()) {
      gradient = gradient.mul(pass.scale.narrow(0, begin, count).unsqueeze(1));
    }
    if (dloss.defined()) gradient = gradient.mul(dloss.narrow(0, begin, count));
    dinput.narrow(0, begin, count).copy_(masked(gradient));
  }
}

void Run(const RowLoss& r, const RowLossPass& pass) {
  Counters::Instance().Add(r.operation, RunRowLoss(r, pass));
}

// 1 / what a mean divides by, 0-dim. Without labels the number is known here: with no examples the
// mean is 0 / 0, as in torch. With labels and none that counts, it is 0, and so is the loss.
Tensor InverseDivisorOf(const RowLoss& r, at::ScalarType dtype) {
  const bool per_element = r.reduction == kReduceMean;
  if (!r.label.defined()) {
    const auto count = static_cast<double>(per_element ? r.input.numel() : r.examples);
    return at::full({}, 1.0 / count, r.input.options().dtype(dtype));
  }
  Tensor inverse = InverseDivisor(r.label, Tensor(), Tensor(), r.ignore_index, dtype, r.kernel);
  const auto cols = static_cast<double>(std::max<int64_t>(1, r.input.size(-1)));
  return per_element ? inverse.div_(cols) : inverse;
}

bool IsMean(int64_t reduction) { return reduction == kReduceMean || reduction == kReduceBatchMean; }

Tensor FlatLabel(const Tensor& label) {
  return label.defined() ? label.reshape({label.numel()}) : label;
}

}  // namespace

const char* RunRowLoss(const RowLoss& row_loss, const RowLossPass& pass) {
  const char* reason = RunKernel(row_loss, pass);
  if (reason != nullptr) RunComposite(row_loss, pass);
  return reason;
}

int64_t RowsOf(const Tensor& input) {
  return c10::multiply_integers(input.sizes().slice(0, input.dim() - 1));
}

void CheckRowLoss(const char* operation, const Tensor& input, const Tensor& target,
                  const std::optional<Tensor>& label, int64_t reduction) {
  CheckFloating(operation, "input", input);
  CheckFloating(operation, "target", target);
  TORCH_CHECK(input.dim() >= 1, operation, ": input has 0 dimensions, want at least 1");
  TORCH_CHECK(input.dim() == target.dim(), operation, ": input has ", input.dim(),
              " dimensions but target has ", target.dim());
  for (int64_t i = 0; i < input.dim(); ++i) {
    TORCH_SYM_CHECK(input.sym_size(i).sym_eq(target.sym_size(i)), operation, ": input has shape ",
                    input.sym_sizes(), " but target has shape ", target.sym_sizes());
  }
  CheckSameDevice(operation, "input", input, "target", target);
  TORCH_CHECK(reduction >= kReduceNone && reduction <= kReduceBatchMean, operation,
              ": reduction is ", reduction, ", want 0 (none), 1 (mean), 2 (sum) or 3 (batchmean)");
  if (!label.has_value()) return;
  TORCH_CHECK(label->scalar_type() == at::kLong || label->scalar_type() == at::kInt, operation,
              ": label has dtype ", label->scalar_type(), ", want Long or Int");
  CheckSameDevice(operation, "input", input, "label", *label);
  TORCH_CHECK(label->dim() == input.dim() - 1, operation, ": label has ", label->dim(),
              " dimensions, want ", input.dim() - 1);
  for (int64_t i = 0; i < label->dim(); ++i) {
    TORCH_SYM_CHECK(label->sym_size(i).sym_eq(input.sym_size(i)), operation, ": label has shape ",
                    label->sym_sizes(), " but input has shape ", input.sym_sizes());
  }
}

bool MakesGradientInForward(at::ScalarType dtype, int64_t reduction) {
  return reduction != kReduceNone && dtype != at::kHalf;
}

RowLossResult RowLossForward(const RowLoss& row_loss, bool need_dinput) {
  RowLoss r = row_loss;
  r.label = FlatLabel(row_loss.label);
  const c10::DeviceGuard guard(r.input.device());
  const AutocastOff autocast_off;
  const c10::Device device = r.input.device();
  const at::ScalarType dtype = AccumulationOf(r.input, r.target);
  RowLossPass pass;
  if (r.reduction == kReduceNone) {
    pass.losses = Empty(r.input.sizes(), dtype, device);
    Run(r, pass);
    return {std::move(pass.losses), Empty({0}, r.input.scalar_type(), device),
            Empty({0}, dtype, device)};
  }
  Tensor inverse;
  if (IsMean(r.reduction)) inverse = InverseDivisorOf(r, dtype);
  pass.loss = Empty({RowsOf(r.input)}, dtype, device);
  if (need_dinput && MakesGradientInForward(r.input.scalar_type(), r.reduction)) {
    pass.dinput = Empty(r.input.sizes(), r.input.scalar_type(), device);
    if (inverse.defined()) pass.scale = inverse.expand({RowsOf(r.input)});
  }
  Run(r, pass);
  Tensor loss = ScaledSum(pass.loss, inverse, r.kernel);
  if (!pass.dinput.defined()) pass.dinput = Empty({0}, r.input.scalar_type(), device);
  if (!inverse.defined()) inverse = Empty({0}, dtype, device);
  return {std::move(loss), std::move(pass.dinput), std::move(inverse)};
}

RowLossResult RowLossForwardMeta(const Tensor& input, const Tensor& target, int64_t reduction,
                                 bool need_dinput) {
  const auto options = input.options().dtype(AccumulationOf(input, target));
  const auto scalar = input.sym_sizes().slice(0, 0);
  const bool makes_dinput = need_dinput && MakesGradientInForward(input.scalar_type(), reduction);
  return {at::empty_symint(reduction == kReduceNone ? input.sym_sizes() : scalar, options),
          makes_dinput ? at::empty_symint(input.sym_sizes(), input.options())
                       : at::empty({0}, input.options()),
          IsMean(reduction) ? at::empty_symint(scalar, options) : at::empty({0}, options)};
}

Tensor RowLossBackward(const RowLoss& row_loss, const Tensor& dloss,
                       const Tensor& inverse_divisor) {
  RowLoss r = row_loss;
  r.label = FlatLabel(row_loss.label);
  CheckSameDevice(NameOf(r.operation), "input", r.input, "the gradient", dloss);
  const c10::DeviceGuard guard(r.input.device());
  const AutocastOff autocast_off;
  const at::ScalarType dtype = AccumulationOf(r.input, r.target);
  RowLossPass pass;
  pass.dinput = Empty(r.input.sizes(), r.input.scalar_type(), r.input.device());
  if (r.reduction != kReduceNone) {
    const Tensor scale = dloss.to(dtype);
    pass.scale =
        (IsMean(r.reduction) ? scale.mul(inverse_divisor) : scale).expand({RowsOf(r.input)});
  } else if (r.input.size(-1) > 1 && dloss.stride(-1) == 0) {
    // One number for each row, as the gradient of a sum is: no matrix of it is made.
    pass.scale = dloss.select(-1, 0).reshape({RowsOf(r.input)}).to(dtype);
  } else {
    pass.dloss = dloss.to(dtype);
  }
  Run(r, pass);
  return std::move(pass.dinput);
}

}  // namespace fuseboard::torch_binding
