#include "kernels/softmax/softmax_call.h"

#include <array>
#include <cinttypes>
#include <span>

#include "kernels/common/reject.h"

namespace fuseboard::softmax {
namespace {

// Columns are counted in 32 bits within a row, a few units past its end too.
constexpr int64_t kMaxCols = int64_t{1} << 30;

// REQUIRES: the call has as many inputs as there are names, and one output.
const char* Check(const FbCall& call, std::span<const char* const> input_names,
                  const char* output_name) {
  const FbTensor& first = call.inputs[0];
  if (first.ndim != 2) {
    return Reject("%s: want 2 dimensions, got %d", input_names[0], first.ndim);
  }
  if (const char* why = CheckFloatDType(input_names[0], first)) return why;
  const int64_t rows = first.shape[0];
  const int64_t cols = first.shape[1];
  if (cols > kMaxCols) {
    return Reject("%s: want at most %" PRId64 " columns, got %" PRId64, input_names[0], kMaxCols,
                  cols);
  }
  for (size_t i = 0; i < input_names.size(); ++i) {
    const FbTensor& input = call.inputs[i];
    if (const char* why = CheckMatrix(call, input_names[i], input, rows, cols)) return why;
    if (const char* why = CheckDType(input_names[i], input, first.dtype)) return why;
  }
  const FbTensor& output = call.outputs[0];
  if (const char* why = CheckOutputMatrix(call, output_name, output, rows, cols)) return why;
  return CheckDType(output_name, output, first.dtype);
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"x"};
  if (const char* why = CheckBareCall(call, device_type, 1, 1)) return why;
  return Check(*call, kInputs, "y");
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"dy", "y"};
  if (const char* why = CheckBareCall(call, device_type, 2, 1)) return why;
  return Check(*call, kInputs, "dx");
}

Call CallOf(const FbCall& call) {
  const FbTensor& first = call.inputs[0];
  Call result = {};
  for (int32_t i = 0; i < call.num_inputs; ++i) {
    result.in[i] = {call.inputs[i].data, call.inputs[i].stride[0]};
  }
  result.out = {call.outputs[0].data, call.outputs[0].stride[0]};
  result.rows = first.shape[1] == 0 ? 0 : first.shape[0];
  result.cols = static_cast<int32_t>(first.shape[1]);
  result.dtype = first.dtype;
  return result;
}

}  // namespace fuseboard::softmax
