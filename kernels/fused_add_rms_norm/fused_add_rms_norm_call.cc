#include "kernels/fused_add_rms_norm/fused_add_rms_norm_call.h"

namespace fuseboard::fused_add_rms_norm {
namespace {

using rms_norm::CheckInput;
using rms_norm::CheckParams;
using rms_norm::CheckRstd;
using rms_norm::OutputDType;

int32_t CastingOf(const FbCall& call) {
  return static_cast<const FbFusedAddRmsNormParams*>(call.params)->casting;
}

const char* CheckLike(const FbCall& call, const char* name, const FbTensor& tensor,
                      const FbTensor& like) {
  if (const char* why = CheckMatrix(call, name, tensor, like.shape[0], like.shape[1])) return why;
  return CheckDType(name, tensor, like.dtype);
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 3, 3, sizeof(FbFusedAddRmsNormParams))) {
    return why;
  }
  if (const char* why = CheckParams(*call)) return why;
  const FbTensor& x = call->inputs[0];
  const FbTensor& weight = call->inputs[2];
  if (const char* why = CheckInput(*call, "x", x, weight)) return why;
  if (const char* why = CheckLike(*call, "residual", call->inputs[1], x)) return why;

  const FbTensor& y = call->outputs[0];
  const FbTensor& sum = call->outputs[1];
  if (const char* why = CheckOutputMatrix(*call, "y", y, x.shape[0], x.shape[1])) return why;
  if (const char* why = CheckDType("y", y, OutputDType(x, weight, CastingOf(*call)))) return why;
  if (const char* why = CheckOutputMatrix(*call, "sum", sum, x.shape[0], x.shape[1])) return why;
  if (const char* why = CheckDType("sum", sum, x.dtype)) return why;
  return IsAbsent(call->outputs[2]) ? nullptr : CheckRstd(*call, call->outputs[2], x.shape[0]);
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 5, 2, sizeof(FbFusedAddRmsNormParams))) {
    return why;
  }
  if (const char* why = CheckParams(*call)) return why;
  const FbTensor& dy = call->inputs[0];
  const FbTensor& dsum = call->inputs[1];
  const FbTensor& sum = call->inputs[2];
  const FbTensor& weight = call->inputs[3];
  if (const char* why = CheckInput(*call, "sum", sum, weight)) return why;
  if (const char* why = CheckMatrix(*call, "dy", dy, sum.shape[0], sum.shape[1])) return why;
  if (const char* why = CheckDType("dy", dy, OutputDType(sum, weight, CastingOf(*call)))) {
    return why;
  }
  if (!IsAbsent(dsum)) {
    if (const char* why = CheckLike(*call, "dsum", dsum, sum)) return why;
  }
  if (const char* why = CheckRstd(*call, call->inputs[4], sum.shape[0])) return why;
  return rms_norm::CheckGradients(*call, sum, weight, call->outputs[0], call->outputs[1]);
}

}  // namespace fuseboard::fused_add_rms_norm
