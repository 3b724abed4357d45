#include "kernels/relu_squared/relu_squared_call.h"

#include <array>

#include "kernels/elementwise/elementwise_call.h"

namespace fuseboard::relu_squared {

using elementwise::CheckTensors;
using elementwise::Outputs;

const char* RejectForward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"x"};
  constexpr std::array kOutputs = {"y"};
  if (const char* why = CheckBareCall(call, device_type, 1, 1)) return why;
  return CheckTensors(*call, kInputs, kOutputs, Outputs::kRequired);
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"dy", "x"};
  constexpr std::array kOutputs = {"dx"};
  if (const char* why = CheckBareCall(call, device_type, 2, 1)) return why;
  return CheckTensors(*call, kInputs, kOutputs, Outputs::kRequired);
}

}  // namespace fuseboard::relu_squared
