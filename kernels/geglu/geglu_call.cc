#include "kernels/geglu/geglu_call.h"

#include <array>

#include "kernels/elementwise/elementwise_call.h"

namespace fuseboard::geglu {
namespace {

using elementwise::CheckTensors;
using elementwise::Outputs;

const char* CheckParams(const FbGegluParams& params) {
  if (params.round_activation != 0 && params.round_activation != 1) {
    return Reject("round_activation: want 0 or 1, got %d", params.round_activation);
  }
  if (params.gelu == FB_GELU_TANH || params.gelu == FB_GELU_EXACT) return nullptr;
  return Reject("gelu: want 0 (tanh) or 1 (exact), got %d", params.gelu);
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"gate", "up"};
  constexpr std::array kOutputs = {"out"};
  if (const char* why = CheckCall(call, device_type, 2, 1, sizeof(FbGegluParams))) return why;
  if (const char* why = CheckParams(ParamsOf(*call))) return why;
  return CheckTensors(*call, kInputs, kOutputs, Outputs::kRequired);
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"dout", "gate", "up"};
  constexpr std::array kOutputs = {"dgate", "dup"};
  if (const char* why = CheckCall(call, device_type, 3, 2, sizeof(FbGegluParams))) return why;
  if (const char* why = CheckParams(ParamsOf(*call))) return why;
  return CheckTensors(*call, kInputs, kOutputs, Outputs::kOptional);
}

}  // namespace fuseboard::geglu
