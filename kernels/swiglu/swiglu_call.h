// A swiglu call as its kernels see it: checked once, then read by name instead of by index.

#ifndef KERNELS_SWIGLU_SWIGLU_CALL_H_
#define KERNELS_SWIGLU_SWIGLU_CALL_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/abi/swiglu.h"
#include "kernels/common/reject.h"

namespace fuseboard::swiglu {

// A matrix whose rows lie `stride` elements apart.
struct Matrix {
  void* base;  // NULL: absent.
  int64_t stride;
};

// Forward: in = {gate, up}, out = {out}. Backward: in = {dout, gate, up}, out = {dgate, dup}.
struct Call {
  Matrix in[3];
  Matrix out[2];
  int64_t rows;
  int64_t cols;
  int32_t dtype;
  bool round_activation;
};

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// Rows that lie one after the other in all tensors become one row.
// REQUIRES: the call was not rejected.
Call CallOf(const FbCall& call);

}  // namespace fuseboard::swiglu

#endif  // KERNELS_SWIGLU_SWIGLU_CALL_H_
