#include "kernels/group_norm/group_norm_call.h"

#include <cinttypes>
#include <cmath>
#include <initializer_list>

namespace fuseboard::group_norm {
namespace {

// `tensor` has the shape of `x` and lies in memory one element after the other.
const char* CheckImage(const FbCall& call, const char* name, const FbTensor& tensor,
                       const FbTensor& x) {
  if (const char* why = CheckStrided(call, name, tensor, x.shape, 3)) return why;
  int64_t stride = 1;
  for (int dim = 2; dim >= 0; --dim) {
    if (tensor.shape[dim] > 1 && tensor.stride[dim] != stride) {
      return Reject("%s: want stride %" PRId64 " in dimension %d, got %" PRId64, name, stride, dim,
                    tensor.stride[dim]);
    }
    stride *= tensor.shape[dim];
  }
  return nullptr;
}

const char* CheckX(const FbCall& call, const FbTensor& x) {
  const FbGroupNormParams& params = ParamsOf(call);
  if (!(params.eps >= 0.0) || std::isinf(params.eps)) {
    return Reject("eps: want a finite number >= 0, got %g", params.eps);
  }
  if (x.ndim != 3) return Reject("x: want 3 dimensions, got %d", x.ndim);
  if (const char* why = CheckFloatDType("x", x)) return why;
  if (x.shape[1] < 1 || x.shape[2] < 1) {
    return Reject("x: want at least 1 channel and 1 element, got %" PRId64 " and %" PRId64,
                  x.shape[1], x.shape[2]);
  }
  if (params.groups < 1 || x.shape[1] % params.groups != 0) {
    return Reject("x: want channels in a multiple of the groups, got %" PRId64
                  " channels and %" PRId64 " groups",
                  x.shape[1], params.groups);
  }
  return CheckImage(call, "x", x, x);
}

// A parameter or its gradient: [channels] of any float dtype, or absent.
const char* CheckParameter(const FbCall& call, const char* name, const FbTensor& tensor,
                           int64_t channels) {
  if (IsAbsent(tensor)) return nullptr;
  if (const char* why = CheckVector(call, name, tensor, channels, VectorStride::kOne)) return why;
  return CheckFloatDType(name, tensor);
}

const char* CheckStatistic(const FbCall& call, const char* name, const FbTensor& tensor,
                           const FbTensor& x) {
  const int64_t groups = ShapeOf(call, x).all_groups();
  if (const char* why = CheckVector(call, name, tensor, groups, VectorStride::kOne)) return why;
  return CheckDType(name, tensor, FB_F32);
}

// An input or output like x.
const char* CheckLikeX(const FbCall& call, const char* name, const FbTensor& tensor,
                       const FbTensor& x) {
  if (const char* why = CheckImage(call, name, tensor, x)) return why;
  return CheckDType(name, tensor, x.dtype);
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 3, 3, sizeof(FbGroupNormParams))) return why;
  const FbTensor& x = call->inputs[0];
  if (const char* why = CheckX(*call, x)) return why;
  if (const char* why = CheckParameter(*call, "weight", call->inputs[1], x.shape[1])) return why;
  if (const char* why = CheckParameter(*call, "bias", call->inputs[2], x.shape[1])) return why;
  if (const char* why = CheckLikeX(*call, "y", call->outputs[0], x)) return why;
  for (const int i : {1, 2}) {
    const char* name = i == 1 ? "mean" : "rstd";
    if (IsAbsent(call->outputs[i])) continue;
    if (const char* why = CheckStatistic(*call, name, call->outputs[i], x)) return why;
  }
  return nullptr;
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 5, 3, sizeof(FbGroupNormParams))) return why;
  const FbTensor& x = call->inputs[1];
  const FbTensor& weight = call->inputs[2];
  const FbTensor& dweight = call->outputs[1];
  if (const char* why = CheckX(*call, x)) return why;
  if (const char* why = CheckLikeX(*call, "dy", call->inputs[0], x)) return why;
  if (const char* why = CheckParameter(*call, "weight", weight, x.shape[1])) return why;
  if (const char* why = CheckStatistic(*call, "mean", call->inputs[3], x)) return why;
  if (const char* why = CheckStatistic(*call, "rstd", call->inputs[4], x)) return why;
  if (!IsAbsent(call->outputs[0])) {
    if (const char* why = CheckLikeX(*call, "dx", call->outputs[0], x)) return why;
  }
  if (const char* why = CheckParameter(*call, "dweight", dweight, x.shape[1])) return why;
  if (!IsAbsent(dweight)) {
    if (IsAbsent(weight)) return Reject("dweight: want absent without a weight, got a tensor");
    if (const char* why = CheckDType("dweight", dweight, weight.dtype)) return why;
  }
  return CheckParameter(*call, "dbias", call->outputs[2], x.shape[1]);
}

}  // namespace fuseboard::group_norm
