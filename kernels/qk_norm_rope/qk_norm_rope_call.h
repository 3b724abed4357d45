// A qk_norm_rope call as its kernels see it: checked once, then read by name instead of by index.

#ifndef KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CALL_H_
#define KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CALL_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/abi/qk_norm_rope.h"
#include "kernels/common/reject.h"
#include "kernels/common/rotary.h"

namespace fuseboard::qk_norm_rope {

// What is done to every row before it is rotated.
struct Norm {
  float eps;
  float offset;       // Added to a weight.
  bool round_normed;  // x * rstd is rounded to the dtype of x.
  bool round_scaled;  // What the forward rotates is rounded to the dtype of the results.
  bool all_heads;     // A row is all heads of a position, else one of them.
};

// q or k. No heads: there is nothing to do.
struct Side {
  Heads x;
  Heads upstream;    // Backward: the gradient of the result.
  Heads out;         // The result, or the gradient of x: its base is NULL if that is not wanted.
  FbTensor weight;   // Or absent.
  FbTensor dweight;  // Backward; or absent.
};

struct Call {
  Side side[2];
  Rotation rotation;
  Norm norm;
  int32_t dtype;         // Of q, k and their gradients.
  int32_t result_dtype;  // Of q_out, k_out and their gradients.
};

// Elements of a row, which are those of its weight.
inline int64_t FeaturesOf(const Call& call, const Side& side) {
  return (call.norm.all_heads ? side.x.count : 1) * call.rotation.dim;
}

inline int64_t RowsOf(const Call& call, const Side& side) {
  const int64_t rows = call.norm.all_heads ? (side.x.count > 0 ? 1 : 0) : side.x.count;
  return rows * call.rotation.batch * call.rotation.positions;
}

// Whether the backward has anything to write for it.
inline bool IsWanted(const Side& side) {
  return side.out.base != nullptr || !IsAbsent(side.dweight);
}

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// REQUIRES: the call was not rejected.
Call ForwardOf(const FbCall& call);
Call BackwardOf(const FbCall& call);

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CALL_H_
