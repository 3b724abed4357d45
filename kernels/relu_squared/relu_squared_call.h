// When a relu_squared call is refused.

#ifndef KERNELS_RELU_SQUARED_RELU_SQUARED_CALL_H_
#define KERNELS_RELU_SQUARED_RELU_SQUARED_CALL_H_

#include "kernels/abi/relu_squared.h"

namespace fuseboard::relu_squared {

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

}  // namespace fuseboard::relu_squared

#endif  // KERNELS_RELU_SQUARED_RELU_SQUARED_CALL_H_
