#include "kernels/cross_entropy/cross_entropy_problem.h"

#include "kernels/abi/cross_entropy.h"

namespace fuseboard::cross_entropy {
namespace {

// The i-th output, or null if the call leaves it out.
template <typename T>
T* OutputOrNull(const FbCall& call, int i) {
  return static_cast<T*>(call.outputs[i].data);
}

Problem UnpackCommon(const FbCall& call, const FbTensor& dlogits) {
  const FbTensor& logits = call.inputs[0];
  const FbTensor& target = call.inputs[1];
  const FbTensor& scale = call.inputs[3];
  const auto& params = *static_cast<const FbCrossEntropyParams*>(call.params);
  Problem p{};
  p.logits = logits.data;
  p.dlogits = dlogits.data;
  p.target = target.data;
  p.class_weight = static_cast<const float*>(call.inputs[2].data);
  p.scale = static_cast<const float*>(scale.data);
  p.rows = logits.shape[0];
  p.logits_stride = logits.stride[0];
  p.dlogits_stride = dlogits.stride[0];
  p.target_stride = target.stride[0];
  p.scale_stride = scale.stride[0];
  p.ignore_index = params.ignore_index;
  p.vocab = static_cast<std::int32_t>(logits.shape[1]);
  p.dtype = logits.dtype;
  p.logit_scale = static_cast<float>(params.logit_scale);
  p.softcap = static_cast<float>(params.softcap);
  p.label_smoothing = static_cast<float>(params.label_smoothing);
  p.z_loss_scale = static_cast<float>(params.z_loss_scale);
  p.target_is_i64 = target.dtype == FB_I64;
  p.z_loss_in_loss = params.z_loss_in_loss != 0;
  return p;
}

}  // namespace

Problem UnpackForward(const FbCall& call) {
  Problem p = UnpackCommon(call, call.outputs[4]);
  p.loss = OutputOrNull<float>(call, 0);
  p.z_loss = OutputOrNull<float>(call, 1);
  p.lse = OutputOrNull<void>(call, 2);
  p.wide_statistics = call.outputs[2].dtype == FB_F64;
  p.argmax = OutputOrNull<std::int64_t>(call, 3);
  if (call.num_outputs > 5) p.entropy = OutputOrNull<void>(call, 5);
  return p;
}

Problem UnpackBackward(const FbCall& call) {
  Problem p = UnpackCommon(call, call.outputs[0]);
  p.lse_in = call.inputs[4].data;
  p.wide_statistics = call.inputs[4].dtype == FB_F64;
  if (call.num_inputs > 5) {
    p.entropy_in = call.inputs[5].data;
    p.dentropy = static_cast<const float*>(call.inputs[6].data);
    p.dentropy_stride = call.inputs[6].stride[0];
  }
  return p;
}

}  // namespace fuseboard::cross_entropy
