#include "kernels/swiglu/swiglu_call.h"

#include <array>

#include "kernels/elementwise/elementwise_call.h"

namespace fuseboard::swiglu {
namespace {

using elementwise::CheckTensors;
using elementwise::Outputs;

const char* CheckParams(const FbSwigluParams& params) {
  if (params.round_activation == 0 || params.round_activation == 1) return nullptr;
  return Reject("round_activation: want 0 or 1, got %d", params.round_activation);
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"gate", "up"};
  constexpr std::array kOutputs = {"out"};
  if (const char* why = CheckCall(call, device_type, 2, 1, sizeof(FbSwigluParams))) return why;
  if (const char* why = CheckParams(ParamsOf(*call))) return why;
  return CheckTensors(*call, kInputs, kOutputs, Outputs::kRequired);
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"dout", "gate", "up"};
  constexpr std::array kOutputs = {"dgate", "dup"};
  if (const char* why = CheckCall(call, device_type, 3, 2, sizeof(FbSwigluParams))) return why;
  if (const char* why = CheckParams(ParamsOf(*call))) return why;
  return CheckTensors(*call, kInputs, kOutputs, Outputs::kOptional);
}

}  // namespace fuseboard::swiglu
