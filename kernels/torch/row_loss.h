// What kl_div, jsd and tvd share: losses that are an elementwise function of input and target, with
// all reductions, by a kernel library (kernels/common/row_loss_call.h) or by ATen.
//
// With a reduction the forward also makes the gradient, if one is asked for, and the backward
// scales it: each input is read once. Not so in f16, where a gradient over the number of elements
// would round to 0 before a loss scale reaches it, and not without a reduction: then the backward
// reads the inputs again.

#ifndef KERNELS_TORCH_ROW_LOSS_H_
#define KERNELS_TORCH_ROW_LOSS_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "kernels/torch/cross_entropy_options.h"  // Reduction
#include "kernels/torch/operation.h"

namespace fuseboard::torch_binding {

// A further Reduction: the sum over the number of examples. These are the rows that are not
// ignored; without labels, what an example is stays with the operation.
inline constexpr int64_t kReduceBatchMean = 3;

// An operation's function of elements, of tensors in the accumulation type.
class RowLossFunction {
 public:
  RowLossFunction() = default;
  RowLossFunction(const RowLossFunction&) = delete;
  RowLossFunction& operator=(const RowLossFunction&) = delete;
  virtual ~RowLossFunction() = default;

  [[nodiscard]] virtual at::Tensor Loss(const at::Tensor& input,
                                        const at::Tensor& target) const = 0;
  // The derivative by input.
  [[nodiscard]] virtual at::Tensor Gradient(const at::Tensor& input,
                                            const at::Tensor& target) const = 0;
};

// One call. input and target [..., cols] of one shape.
struct RowLoss {
  Operation operation;
  const at::Tensor& input;
  const at::Tensor& target;
  at::Tensor label{};  // Undefined, or input's shape without the last dimension.
  int64_t ignore_index = 0;
  int64_t examples = 0;  // What kReduceBatchMean divides by without labels.
  int64_t reduction;
  int64_t kernel;
  const void* params;  // The library's parameter struct.
  const RowLossFunction& function;
};

// What a pass over the elements reads and writes; undefined: absent or not wanted.
struct RowLossPass {
  at::Tensor scale{};   // [rows], any stride: the gradient of each row's loss.
  at::Tensor dloss{};   // Of input's shape, f32: the gradient of each element's loss.
  at::Tensor loss{};    // [rows]
  at::Tensor losses{};  // Of input's shape.
  at::Tensor dinput{};  // Of input's shape, contiguous.
};

// One pass, by the library or by ATen; `reduction` and `examples` are not looked at. Returns null
// if the library did the work, else why not. REQUIRES: input's device is current; label has one
// dimension.
const char* RunRowLoss(const RowLoss& row_loss, const RowLossPass& pass);

// The number of rows of [..., cols].
int64_t RowsOf(const at::Tensor& input);

// Errors: c10::Error naming the operation, the field and its value.
void CheckRowLoss(const char* operation, const at::Tensor& input, const at::Tensor& target,
                  const std::optional<at::Tensor>& label, int64_t reduction);

// Whether the forward makes the gradient, if one is wanted.
bool MakesGradientInForward(at::ScalarType dtype, int64_t reduction);

// loss f32 (f64 for f64 inputs), [] or input's shape; dinput, [0] if the forward does not make it;
// inverse_divisor, 0-dim for both means, else [0].
using RowLossResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
RowLossResult RowLossForward(const RowLoss& row_loss, bool need_dinput);
RowLossResult RowLossForwardMeta(const at::Tensor& input, const at::Tensor& target,
                                 int64_t reduction, bool need_dinput);

// dinput where the forward did not make it.
at::Tensor RowLossBackward(const RowLoss& row_loss, const at::Tensor& dloss,
                           const at::Tensor& inverse_divisor);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_ROW_LOSS_H_
