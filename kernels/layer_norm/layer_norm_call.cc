#include "kernels/layer_norm/layer_norm_call.h"

#include <cmath>
#include <initializer_list>

namespace fuseboard::layer_norm {
namespace {

// Columns are counted in 32 bits within a row; a row of 2^31 floats is 8 GiB.
constexpr int64_t kMaxHidden = INT32_MAX;

const char* CheckX(const FbCall& call, const FbTensor& x) {
  const auto& params = *static_cast<const FbLayerNormParams*>(call.params);
  if (!(params.eps >= 0.0) || std::isinf(params.eps)) {
    return Reject("eps: want a finite number >= 0, got %g", params.eps);
  }
  if (x.ndim != 2) return Reject("x: want 2 dimensions, got %d", x.ndim);
  if (const char* why = CheckMatrix(call, "x", x, x.shape[0], x.shape[1])) return why;
  if (const char* why = CheckFloatDType("x", x)) return why;
  if (x.shape[1] < 1 || x.shape[1] > kMaxHidden) {
    return Reject("x: want hidden in [1, %lld], got %lld", static_cast<long long>(kMaxHidden),
                  static_cast<long long>(x.shape[1]));
  }
  return nullptr;
}

// A parameter or its gradient: [hidden] of any float dtype, or absent.
const char* CheckParameter(const FbCall& call, const char* name, const FbTensor& tensor,
                           int64_t hidden) {
  if (IsAbsent(tensor)) return nullptr;
  if (const char* why = CheckVector(call, name, tensor, hidden, VectorStride::kOne)) return why;
  return CheckFloatDType(name, tensor);
}

const char* CheckStatistic(const FbCall& call, const char* name, const FbTensor& tensor,
                           int64_t rows) {
  if (const char* why = CheckVector(call, name, tensor, rows, VectorStride::kOne)) return why;
  return CheckDType(name, tensor, FB_F32);
}

const char* CheckOutput(const FbCall& call, const char* name, const FbTensor& tensor,
                        const FbTensor& x) {
  if (const char* why = CheckOutputMatrix(call, name, tensor, x.shape[0], x.shape[1])) return why;
  return CheckDType(name, tensor, x.dtype);
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 3, 3, sizeof(FbLayerNormParams))) return why;
  const FbTensor& x = call->inputs[0];
  if (const char* why = CheckX(*call, x)) return why;
  if (const char* why = CheckParameter(*call, "weight", call->inputs[1], x.shape[1])) return why;
  if (const char* why = CheckParameter(*call, "bias", call->inputs[2], x.shape[1])) return why;
  if (const char* why = CheckOutput(*call, "y", call->outputs[0], x)) return why;
  for (const int i : {1, 2}) {
    const char* name = i == 1 ? "mean" : "rstd";
    if (IsAbsent(call->outputs[i])) continue;
    if (const char* why = CheckStatistic(*call, name, call->outputs[i], x.shape[0])) return why;
  }
  return nullptr;
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 5, 3, sizeof(FbLayerNormParams))) return why;
  const FbTensor& dy = call->inputs[0];
  const FbTensor& x = call->inputs[1];
  const FbTensor& weight = call->inputs[2];
  const FbTensor& dweight = call->outputs[1];
  if (const char* why = CheckX(*call, x)) return why;
  if (const char* why = CheckMatrix(*call, "dy", dy, x.shape[0], x.shape[1])) return why;
  if (const char* why = CheckDType("dy", dy, x.dtype)) return why;
  if (const char* why = CheckParameter(*call, "weight", weight, x.shape[1])) return why;
  if (const char* why = CheckStatistic(*call, "mean", call->inputs[3], x.shape[0])) return why;
  if (const char* why = CheckStatistic(*call, "rstd", call->inputs[4], x.shape[0])) return why;
  if (!IsAbsent(call->outputs[0])) {
    if (const char* why = CheckOutput(*call, "dx", call->outputs[0], x)) return why;
  }
  if (const char* why = CheckParameter(*call, "dweight", dweight, x.shape[1])) return why;
  if (!IsAbsent(dweight)) {
    if (IsAbsent(weight)) return Reject("dweight: want absent without a weight, got a tensor");
    if (const char* why = CheckDType("dweight", dweight, weight.dtype)) return why;
  }
  return CheckParameter(*call, "dbias", call->outputs[2], x.shape[1]);
}

}  // namespace fuseboard::layer_norm
