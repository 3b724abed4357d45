#include "kernels/swiglu/swiglu_call.h"

#include <array>
#include <span>

namespace fuseboard::swiglu {
namespace {

const char* CheckParams(const FbCall& call) {
  const auto& params = *static_cast<const FbSwigluParams*>(call.params);
  if (params.round_activation == 0 || params.round_activation == 1) return nullptr;
  return Reject("round_activation: want 0 or 1, got %d", params.round_activation);
}

// REQUIRES: the call has as many inputs and outputs as there are names.
const char* Check(const FbCall& call, std::span<const char* const> input_names,
                  std::span<const char* const> output_names, bool optional_outputs) {
  if (const char* why = CheckParams(call)) return why;
  const FbTensor& first = call.inputs[0];
  if (first.ndim != 2) {
    return Reject("%s: want 2 dimensions, got %d", input_names[0], first.ndim);
  }
  if (const char* why = CheckFloatDType(input_names[0], first)) return why;
  const int64_t rows = first.shape[0];
  const int64_t cols = first.shape[1];
  for (size_t i = 0; i < input_names.size(); ++i) {
    const FbTensor& input = call.inputs[i];
    if (const char* why = CheckMatrix(call, input_names[i], input, rows, cols)) return why;
    if (const char* why = CheckDType(input_names[i], input, first.dtype)) return why;
  }
  for (size_t i = 0; i < output_names.size(); ++i) {
    const FbTensor& output = call.outputs[i];
    if (optional_outputs && IsAbsent(output)) continue;
    if (const char* why = CheckOutputMatrix(call, output_names[i], output, rows, cols)) return why;
    if (const char* why = CheckDType(output_names[i], output, first.dtype)) return why;
  }
  return nullptr;
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"gate", "up"};
  constexpr std::array kOutputs = {"out"};
  if (const char* why = CheckCall(call, device_type, 2, 1, sizeof(FbSwigluParams))) return why;
  return Check(*call, kInputs, kOutputs, /*optional_outputs=*/false);
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"dout", "gate", "up"};
  constexpr std::array kOutputs = {"dgate", "dup"};
  if (const char* why = CheckCall(call, device_type, 3, 2, sizeof(FbSwigluParams))) return why;
  return Check(*call, kInputs, kOutputs, /*optional_outputs=*/true);
}

Call CallOf(const FbCall& call) {
  const FbTensor& first = call.inputs[0];
  const auto& params = *static_cast<const FbSwigluParams*>(call.params);
  Call result = {};
  result.rows = first.shape[0];
  result.cols = first.shape[1];
  result.dtype = first.dtype;
  result.round_activation = params.round_activation != 0;
  bool one_row = true;
  const auto matrix = [&](const FbTensor& tensor) -> Matrix {
    if (IsAbsent(tensor)) return {nullptr, 0};
    one_row = one_row && (result.rows <= 1 || tensor.stride[0] == result.cols);
    return {tensor.data, tensor.stride[0]};
  };
  for (int32_t i = 0; i < call.num_inputs; ++i) result.in[i] = matrix(call.inputs[i]);
  for (int32_t i = 0; i < call.num_outputs; ++i) result.out[i] = matrix(call.outputs[i]);
  if (one_row) {
    result.cols *= result.rows;
    result.rows = result.cols == 0 ? 0 : 1;
  }
  return result;
}

}  // namespace fuseboard::swiglu
