#include "kernels/kl_div/kl_div_call.h"

#include <cmath>

#include "kernels/common/reject.h"
#include "kernels/common/row_loss_call.h"

namespace fuseboard::kl_div {
namespace {

const char* CheckParams(const FbKlDivParams& params) {
  if (params.log_target != 0 && params.log_target != 1) {
    return Reject("log_target: want 0 or 1, got %d", params.log_target);
  }
  if (!(params.eps >= 0.0 && std::isfinite(params.eps))) {
    return Reject("eps: want a finite number >= 0, got %g", params.eps);
  }
  return nullptr;
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  const char* why = row_loss::CheckForward(call, device_type, sizeof(FbKlDivParams));
  return why != nullptr ? why : CheckParams(ParamsOf(*call));
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  const char* why = row_loss::CheckBackward(call, device_type, sizeof(FbKlDivParams));
  return why != nullptr ? why : CheckParams(ParamsOf(*call));
}

}  // namespace fuseboard::kl_div
