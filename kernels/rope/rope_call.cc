#include "kernels/rope/rope_call.h"

namespace fuseboard::rope {
namespace {

struct Names {
  const char* in[2];
  const char* out[2];
};

// q, or k where there is no q.
const FbTensor& FirstPresent(const FbCall& call) {
  return IsAbsent(call.inputs[0]) ? call.inputs[1] : call.inputs[0];
}

const char* Check(const FbCall& call, const Names& names) {
  const FbTensor& first = FirstPresent(call);
  for (int i = 0; i < 2; ++i) {
    const FbTensor& input = call.inputs[i];
    if (!IsAbsent(input)) {
      if (const char* why = CheckHeads(call, names.in[i], input, first)) return why;
    }
    if (const char* why =
            CheckOutputHeads(call, names.out[i], call.outputs[i], names.in[i], input)) {
      return why;
    }
  }
  if (IsAbsent(first)) return nullptr;
  const auto& params = *static_cast<const FbRopeParams*>(call.params);
  return CheckRotation(call, params, first, call.inputs[2], call.inputs[3]);
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 4, 2, sizeof(FbRopeParams))) return why;
  if (IsAbsent(call->inputs[0])) return Reject("q: want a tensor, got none");
  return Check(*call, {{"q", "k"}, {"q_out", "k_out"}});
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 4, 2, sizeof(FbRopeParams))) return why;
  return Check(*call, {{"dq_out", "dk_out"}, {"dq", "dk"}});
}

Call CallOf(const FbCall& call, FbPhase phase) {
  const FbTensor& first = FirstPresent(call);
  if (IsAbsent(first)) return {};
  Call result = {};
  for (int i = 0; i < 2; ++i) {
    result.in[i] = HeadsOf(call.inputs[i]);
    result.out[i] = HeadsOf(call.outputs[i]);
  }
  const auto& params = *static_cast<const FbRopeParams*>(call.params);
  result.rotation = RotationOf(first, call.inputs[2], call.inputs[3], params, phase == FB_BACKWARD);
  result.dtype = first.dtype;
  return result;
}

}  // namespace fuseboard::rope
