#include "kernels/tvd/tvd_call.h"

#include "kernels/common/row_loss_call.h"

namespace fuseboard::tvd {

const char* RejectForward(const FbCall* call, int32_t device_type) {
  return row_loss::CheckForward(call, device_type, sizeof(FbTvdParams));
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  return row_loss::CheckBackward(call, device_type, sizeof(FbTvdParams));
}

}  // namespace fuseboard::tvd
