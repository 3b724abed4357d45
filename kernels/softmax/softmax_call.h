// A softmax call as its kernels see it: checked once, then read by name instead of by index.

#ifndef KERNELS_SOFTMAX_SOFTMAX_CALL_H_
#define KERNELS_SOFTMAX_SOFTMAX_CALL_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/abi/softmax.h"

namespace fuseboard::softmax {

// A matrix whose rows lie `stride` elements apart.
struct Matrix {
  void* base;
  int64_t stride;
};

// Forward: in = {x}, out = y. Backward: in = {dy, y}, out = dx.
struct Call {
  Matrix in[2];
  Matrix out;
  int64_t rows;
  int32_t cols;
  int32_t dtype;
};

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// Without elements there are no rows either. REQUIRES: the call was not rejected.
Call CallOf(const FbCall& call);

}  // namespace fuseboard::softmax

#endif  // KERNELS_SOFTMAX_SOFTMAX_CALL_H_
