// A layer_norm call as its kernels see it: checked once, then read by name instead of by index.

#ifndef KERNELS_LAYER_NORM_LAYER_NORM_CALL_H_
#define KERNELS_LAYER_NORM_LAYER_NORM_CALL_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/abi/layer_norm.h"
#include "kernels/common/reject.h"

namespace fuseboard::layer_norm {

struct ForwardCall {
  const FbTensor& x;
  const FbTensor& weight;  // Or absent.
  const FbTensor& bias;    // Or absent.
  const FbTensor& y;
  const FbTensor& mean;  // Or absent.
  const FbTensor& rstd;  // Or absent.
  int64_t rows;
  int64_t hidden;
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
  int64_t rows;
  int64_t hidden;
};

// FbEntry::reject_reason of both phases on a device type.
const char* RejectForward(const FbCall* call, int32_t device_type);
const char* RejectBackward(const FbCall* call, int32_t device_type);

// REQUIRES: the call was not rejected.
inline ForwardCall ForwardOf(const FbCall& call) {
  const FbTensor* in = call.inputs;
  const FbTensor* out = call.outputs;
  const auto& params = *static_cast<const FbLayerNormParams*>(call.params);
  return {in[0],          in[1],          in[2],
          out[0],         out[1],         out[2],
          in[0].shape[0], in[0].shape[1], static_cast<float>(params.eps)};
}

inline BackwardCall BackwardOf(const FbCall& call) {
  const FbTensor* in = call.inputs;
  const FbTensor* out = call.outputs;
  return {in[0],  in[1],  in[2],  in[3],          in[4],
          out[0], out[1], out[2], in[1].shape[0], in[1].shape[1]};
}

}  // namespace fuseboard::layer_norm

#endif  // KERNELS_LAYER_NORM_LAYER_NORM_CALL_H_
