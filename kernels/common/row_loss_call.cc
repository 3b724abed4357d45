#include "kernels/common/row_loss_call.h"

#include <cinttypes>

#include "kernels/common/reject.h"

namespace fuseboard::row_loss {
namespace {

// Columns are counted in 32 bits within a row, a few units past its end too.
constexpr int64_t kMaxCols = int64_t{1} << 30;

const char* CheckInputs(const FbCall& call, const FbTensor& input, const FbTensor& target) {
  if (input.ndim != 2) return Reject("input: want 2 dimensions, got %d", input.ndim);
  const int64_t rows = input.shape[0];
  const int64_t cols = input.shape[1];
  if (const char* why = CheckMatrix(call, "input", input, rows, cols)) return why;
  if (const char* why = CheckFloatDType("input", input)) return why;
  if (cols > kMaxCols) {
    return Reject("input: want at most %" PRId64 " columns, got %" PRId64, kMaxCols, cols);
  }
  if (const char* why = CheckMatrix(call, "target", target, rows, cols)) return why;
  return CheckDType("target", target, input.dtype);
}

const char* CheckLabel(const FbCall& call, const FbTensor& label, int64_t rows) {
  if (IsAbsent(label)) return nullptr;
  if (const char* why = CheckVector(call, "label", label, rows, VectorStride::kAny)) return why;
  if (label.dtype == FB_I64 || label.dtype == FB_I32) return nullptr;
  return Reject("label: want i64 or i32, got %s", DTypeName(label.dtype));
}

const char* CheckGradient(const FbCall& call, const FbTensor& dinput, const FbTensor& input) {
  if (const char* why = CheckOutputMatrix(call, "dinput", dinput, input.shape[0], input.shape[1])) {
    return why;
  }
  return CheckDType("dinput", dinput, input.dtype);
}

const char* CheckForwardOutputs(const FbCall& call, const FbTensor& input) {
  const FbTensor& loss = call.outputs[0];
  const FbTensor& losses = call.outputs[1];
  const FbTensor& dinput = call.outputs[2];
  if (!IsAbsent(loss)) {
    if (const char* why = CheckVector(call, "loss", loss, input.shape[0], VectorStride::kOne)) {
      return why;
    }
    if (const char* why = CheckDType("loss", loss, FB_F32)) return why;
  }
  if (!IsAbsent(losses)) {
    if (const char* why =
            CheckOutputMatrix(call, "losses", losses, input.shape[0], input.shape[1])) {
      return why;
    }
    if (const char* why = CheckDType("losses", losses, FB_F32)) return why;
    if (!IsAbsent(loss) || !IsAbsent(dinput)) {
      return Reject("losses: want no other output beside them, got %s",
                    IsAbsent(loss) ? "dinput" : "loss");
    }
  }
  return IsAbsent(dinput) ? nullptr : CheckGradient(call, dinput, input);
}

Call CommonCallOf(const FbTensor& input, const FbTensor& target, const FbTensor& label,
                  const FbTensor& dinput, int64_t ignore_index) {
  Call result = {};
  result.input = input.data;
  result.input_stride = input.stride[0];
  result.target = target.data;
  result.target_stride = target.stride[0];
  result.rows = input.shape[0];
  result.cols = static_cast<int32_t>(input.shape[1]);
  result.dtype = input.dtype;
  if (!IsAbsent(dinput)) {
    result.dinput = dinput.data;
    result.dinput_stride = dinput.stride[0];
  }
  if (!IsAbsent(label)) {
    result.label = label.data;
    result.label_stride = label.stride[0];
    result.label_is_i64 = label.dtype == FB_I64;
    result.ignore_index = ignore_index;
  }
  return result;
}

}  // namespace

const char* CheckForward(const FbCall* call, int32_t device_type, uint32_t params_bytes) {
  if (const char* why = CheckCall(call, device_type, 4, 3, params_bytes)) return why;
  const FbTensor& input = call->inputs[0];
  if (const char* why = CheckInputs(*call, input, call->inputs[1])) return why;
  const int64_t rows = input.shape[0];
  const FbTensor& scale = call->inputs[2];
  if (!IsAbsent(scale)) {
    if (const char* why = CheckVector(*call, "scale", scale, rows, VectorStride::kAny)) return why;
    if (const char* why = CheckDType("scale", scale, FB_F32)) return why;
  }
  if (const char* why = CheckLabel(*call, call->inputs[3], rows)) return why;
  return CheckForwardOutputs(*call, input);
}

const char* CheckBackward(const FbCall* call, int32_t device_type, uint32_t params_bytes) {
  if (const char* why = CheckCall(call, device_type, 4, 1, params_bytes)) return why;
  const FbTensor& dloss = call->inputs[0];
  const FbTensor& input = call->inputs[1];
  if (const char* why = CheckInputs(*call, input, call->inputs[2])) return why;
  const int64_t rows = input.shape[0];
  if (const char* why = CheckMatrix(*call, "dloss", dloss, rows, input.shape[1])) return why;
  if (const char* why = CheckDType("dloss", dloss, FB_F32)) return why;
  if (const char* why = CheckLabel(*call, call->inputs[3], rows)) return why;
  return CheckGradient(*call, call->outputs[0], input);
}

Call ForwardCallOf(const FbCall& call, int64_t ignore_index) {
  const FbTensor* in = call.inputs;
  Call result = CommonCallOf(in[0], in[1], in[3], call.outputs[2], ignore_index);
  if (!IsAbsent(in[2])) {
    result.scale = static_cast<const float*>(in[2].data);
    result.scale_stride = in[2].stride[0];
  }
  if (!IsAbsent(call.outputs[0])) result.loss = static_cast<float*>(call.outputs[0].data);
  if (!IsAbsent(call.outputs[1])) {
    result.losses = static_cast<float*>(call.outputs[1].data);
    result.losses_stride = call.outputs[1].stride[0];
  }
  return result;
}

Call BackwardCallOf(const FbCall& call, int64_t ignore_index) {
  const FbTensor* in = call.inputs;
  Call result = CommonCallOf(in[1], in[2], in[3], call.outputs[0], ignore_index);
  result.dloss = static_cast<const float*>(in[0].data);
  result.dloss_stride = in[0].stride[0];
  return result;
}

}  // namespace fuseboard::row_loss
