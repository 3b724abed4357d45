// A geglu call: its parameters, and when it is refused.

#ifndef KERNELS_GEGLU_GEGLU_CALL_H_
#define KERNELS_GEGLU_GEGLU_CALL_H_

#include "kernels/abi/geglu.h"
#include "kernels/abi/kernel_abi.h"

namespace fuseboard::geglu {

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// REQUIRES: the call was not rejected.
inline const FbGegluParams& ParamsOf(const FbCall& call) {
  return *static_cast<const FbGegluParams*>(call.params);
}

}  // namespace fuseboard::geglu

#endif  // KERNELS_GEGLU_GEGLU_CALL_H_
