#include "kernels/modulated_rms_norm/modulated_rms_norm_call.h"

namespace fuseboard::modulated_rms_norm {
namespace {

int32_t Promote(int32_t a, int32_t b) { return a == b ? a : int32_t{FB_F32}; }

// scale or shift: any number of groups that divides the rows.
const char* CheckModulation(const FbCall& call, const char* name, const FbTensor& tensor,
                            const FbTensor& x) {
  if (tensor.ndim != 2) return Reject("%s: want 2 dimensions, got %d", name, tensor.ndim);
  const int64_t groups = tensor.shape[0];
  const int64_t rows = x.shape[0];
  if (groups < 0 || (groups == 0 ? rows != 0 : rows % groups != 0)) {
    return Reject("%s: want a number of rows that divides %lld, got %lld", name,
                  static_cast<long long>(rows), static_cast<long long>(groups));
  }
  if (const char* why = CheckMatrix(call, name, tensor, groups, x.shape[1])) return why;
  return CheckFloatDType(name, tensor);
}

// dscale or dshift, [groups, hidden] without gaps.
const char* CheckModulationGradient(const FbCall& call, const char* name, const FbTensor& tensor,
                                    const FbTensor& scale) {
  const int64_t groups = scale.shape[0];
  const int64_t hidden = scale.shape[1];
  if (const char* why = CheckOutputMatrix(call, name, tensor, groups, hidden)) return why;
  if (groups > 1 && tensor.stride[0] != hidden) {
    return Reject("%s: want row stride %lld, got %lld", name, static_cast<long long>(hidden),
                  static_cast<long long>(tensor.stride[0]));
  }
  return CheckFloatDType(name, tensor);
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 4, 2, sizeof(FbModulatedRmsNormParams))) {
    return why;
  }
  if (const char* why = rms_norm::CheckParams(*call)) return why;
  const FbTensor& x = call->inputs[0];
  const FbTensor& weight = call->inputs[1];
  const FbTensor& scale = call->inputs[2];
  const FbTensor& shift = call->inputs[3];
  if (const char* why = rms_norm::CheckInput(*call, "x", x, weight)) return why;
  if (const char* why = CheckModulation(*call, "scale", scale, x)) return why;
  if (const char* why = CheckMatrix(*call, "shift", shift, scale.shape[0], x.shape[1])) return why;
  if (const char* why = CheckFloatDType("shift", shift)) return why;

  const FbTensor& y = call->outputs[0];
  const auto& params = *static_cast<const FbModulatedRmsNormParams*>(call->params);
  const int32_t normed = rms_norm::OutputDType(x, weight, params.casting);
  if (const char* why = CheckOutputMatrix(*call, "y", y, x.shape[0], x.shape[1])) return why;
  if (const char* why = CheckDType("y", y, Promote(Promote(normed, scale.dtype), shift.dtype))) {
    return why;
  }
  const FbTensor& rstd = call->outputs[1];
  return IsAbsent(rstd) ? nullptr : rms_norm::CheckRstd(*call, rstd, x.shape[0]);
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 5, 4, sizeof(FbModulatedRmsNormParams))) {
    return why;
  }
  if (const char* why = rms_norm::CheckParams(*call)) return why;
  const FbTensor& dy = call->inputs[0];
  const FbTensor& x = call->inputs[1];
  const FbTensor& weight = call->inputs[2];
  const FbTensor& scale = call->inputs[3];
  if (const char* why = rms_norm::CheckInput(*call, "x", x, weight)) return why;
  if (const char* why = CheckMatrix(*call, "dy", dy, x.shape[0], x.shape[1])) return why;
  if (dy.dtype != FB_F32) {
    if (const char* why = CheckDType("dy", dy, x.dtype)) return why;
  }
  if (const char* why = CheckModulation(*call, "scale", scale, x)) return why;
  if (const char* why = rms_norm::CheckRstd(*call, call->inputs[4], x.shape[0])) return why;

  const FbTensor* out = call->outputs;
  if (const char* why = rms_norm::CheckGradients(*call, x, weight, out[0], out[1])) return why;
  if (!IsAbsent(out[2])) {
    if (const char* why = CheckModulationGradient(*call, "dscale", out[2], scale)) return why;
    if (const char* why = CheckDType("dscale", out[2], scale.dtype)) return why;
  }
  return IsAbsent(out[3]) ? nullptr : CheckModulationGradient(*call, "dshift", out[3], scale);
}

}  // namespace fuseboard::modulated_rms_norm
