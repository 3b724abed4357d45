// A swiglu call: its parameters, and when it is refused.

#ifndef KERNELS_SWIGLU_SWIGLU_CALL_H_
#define KERNELS_SWIGLU_SWIGLU_CALL_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/abi/swiglu.h"

namespace fuseboard::swiglu {

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// REQUIRES: the call was not rejected.
inline const FbSwigluParams& ParamsOf(const FbCall& call) {
  return *static_cast<const FbSwigluParams*>(call.params);
}

}  // namespace fuseboard::swiglu

#endif  // KERNELS_SWIGLU_SWIGLU_CALL_H_
