// A tvd call as its kernels see it. The tensors are those of every row loss
// (kernels/common/row_loss_call.h).

#ifndef KERNELS_TVD_TVD_CALL_H_
#define KERNELS_TVD_TVD_CALL_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/abi/tvd.h"

namespace fuseboard::tvd {

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// REQUIRES: the call was not rejected.
inline const FbTvdParams& ParamsOf(const FbCall& call) {
  return *static_cast<const FbTvdParams*>(call.params);
}

}  // namespace fuseboard::tvd

#endif  // KERNELS_TVD_TVD_CALL_H_
