// A kl_div call as its kernels see it. The tensors are those of every row loss
// (kernels/common/row_loss_call.h).

#ifndef KERNELS_KL_DIV_KL_DIV_CALL_H_
#define KERNELS_KL_DIV_KL_DIV_CALL_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/abi/kl_div.h"

namespace fuseboard::kl_div {

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// REQUIRES: the call was not rejected.
inline const FbKlDivParams& ParamsOf(const FbCall& call) {
  return *static_cast<const FbKlDivParams*>(call.params);
}

// What a probability is raised to before its logarithm is taken; -inf without an eps, so that
// whatever F.kl_div makes NaN is NaN.
inline float FloorOf(const FbKlDivParams& params) {
  return params.eps > 0.0 ? static_cast<float>(params.eps) : -__builtin_inff();
}

}  // namespace fuseboard::kl_div

#endif  // KERNELS_KL_DIV_KL_DIV_CALL_H_
