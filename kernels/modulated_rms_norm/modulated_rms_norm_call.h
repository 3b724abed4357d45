// A modulated_rms_norm call as its kernels see it: checked once, then read by name.

#ifndef KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CALL_H_
#define KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CALL_H_

#include "kernels/abi/modulated_rms_norm.h"
#include "kernels/rms_norm/rms_norm_call.h"

namespace fuseboard::modulated_rms_norm {

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// REQUIRES: the call was not rejected.
inline rms_norm::ForwardCall ForwardOf(const FbCall& call) {
  const FbTensor* in = call.inputs;
  return {.x = in[0],
          .weight = in[1],
          .y = call.outputs[0],
          .rstd = call.outputs[1],
          .norm = rms_norm::NormOf(call, in[0], in[1]),
          .scale = &in[2],
          .shift = &in[3]};
}

struct BackwardCall {
  const FbTensor& dy;
  const FbTensor& x;
  const FbTensor& weight;  // Or absent, as the outputs.
  const FbTensor& scale;
  const FbTensor& rstd;
  const FbTensor& dx;
  const FbTensor& dweight;
  const FbTensor& dscale;
  const FbTensor& dshift;
  rms_norm::Norm norm;
  int64_t groups;
  int64_t group_rows;  // Of each.
};

inline BackwardCall BackwardOf(const FbCall& call) {
  const FbTensor* in = call.inputs;
  const FbTensor* out = call.outputs;
  const rms_norm::Norm norm = rms_norm::NormOf(call, in[1], in[2]);
  const int64_t groups = in[3].shape[0];
  return {in[0],  in[1],  in[2],  in[3], in[4],  out[0],
          out[1], out[2], out[3], norm,  groups, groups == 0 ? 0 : norm.rows / groups};
}

// The rows of a group are cut into slices, each of which is added up by itself; then the sums of
// the slices are, in order. A slice has rows unless there are none at all.
struct Slices {
  int64_t per_group;
  int64_t rows;  // At most.

  friend constexpr bool operator==(const Slices&, const Slices&) = default;
};

// Of rows that follow one another: all but the last slice have `rows`.
constexpr Slices SlicesOf(int64_t group_rows, int64_t per_group) {
  const int64_t rows = (group_rows + per_group - 1) / per_group;
  return {rows == 0 ? 1 : (group_rows + rows - 1) / rows, rows};
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CALL_H_
