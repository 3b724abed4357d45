#include "kernels/jsd/jsd_call.h"

#include "kernels/common/reject.h"
#include "kernels/common/row_loss_call.h"

namespace fuseboard::jsd {
namespace {

const char* CheckParams(const FbJsdParams& params) {
  if (!(params.beta >= 0.0 && params.beta <= 1.0)) {
    return Reject("beta: want a number in [0, 1], got %g", params.beta);
  }
  return nullptr;
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  const char* why = row_loss::CheckForward(call, device_type, sizeof(FbJsdParams));
  return why != nullptr ? why : CheckParams(ParamsOf(*call));
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  const char* why = row_loss::CheckBackward(call, device_type, sizeof(FbJsdParams));
  return why != nullptr ? why : CheckParams(ParamsOf(*call));
}

}  // namespace fuseboard::jsd
