// A call of a loss that is an elementwise function of two matrices, summed over each row: kl_div,
// jsd, tvd. Checked once, then read by name instead of by index. The tensors are those of
// kernels/abi/kl_div.h for all of them; what the function is stays with the operation.

#ifndef KERNELS_COMMON_ROW_LOSS_CALL_H_
#define KERNELS_COMMON_ROW_LOSS_CALL_H_

#include <stdint.h>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::row_loss {

// Strides count elements. What the call leaves out is null.
struct Call {
  const void* input;
  const void* target;
  const float* dloss;  // Backward: of each element.
  const float* scale;  // Forward: of each row, for dinput; null means 1.
  const void* label;
  float* loss;    // Of each row.
  float* losses;  // Of each element.
  void* dinput;
  int64_t input_stride;
  int64_t target_stride;
  int64_t dloss_stride;
  int64_t scale_stride;
  int64_t label_stride;
  int64_t losses_stride;
  int64_t dinput_stride;
  int64_t rows;
  int64_t ignore_index;
  int32_t cols;
  int32_t dtype;  // Of input, target and dinput, an FbDType.
  bool label_is_i64;
};

// What a launch computes.
enum class Mode : uint8_t {
  kLoss,      // loss
  kGradient,  // dinput, and loss unless it is null
  kElements,  // losses
  kBackward,  // dinput from dloss
};

// FbEntry::reject_reason of both phases, apart from what the parameters, which are `params_bytes`
// long, hold.
const char* CheckForward(const FbCall* call, int32_t device_type, uint32_t params_bytes);
const char* CheckBackward(const FbCall* call, int32_t device_type, uint32_t params_bytes);

// REQUIRES: the call was not rejected. `ignore_index` is read only if there is a label.
Call ForwardCallOf(const FbCall& call, int64_t ignore_index);
Call BackwardCallOf(const FbCall& call, int64_t ignore_index);

inline Mode ModeOf(const Call& call) {
  if (call.dloss != nullptr) return Mode::kBackward;
  if (call.losses != nullptr) return Mode::kElements;
  return call.dinput != nullptr ? Mode::kGradient : Mode::kLoss;
}

// Whether there is nothing to compute.
inline bool IsEmpty(const Call& call) {
  if (call.rows == 0) return true;
  return call.loss == nullptr && call.losses == nullptr && call.dinput == nullptr;
}

}  // namespace fuseboard::row_loss

#endif  // KERNELS_COMMON_ROW_LOSS_CALL_H_
