// A swiglu call: its parameters, and when it is refused.

#ifndef KERNELS_SWIGLU_SWIGLU_CALL_H_
#define KERNELS_SWIGLU_SWIGLU_CALL_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/abi/swiglu.h"

namespace fuseboard::swiglu {

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// What a kernel needs of the parameters. Plain data.
struct Options {
  bool round_activation;
  bool limited;
  float gate_multiplier;
  float out_multiplier;
  float alpha;
  float minus_alpha_log2e;
  float limit;  // Infinity if not limited.
  float up_offset;
};

// Fields that the caller's struct does not have are at their defaults. REQUIRES: the call was not
// rejected.
Options OptionsOf(const FbCall& call);

// Whether this is out = silu(gate) * up.
bool IsPlain(const Options& options);

}  // namespace fuseboard::swiglu

#endif  // KERNELS_SWIGLU_SWIGLU_CALL_H_
