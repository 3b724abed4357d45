#include "kernels/jsd/jsd_call.h"

#include <cstddef>

#include "kernels/common/matrix_overlap.h"
#include "kernels/common/reject.h"

namespace fuseboard::jsd {
namespace {

const char* CheckParams(const FbJsdParams& params) {
  if (!(params.beta >= 0.0 && params.beta <= 1.0)) {
    return Reject("beta: want a number in [0, 1], got %g", params.beta);
  }
  return nullptr;
}

// A forward from logits as one with the outputs of log-probabilities.
class Elementwise {
 public:
  explicit Elementwise(const FbCall& call) : call_(call) {
    outputs_[0] = call.outputs[0];
    outputs_[1].ndim = -1;
    outputs_[2] = call.outputs[1];
    call_.outputs = outputs_;
    call_.num_outputs = 3;
  }
  Elementwise(const Elementwise&) = delete;
  Elementwise& operator=(const Elementwise&) = delete;

  const FbCall& call() const { return call_; }

 private:
  FbTensor outputs_[3] = {};
  FbCall call_;
};

const char* RejectLogits(const FbCall& call, int32_t device_type) {
  const Elementwise elementwise(call);
  if (const char* why =
          row_loss::CheckForward(&elementwise.call(), device_type, sizeof(FbJsdParams))) {
    return why;
  }
  const FbJsdParams& params = ParamsOf(call);
  if (const char* why = CheckParams(params)) return why;
  if (!(params.temperature > 0.0)) {
    return Reject("temperature: want more than 0, got %g", params.temperature);
  }
  const FbTensor& input = call.inputs[0];
  const FbTensor& dinput = call.outputs[1];
  if (IsAbsent(dinput) || IsInPlace(input, dinput) || AreDisjoint(input, dinput)) return nullptr;
  return Reject("dinput: want the memory of input or none of it, got an overlap (%p and %p)",
                dinput.data, input.data);
}

// Of the parameters that every call has.
constexpr uint32_t kParamsBytes = offsetof(FbJsdParams, temperature);

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  if (call != nullptr && IsFromLogits(*call)) return RejectLogits(*call, device_type);
  const char* why = row_loss::CheckForward(call, device_type, kParamsBytes);
  if (why != nullptr || call == nullptr) return why;
  return CheckParams(ParamsOf(*call));
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  const char* why = row_loss::CheckBackward(call, device_type, kParamsBytes);
  return why != nullptr ? why : CheckParams(ParamsOf(*call));
}

row_loss::Call LogitsCallOf(const FbCall& call) {
  const Elementwise elementwise(call);
  return row_loss::ForwardCallOf(elementwise.call(), ParamsOf(call).ignore_index);
}

}  // namespace fuseboard::jsd
