#include "kernels/torch/fused_linear_jsd.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "kernels/abi/jsd.h"
#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/device.h"
#include "kernels/torch/jsd_function.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/row_loss.h"
#include "kernels/torch/row_totals.h"
#include "kernels/torch/row_view.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;

// Of a temporary in the accumulation type; four are alive at once, more in jsd's composite.
// 64 MiB is 130 rows of a vocabulary of 128,256: a row for each multiprocessor.
constexpr int64_t kBlockBytes = int64_t{64} << 20;

int64_t ElementBytes(const Tensor& tensor) { return static_cast<int64_t>(tensor.element_size()); }

at::ScalarType AccumulationOf(const LinearJsdInputs& inputs) {
  return AccumulationType(
      at::promoteTypes(inputs.student.hidden.scalar_type(), inputs.teacher.hidden.scalar_type()));
}

SupervisedRows RowsOf(const LinearJsdInputs& inputs) {
  return inputs.label.defined() ? SupervisedRows(inputs.label, inputs.ignore_index)
                                : SupervisedRows(inputs.student.hidden.size(0));
}

Tensor InverseDivisorOf(const LinearJsdInputs& inputs, at::ScalarType dtype) {
  if (inputs.label.defined()) {
    return InverseDivisor(inputs.label, /*class_weight=*/{}, /*divisor=*/{}, inputs.ignore_index,
                          dtype, inputs.kernel);
  }
  const int64_t rows = inputs.student.hidden.size(0);
  return at::full({}, rows == 0 ? 0.0 : 1.0 / static_cast<double>(rows),
                  inputs.student.hidden.options().dtype(dtype));
}

// One pass over all rows that count.
class Pass {
 public:
  // `scale`: of the gradient of each row's loss.
  Pass(const LinearJsdInputs& inputs, const SupervisedRows& rows, const Tensor& scale)
      : inputs_(inputs),
        rows_(rows),
        scale_(scale),
        function_(inputs.beta),
        params_{sizeof(FbJsdParams), inputs.beta, inputs.ignore_index, inputs.temperature},
        dtype_(AccumulationOf(inputs)),
        vocab_(inputs.student.weight.size(0)),
        block_rows_(BlockRows()),
        head_(inputs.student, rows, RowBytesPerClass(inputs)) {
    const ChunkPlan& plan = head_.plan();
    teacher_ = Empty({plan.rows, plan.row_step}, inputs.teacher.hidden.scalar_type(),
                     inputs.teacher.hidden.device());
    // While a graph is captured ignored rows are there, and masked.
    if (inputs.label.defined()) label_ = rows.Take(inputs.label, 0, rows.count());
  }

  // Writes the loss of each row that counts, if defined.
  void Run(const Tensor& loss) {
    const char* reason = head_.ForEach([&](const Tensor& logits, int64_t begin, int64_t count) {
      const Tensor hidden = rows_.Take(inputs_.teacher.hidden, begin, count);
      const Tensor targets =
          LinearLogits(teacher_, hidden, inputs_.teacher.weight, inputs_.teacher.bias);
      // The weight's gradient, which is made next, may have its memory.
      if (begin + count == rows_.count()) teacher_.reset();
      const Tensor label = Part(label_, begin, count);
      const Tensor chunk_loss = Part(loss, begin, count);
      if (CompareLogits(logits, targets, label, chunk_loss) == nullptr) return kDone;
      return CompareInBlocks(logits, targets, label, chunk_loss);
    });
    Counters::Instance().Add(Operation::kFusedLinearJsd, reason);
  }

  ChunkedHead& head() { return head_; }

 private:
  static constexpr const char* kDone = nullptr;  // By a kernel library.

  [[nodiscard]] int64_t BlockRows() const {
    const auto bytes = static_cast<int64_t>(c10::elementSize(dtype_));
    return std::max<int64_t>(1, kBlockBytes / (std::max<int64_t>(1, vocab_) * bytes));
  }

  static Tensor Part(const Tensor& rows, int64_t begin, int64_t count) {
    return rows.defined() ? rows.narrow(0, begin, count) : rows;
  }

  // The rows of a chunk by the jsd library alone: their loss, and in place of the student's logits
  // the gradient of it. Returns null, or why it does not; then nothing was written.
  const char* CompareLogits(const Tensor& logits, const Tensor& targets, const Tensor& label,
                            const Tensor& loss) const {
    if (inputs_.kernel == kNoKernel) return kNoKernelReason;
    const auto view_of = [](const Tensor& t) { return t.defined() ? ViewOf(t) : kAbsent; };
    const FbTensor student = ViewOf(logits);
    const bool needs_gradient = inputs_.student.needs_gradient();
    const Tensor scale = needs_gradient ? scale_.expand({logits.size(0)}) : Tensor();
    KernelCall call(Operation::kJsd, inputs_.kernel, FB_FORWARD, logits.device());
    call.Inputs({student, ViewOf(targets), view_of(scale), view_of(label)});
    call.Outputs({view_of(loss), needs_gradient ? student : kAbsent});
    return call.Run(&params_);
  }

  // Likewise, a few rows at a time, with their log-softmaxes between.
  const char* CompareInBlocks(const Tensor& logits, const Tensor& targets, const Tensor& label,
                              const Tensor& loss) const {
    const char* first_reason = nullptr;
    const int64_t count = logits.size(0);
    for (int64_t at = 0; at < count; at += block_rows_) {
      const int64_t block = std::min(block_rows_, count - at);
      const char* why = Compare(logits.narrow(0, at, block), targets.narrow(0, at, block),
                                Part(label, at, block), Part(loss, at, block));
      if (first_reason == nullptr) first_reason = why;
    }
    return first_reason;
  }

  [[nodiscard]] Tensor LogSoftmax(const Tensor& logits) const {
    Tensor wide = logits.to(dtype_);
    if (inputs_.temperature != 1) wide = wide.div(inputs_.temperature);
    return at::_log_softmax(wide, 1, /*half_to_float=*/false);
  }

  // Some rows of a chunk: their loss, and in place of the student's logits the gradient of it.
  const char* Compare(const Tensor& logits, const Tensor& targets, const Tensor& label,
                      const Tensor& loss) const {
    const Tensor x = LogSoftmax(logits);
    Tensor y = LogSoftmax(targets);
    RowLossPass pass{.loss = loss};
    if (inputs_.student.needs_gradient()) {
      pass.scale = scale_.expand({x.size(0)});
      pass.dinput = Empty(x.sizes(), dtype_, x.device());
    }
    const char* reason = RunRowLoss({.operation = Operation::kJsd,
                                     .input = x,
                                     .target = y,
                                     .label = label,
                                     .ignore_index = inputs_.ignore_index,
                                     .reduction = kReduceSum,
                                     .kernel = inputs_.kernel,
                                     .params = &params_,
                                     .function = function_},
                                    pass);
    if (!pass.dinput.defined()) return reason;
    y.reset();
    Tensor gradient = at::_log_softmax_backward_data(pass.dinput, x, 1, dtype_);
    if (inputs_.temperature != 1) gradient.div_(inputs_.temperature);
    if (label.defined()) {  // What is not finite in an ignored row would make NaN of its 0.
      gradient.masked_fill_(label.eq(inputs_.ignore_index).unsqueeze(1), 0);
    }
    logits.copy_(gradient);
    return reason;
  }

  const LinearJsdInputs& inputs_;
  const SupervisedRows& rows_;
  Tensor scale_;
  JsdFunction function_;
  FbJsdParams params_;
  at::ScalarType dtype_;
  int64_t vocab_;
  int64_t block_rows_;
  ChunkedHead head_;
  Tensor teacher_;  // Logits of a chunk, as the student's.
  Tensor label_;    // Of the rows that count.
};

}  // namespace

int64_t RowBytesPerClass(const LinearJsdInputs& inputs) {
  return ElementBytes(inputs.student.hidden) + ElementBytes(inputs.teacher.hidden);
}

LinearJsdOutputs LinearJsdForward(const LinearJsdInputs& inputs) {
  const AutocastOff autocast_off;
  SupervisedRows rows = RowsOf(inputs);
  const at::ScalarType dtype = AccumulationOf(inputs);
  const Tensor inverse = InverseDivisorOf(inputs, dtype);
  rows.Wait();
  const Tensor loss = Empty({rows.count()}, dtype, inputs.student.hidden.device());
  Pass pass(inputs, rows, inverse);
  pass.Run(loss);
  const bool defer = inputs.student.defer;
  return {.loss = ScaledSum(loss, inverse, inputs.kernel),
          .inverse_divisor = inverse,
          .gradients = defer ? LinearHeadGradients{} : pass.head().Finish(),
          .deferred = defer ? pass.head().TakeDeferred() : DeferredHead{}};
}

LinearHeadGradients LinearJsdBackward(const LinearJsdInputs& inputs, const Tensor& scale) {
  const AutocastOff autocast_off;
  SupervisedRows rows = RowsOf(inputs);
  rows.Wait();
  Pass pass(inputs, rows, scale);
  pass.Run(/*loss=*/{});
  return pass.head().Finish();
}

}  // namespace fuseboard::torch_binding
