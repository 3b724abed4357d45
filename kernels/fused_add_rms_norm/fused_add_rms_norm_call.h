// A fused_add_rms_norm call as the kernels of rms_norm see it: a norm with a residual.

#ifndef KERNELS_FUSED_ADD_RMS_NORM_FUSED_ADD_RMS_NORM_CALL_H_
#define KERNELS_FUSED_ADD_RMS_NORM_FUSED_ADD_RMS_NORM_CALL_H_

#include "kernels/abi/fused_add_rms_norm.h"
#include "kernels/rms_norm/rms_norm_call.h"

namespace fuseboard::fused_add_rms_norm {

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// REQUIRES: the call was not rejected.
inline rms_norm::ForwardCall ForwardOf(const FbCall& call) {
  const FbTensor* in = call.inputs;
  const FbTensor* out = call.outputs;
  return {in[0], in[2], out[0], out[2], rms_norm::NormOf(call, in[0], in[2]), &in[1], &out[1]};
}

inline rms_norm::BackwardCall BackwardOf(const FbCall& call) {
  const FbTensor* in = call.inputs;
  const FbTensor* out = call.outputs;
  return {in[0], in[2], in[3], in[4], out[0], out[1], rms_norm::NormOf(call, in[2], in[3]), &in[1]};
}

}  // namespace fuseboard::fused_add_rms_norm

#endif  // KERNELS_FUSED_ADD_RMS_NORM_FUSED_ADD_RMS_NORM_CALL_H_
