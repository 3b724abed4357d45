// A jsd call as its kernels see it. The tensors are those of every row loss
// (kernels/common/row_loss_call.h); from logits likewise, without `losses`.

#ifndef KERNELS_JSD_JSD_CALL_H_
#define KERNELS_JSD_JSD_CALL_H_

#include "kernels/abi/jsd.h"
#include "kernels/abi/kernel_abi.h"
#include "kernels/common/row_loss_call.h"

namespace fuseboard::jsd {

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

inline bool IsFromLogits(const FbCall& call) { return call.num_outputs == 2; }

// FbEntry::workspace_bytes of a forward: `elementwise` is that of one from log-probabilities.
template <uint64_t (*kElementwise)(const FbCall*)>
uint64_t ForwardWorkspaceBytes(const FbCall* call) {
  return IsFromLogits(*call) ? 0 : kElementwise(call);
}

// REQUIRES: the call is a forward from logits that was not rejected.
row_loss::Call LogitsCallOf(const FbCall& call);

// REQUIRES: the call was not rejected.
inline const FbJsdParams& ParamsOf(const FbCall& call) {
  return *static_cast<const FbJsdParams*>(call.params);
}

// The weights of target and input in their mixture. They add up to 1 in float too, so that the
// loss of two equal elements is exactly 0, and neither is 0. REQUIRES: 0 < beta < 1.
struct Weights {
  float target;
  float input;
};
inline Weights WeightsOf(double beta) {
  const bool target_is_smaller = beta <= 0.5;
  const double smaller = target_is_smaller ? beta : 1.0 - beta;
  // At least the smallest normal number, below which a logarithm of the GPU is -inf.
  const auto rounded = static_cast<float>(smaller < 0x1p-126 ? 0x1p-126 : smaller);
  const auto rest = static_cast<float>(1.0 - static_cast<double>(rounded));
  return target_is_smaller ? Weights{rounded, rest} : Weights{rest, rounded};
}

}  // namespace fuseboard::jsd

#endif  // KERNELS_JSD_JSD_CALL_H_
