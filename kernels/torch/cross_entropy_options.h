// The numbers that choose a cross entropy, as cross_entropy and fused_linear_cross_entropy take
// them.

#ifndef KERNELS_TORCH_CROSS_ENTROPY_OPTIONS_H_
#define KERNELS_TORCH_CROSS_ENTROPY_OPTIONS_H_

#include <c10/util/Exception.h>

#include <cstdint>

#include "kernels/abi/cross_entropy.h"

namespace fuseboard::torch_binding {

enum Reduction : int64_t { kReduceNone = 0, kReduceMean = 1, kReduceSum = 2 };

struct CrossEntropyOptions {
  int64_t ignore_index;
  double label_smoothing;
  double softcap;
  double logit_scale;
  double z_loss_scale;
  bool z_loss_in_loss;
  int64_t reduction;

  // Errors: c10::Error naming `operation`, the field and its value.
  void Check(const char* operation) const {
    TORCH_CHECK(label_smoothing >= 0 && label_smoothing <= 1, operation, ": label_smoothing is ",
                label_smoothing, ", want a number in [0, 1]");
    TORCH_CHECK(softcap >= 0, operation, ": softcap is ", softcap, ", want 0 (none) or more");
    TORCH_CHECK(logit_scale != 0, operation, ": logit_scale is 0, want another number");
    TORCH_CHECK(z_loss_scale >= 0, operation, ": z_loss_scale is ", z_loss_scale,
                ", want 0 or more");
    TORCH_CHECK(reduction >= kReduceNone && reduction <= kReduceSum, operation, ": reduction is ",
                reduction, ", want 0 (none), 1 (mean) or 2 (sum)");
  }

  FbCrossEntropyParams ToParams() const {
    return {.struct_size = sizeof(FbCrossEntropyParams),
            .z_loss_in_loss = z_loss_in_loss ? 1 : 0,
            .ignore_index = ignore_index,
            .label_smoothing = label_smoothing,
            .softcap = softcap,
            .z_loss_scale = z_loss_scale,
            .logit_scale = logit_scale};
  }
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_CROSS_ENTROPY_OPTIONS_H_
