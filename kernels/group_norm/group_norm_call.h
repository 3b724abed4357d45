// A group_norm call as its kernels see it: checked once, then read by name instead of by index.

#ifndef KERNELS_GROUP_NORM_GROUP_NORM_CALL_H_
#define KERNELS_GROUP_NORM_GROUP_NORM_CALL_H_

#include "kernels/abi/group_norm.h"
#include "kernels/abi/kernel_abi.h"
#include "kernels/common/reject.h"

namespace fuseboard::group_norm {

// Of x, as example by example its groups, and group by group its channels of `elements`.
struct Shape {
  int64_t examples;
  int64_t channels;
  int64_t elements;  // Of one channel.
  int64_t groups;    // Of one example.

  int64_t all_groups() const { return examples * groups; }
  int64_t group_channels() const { return channels / groups; }
  int64_t group_elements() const { return group_channels() * elements; }
};

struct ForwardCall {
  const FbTensor& x;
  const FbTensor& weight;  // Or absent.
  const FbTensor& bias;    // Or absent.
  const FbTensor& y;
  const FbTensor& mean;  // Or absent.
  const FbTensor& rstd;  // Or absent.
  Shape shape;
  float eps;
};

struct BackwardCall {
  const FbTensor& dy;
  const FbTensor& x;
  const FbTensor& weight;  // Or absent.
  const FbTensor& mean;
  const FbTensor& rstd;
  const FbTensor& dx;       // Or absent.
  const FbTensor& dweight;  // Or absent.
  const FbTensor& dbias;    // Or absent.
  Shape shape;

  bool has_parameters() const { return !IsAbsent(dweight) || !IsAbsent(dbias); }
};

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// REQUIRES of all below: the call was not rejected.
inline const FbGroupNormParams& ParamsOf(const FbCall& call) {
  return *static_cast<const FbGroupNormParams*>(call.params);
}

inline Shape ShapeOf(const FbCall& call, const FbTensor& x) {
  return {x.shape[0], x.shape[1], x.shape[2], ParamsOf(call).groups};
}

inline ForwardCall ForwardOf(const FbCall& call) {
  const FbTensor* in = call.inputs;
  const FbTensor* out = call.outputs;
  const auto eps = static_cast<float>(ParamsOf(call).eps);
  return {in[0], in[1], in[2], out[0], out[1], out[2], ShapeOf(call, in[0]), eps};
}

inline BackwardCall BackwardOf(const FbCall& call) {
  const FbTensor* in = call.inputs;
  const FbTensor* out = call.outputs;
  return {in[0], in[1], in[2], in[3], in[4], out[0], out[1], out[2], ShapeOf(call, in[1])};
}

inline void* DataOf(const FbTensor& tensor) { return IsAbsent(tensor) ? nullptr : tensor.data; }

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_GROUP_NORM_CALL_H_
