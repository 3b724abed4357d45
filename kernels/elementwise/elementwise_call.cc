#include "kernels/elementwise/elementwise_call.h"

#include <cinttypes>
#include <utility>

namespace fuseboard::elementwise {
namespace {

// What a tensor with every second column would be if it had them all to itself.
FbTensor WithColumnsTogether(FbTensor tensor) {
  tensor.stride[1] = 1;
  return tensor;
}

// `odd` has the columns after those of `even`, and both are of the shape and dtype of `first`.
const char* CheckPair(const FbCall& call, const char* even_name, const FbTensor& even,
                      const char* odd_name, const FbTensor& odd, const FbTensor& first) {
  for (const auto& [name, tensor] : {std::pair{even_name, &even}, {odd_name, &odd}}) {
    const FbTensor together = WithColumnsTogether(*tensor);
    if (const char* why = CheckMatrix(call, name, together, first.shape[0], first.shape[1])) {
      return why;
    }
    if (const char* why = CheckDType(name, together, first.dtype)) return why;
    if (tensor->stride[1] != 2) {
      return Reject("%s: want column stride 2, as the others have, got %" PRId64, name,
                    tensor->stride[1]);
    }
  }
  if (first.shape[0] == 0) return nullptr;
  const auto bytes = static_cast<int64_t>(reinterpret_cast<uintptr_t>(odd.data) -
                                          reinterpret_cast<uintptr_t>(even.data));
  const int64_t want = first.dtype == FB_F32 ? 4 : 2;
  if (bytes != want || odd.stride[0] != even.stride[0]) {
    return Reject("%s: want the columns after those of %s, %" PRId64
                  " bytes on, row stride %" PRId64 ", got %" PRId64 " and %" PRId64,
                  odd_name, even_name, want, even.stride[0], bytes, odd.stride[0]);
  }
  return nullptr;
}

}  // namespace

bool IsAlternating(const FbCall& call) {
  if (call.num_inputs < 2) return false;
  const FbTensor& even = call.inputs[call.num_inputs - 2];
  return even.ndim == 2 && even.shape[1] > 1 && even.stride[1] == 2;
}

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

const char* CheckAlternatingTensors(const FbCall& call, std::span<const char* const> input_names,
                                    std::span<const char* const> output_names) {
  const size_t even = input_names.size() - 2;
  const FbTensor& first = call.inputs[even];
  if (const char* why = CheckFloatDType(input_names[even], first)) return why;
  const auto check_pair = [&](std::span<const char* const> names, const FbTensor* tensors) {
    return CheckPair(call, names[0], tensors[0], names[1], tensors[1], first);
  };
  if (const char* why = check_pair(input_names.subspan(even), &call.inputs[even])) return why;
  const int64_t rows = first.shape[0];
  const int64_t cols = first.shape[1];
  if (even > 0) {
    const FbTensor& other = call.inputs[0];
    if (const char* why = CheckMatrix(call, input_names[0], other, rows, cols)) return why;
    if (const char* why = CheckDType(input_names[0], other, first.dtype)) return why;
  }
  const FbTensor& output = call.outputs[0];
  if (output_names.size() == 2) {
    if (const char* why = check_pair(output_names, call.outputs)) return why;
    if (rows > 1 && output.stride[0] < 2 * cols) {
      return Reject("%s: want row stride >= %" PRId64 " (rows that do not overlap), got %" PRId64,
                    output_names[0], 2 * cols, output.stride[0]);
    }
    return nullptr;
  }
  if (const char* why = CheckOutputMatrix(call, output_names[0], output, rows, cols)) return why;
  return CheckDType(output_names[0], output, first.dtype);
}

Call CallOf(const FbCall& call) {
  const FbTensor& first = call.inputs[0];
  const int64_t rows = first.shape[0];
  const int64_t cols = first.shape[1];
  Call result = {};
  result.rows = rows;
  result.cols = cols;
  result.dtype = first.dtype;
  bool one_row = true;
  const auto matrix = [&](const FbTensor& tensor) -> Matrix {
    if (IsAbsent(tensor)) return {nullptr, 0, 1};
    const int64_t step = cols > 1 ? tensor.stride[1] : 1;
    one_row = one_row && (rows <= 1 || tensor.stride[0] == cols * step);
    return {tensor.data, tensor.stride[0], step};
  };
  for (int32_t i = 0; i < call.num_inputs; ++i) result.in[i] = matrix(call.inputs[i]);
  for (int32_t i = 0; i < call.num_outputs; ++i) result.out[i] = matrix(call.outputs[i]);
  if (one_row) {
    result.cols = rows * cols;
    result.rows = result.cols == 0 ? 0 : 1;
  }
  return result;
}

}  // namespace fuseboard::elementwise
