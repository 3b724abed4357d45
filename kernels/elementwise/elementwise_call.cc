#include "kernels/elementwise/elementwise_call.h"

namespace fuseboard::elementwise {

const char* CheckTensors(const FbCall& call, std::span<const char* const> input_names,
                         std::span<const char* const> output_names, Outputs outputs) {
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
    if (outputs == Outputs::kOptional && IsAbsent(output)) continue;
    if (const char* why = CheckOutputMatrix(call, output_names[i], output, rows, cols)) return why;
    if (const char* why = CheckDType(output_names[i], output, first.dtype)) return why;
  }
  return nullptr;
}

Call CallOf(const FbCall& call) {
  const FbTensor& first = call.inputs[0];
  Call result = {};
  result.rows = first.shape[0];
  result.cols = first.shape[1];
  result.dtype = first.dtype;
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

}  // namespace fuseboard::elementwise
