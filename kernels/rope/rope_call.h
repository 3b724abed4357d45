// A rope call as its kernels see it: checked once, then read by name instead of by index.

#ifndef KERNELS_ROPE_ROPE_CALL_H_
#define KERNELS_ROPE_ROPE_CALL_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/abi/rope.h"
#include "kernels/common/reject.h"
#include "kernels/common/rotary.h"

namespace fuseboard::rope {

// in = {q, k}, out = {q', k'}; in the backward their gradients, with rotation.inverse. Where one is
// absent its count is 0.
struct Call {
  Heads in[2];
  Heads out[2];
  Rotation rotation;
  int32_t dtype;
};

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// No heads at all where q and k are both absent. REQUIRES: the call was not rejected.
Call CallOf(const FbCall& call, FbPhase phase);

}  // namespace fuseboard::rope

#endif  // KERNELS_ROPE_ROPE_CALL_H_
