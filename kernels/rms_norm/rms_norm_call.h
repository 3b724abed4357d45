// An rms_norm call as its kernels see it: checked once, then read by name instead of by index.

#ifndef KERNELS_RMS_NORM_RMS_NORM_CALL_H_
#define KERNELS_RMS_NORM_RMS_NORM_CALL_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/abi/rms_norm.h"
#include "kernels/common/reject.h"

namespace fuseboard::rms_norm {

// What forward and backward have in common.
struct Norm {
  int64_t rows;
  int64_t hidden;
  float eps;
  float offset;       // 0 without a weight.
  bool round_normed;  // FB_CASTING_LLAMA: x * rstd is rounded to the dtype of x.
};

struct ForwardCall {
  const FbTensor& x;
  const FbTensor& weight;  // Or absent.
  const FbTensor& y;
  const FbTensor& rstd;  // Or absent.
  Norm norm;
  // fused_add_rms_norm only: what is added to x before the norm, and where that sum goes.
  const FbTensor* residual = nullptr;
  const FbTensor* sum = nullptr;
  // modulated_rms_norm only, [groups, hidden]: (1 + scale) * y + shift is stored as y, with rows of
  // groups of rows that follow one another.
  const FbTensor* scale = nullptr;
  const FbTensor* shift = nullptr;
};

struct BackwardCall {
  const FbTensor& dy;
  const FbTensor& x;
  const FbTensor& weight;  // Or absent.
  const FbTensor& rstd;
  const FbTensor& dx;       // Or absent.
  const FbTensor& dweight;  // Or absent.
  Norm norm;
  // fused_add_rms_norm only, or NULL: another gradient of x, added to dx. Dtype of x.
  const FbTensor* dsum = nullptr;
};

// Checks that fused_add_rms_norm, modulated_rms_norm and qk_norm_rope share. `x` is what is
// normalised; y and dy have OutputDType.
int32_t OutputDType(const FbTensor& x, const FbTensor& weight, int32_t casting);
const char* CheckNorm(int32_t casting, double eps, double offset);
const char* CheckParams(const FbCall& call);
const char* CheckInput(const FbCall& call, const char* name, const FbTensor& x,
                       const FbTensor& weight);
const char* CheckRstd(const FbCall& call, const FbTensor& rstd, int64_t rows);
const char* CheckGradients(const FbCall& call, const FbTensor& x, const FbTensor& weight,
                           const FbTensor& dx, const FbTensor& dweight);

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// REQUIRES: the call was not rejected.
inline Norm NormOf(const FbCall& call, const FbTensor& x, const FbTensor& weight) {
  const auto& params = *static_cast<const FbRmsNormParams*>(call.params);
  return {x.shape[0], x.shape[1], static_cast<float>(params.eps),
          IsAbsent(weight) ? 0.0f : static_cast<float>(params.offset),
          params.casting == FB_CASTING_LLAMA};
}

inline ForwardCall ForwardOf(const FbCall& call) {
  const FbTensor* in = call.inputs;
  return {in[0], in[1], call.outputs[0], call.outputs[1], NormOf(call, in[0], in[1])};
}

inline BackwardCall BackwardOf(const FbCall& call) {
  const FbTensor* in = call.inputs;
  return {in[0], in[1], in[2], in[3], call.outputs[0], call.outputs[1], NormOf(call, in[1], in[2])};
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_RMS_NORM_CALL_H_
