#include "kernels/swiglu/swiglu_call.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numbers>
#include <utility>

#include "kernels/elementwise/elementwise_call.h"

namespace fuseboard::swiglu {
namespace {

using elementwise::Outputs;

constexpr uint32_t kFirstVersionBytes = offsetof(FbSwigluParams, gate_multiplier);

FbSwigluParams ParamsOf(const FbCall& call) {
  FbSwigluParams params = {.struct_size = sizeof(FbSwigluParams),
                           .round_activation = 0,
                           .gate_multiplier = 1.0,
                           .out_multiplier = 1.0,
                           .alpha = 1.0,
                           .limit = 0.0,
                           .up_offset = 0.0};
  // All that was appended has 8 bytes: a field that is not whole is not looked at.
  const uint32_t size = static_cast<const FbSwigluParams*>(call.params)->struct_size;
  std::memcpy(&params, call.params, std::min<size_t>(size, sizeof(params)) & ~size_t{7});
  return params;
}

const char* CheckParams(const FbSwigluParams& params) {
  if (params.round_activation != 0 && params.round_activation != 1) {
    return Reject("round_activation: want 0 or 1, got %d", params.round_activation);
  }
  const std::pair<const char*, double> numbers[] = {{"gate_multiplier", params.gate_multiplier},
                                                    {"out_multiplier", params.out_multiplier},
                                                    {"alpha", params.alpha},
                                                    {"limit", params.limit},
                                                    {"up_offset", params.up_offset}};
  for (const auto& [name, value] : numbers) {
    // Not <=, to which NaN is false.
    if (!(std::fabs(value) <= std::numeric_limits<float>::max())) {
      return Reject("%s: want a finite f32, got %g", name, value);
    }
  }
  if (params.limit < 0.0) return Reject("limit: want >= 0, got %g", params.limit);
  return nullptr;
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"gate", "up"};
  constexpr std::array kOutputs = {"out"};
  if (const char* why = CheckCall(call, device_type, 2, 1, kFirstVersionBytes)) return why;
  if (const char* why = CheckParams(ParamsOf(*call))) return why;
  if (elementwise::IsAlternating(*call)) {
    return elementwise::CheckAlternatingTensors(*call, kInputs, kOutputs);
  }
  return elementwise::CheckTensors(*call, kInputs, kOutputs, Outputs::kRequired);
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  constexpr std::array kInputs = {"dout", "gate", "up"};
  constexpr std::array kOutputs = {"dgate", "dup"};
  if (const char* why = CheckCall(call, device_type, 3, 2, kFirstVersionBytes)) return why;
  if (const char* why = CheckParams(ParamsOf(*call))) return why;
  if (elementwise::IsAlternating(*call)) {
    return elementwise::CheckAlternatingTensors(*call, kInputs, kOutputs);
  }
  return elementwise::CheckTensors(*call, kInputs, kOutputs, Outputs::kOptional);
}

Options OptionsOf(const FbCall& call) {
  const FbSwigluParams params = ParamsOf(call);
  const bool limited = params.limit > 0.0;
  return {
      .round_activation = params.round_activation != 0,
      .limited = limited,
      .gate_multiplier = static_cast<float>(params.gate_multiplier),
      .out_multiplier = static_cast<float>(params.out_multiplier),
      .alpha = static_cast<float>(params.alpha),
      .minus_alpha_log2e = static_cast<float>(-params.alpha * std::numbers::log2e),
      .limit = limited ? static_cast<float>(params.limit) : std::numeric_limits<float>::infinity(),
      .up_offset = static_cast<float>(params.up_offset),
  };
}

bool IsPlain(const Options& options) {
  return !options.limited && options.gate_multiplier == 1.0f && options.out_multiplier == 1.0f &&
         options.alpha == 1.0f && options.up_offset == 0.0f;
}

}  // namespace fuseboard::swiglu
