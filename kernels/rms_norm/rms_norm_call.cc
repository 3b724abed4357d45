#include "kernels/rms_norm/rms_norm_call.h"

#include <cmath>

namespace fuseboard::rms_norm {
namespace {

// Columns are counted in 32 bits within a row; a row of 2^31 floats is 8 GiB.
constexpr int64_t kMaxHidden = INT32_MAX;

}  // namespace

// The dtype of y: what the model's own expression gives.
int32_t OutputDType(const FbTensor& x, const FbTensor& weight, int32_t casting) {
  if (IsAbsent(weight) || casting != FB_CASTING_LLAMA) return x.dtype;
  return x.dtype == weight.dtype ? x.dtype : int32_t{FB_F32};  // f16 and bf16 promote to f32.
}

const char* CheckNorm(int32_t casting, double eps, double offset) {
  if (casting < FB_CASTING_LLAMA || casting > FB_CASTING_NONE) {
    return Reject("casting: want 0, 1 or 2, got %d", casting);
  }
  if (!(eps >= 0.0) || std::isinf(eps)) {
    return Reject("eps: want a finite number >= 0, got %g", eps);
  }
  if (!std::isfinite(offset)) return Reject("offset: want a finite number, got %g", offset);
  return nullptr;
}

const char* CheckParams(const FbCall& call) {
  const auto& params = *static_cast<const FbRmsNormParams*>(call.params);
  return CheckNorm(params.casting, params.eps, params.offset);
}

const char* CheckInput(const FbCall& call, const char* name, const FbTensor& x,
                       const FbTensor& weight) {
  if (x.ndim != 2) return Reject("%s: want 2 dimensions, got %d", name, x.ndim);
  if (const char* why = CheckMatrix(call, name, x, x.shape[0], x.shape[1])) return why;
  if (const char* why = CheckFloatDType(name, x)) return why;
  if (x.shape[1] < 1 || x.shape[1] > kMaxHidden) {
    return Reject("%s: want hidden in [1, %lld], got %lld", name,
                  static_cast<long long>(kMaxHidden), static_cast<long long>(x.shape[1]));
  }
  if (IsAbsent(weight)) return nullptr;
  if (const char* why = CheckVector(call, "weight", weight, x.shape[1], VectorStride::kOne)) {
    return why;
  }
  return CheckFloatDType("weight", weight);
}

const char* CheckRstd(const FbCall& call, const FbTensor& rstd, int64_t rows) {
  if (const char* why = CheckVector(call, "rstd", rstd, rows, VectorStride::kOne)) return why;
  return CheckDType("rstd", rstd, FB_F32);
}

const char* CheckGradients(const FbCall& call, const FbTensor& x, const FbTensor& weight,
                           const FbTensor& dx, const FbTensor& dweight) {
  if (!IsAbsent(dx)) {
    if (const char* why = CheckOutputMatrix(call, "dx", dx, x.shape[0], x.shape[1])) return why;
    if (const char* why = CheckDType("dx", dx, x.dtype)) return why;
  }
  if (IsAbsent(dweight)) return nullptr;
  if (IsAbsent(weight)) return Reject("dweight: want absent without a weight, got a tensor");
  if (const char* why = CheckVector(call, "dweight", dweight, x.shape[1], VectorStride::kOne)) {
    return why;
  }
  return CheckDType("dweight", dweight, weight.dtype);
}

const char* RejectForward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 2, 2, sizeof(FbRmsNormParams))) return why;
  if (const char* why = CheckParams(*call)) return why;
  const FbTensor& x = call->inputs[0];
  const FbTensor& weight = call->inputs[1];
  if (const char* why = CheckInput(*call, "x", x, weight)) return why;

  const FbTensor& y = call->outputs[0];
  const auto& params = *static_cast<const FbRmsNormParams*>(call->params);
  if (const char* why = CheckOutputMatrix(*call, "y", y, x.shape[0], x.shape[1])) return why;
  if (const char* why = CheckDType("y", y, OutputDType(x, weight, params.casting))) return why;
  return IsAbsent(call->outputs[1]) ? nullptr : CheckRstd(*call, call->outputs[1], x.shape[0]);
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 4, 2, sizeof(FbRmsNormParams))) return why;
  if (const char* why = CheckParams(*call)) return why;
  const FbTensor& dy = call->inputs[0];
  const FbTensor& x = call->inputs[1];
  const FbTensor& weight = call->inputs[2];
  const auto& params = *static_cast<const FbRmsNormParams*>(call->params);
  if (const char* why = CheckInput(*call, "x", x, weight)) return why;
  if (const char* why = CheckMatrix(*call, "dy", dy, x.shape[0], x.shape[1])) return why;
  if (const char* why = CheckDType("dy", dy, OutputDType(x, weight, params.casting))) return why;
  if (const char* why = CheckRstd(*call, call->inputs[3], x.shape[0])) return why;

  return CheckGradients(*call, x, weight, call->outputs[0], call->outputs[1]);
}

}  // namespace fuseboard::rms_norm
