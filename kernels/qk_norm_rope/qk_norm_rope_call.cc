#include "kernels/qk_norm_rope/qk_norm_rope_call.h"

#include <cinttypes>

#include "kernels/rms_norm/rms_norm_call.h"

namespace fuseboard::qk_norm_rope {
namespace {

// Columns of a row are counted in 32 bits.
constexpr int64_t kMaxFeatures = int64_t{1} << 30;

struct Names {
  const char* x;
  const char* weight;
  const char* y;
  const char* dy;
  const char* dx;
  const char* dweight;
};
constexpr Names kNames[2] = {{"q", "q_weight", "q_out", "dq_out", "dq", "dq_weight"},
                             {"k", "k_weight", "k_out", "dk_out", "dk", "dk_weight"}};

// Where the tensors of a side stand among the inputs.
struct Inputs {
  const FbTensor* x;
  const FbTensor* weight;
  const FbTensor* cos;
};

Inputs InputsOf(const FbCall& call, FbPhase phase) {
  const FbTensor* in = call.inputs + (phase == FB_BACKWARD ? 2 : 0);
  return {in, in + 4, in + 2};
}

const FbQkNormRopeParams& ParamsOf(const FbCall& call) {
  return *static_cast<const FbQkNormRopeParams*>(call.params);
}

FbTensor WithDType(FbTensor tensor, int32_t dtype) {
  tensor.dtype = dtype;
  return tensor;
}

const char* CheckWeight(const FbCall& call, const char* name, const FbTensor& weight,
                        const FbTensor& x) {
  if (IsAbsent(weight)) return nullptr;
  const int64_t features = (ParamsOf(call).all_heads != 0 ? x.shape[1] : 1) * x.shape[3];
  if (const char* why = CheckVector(call, name, weight, features, VectorStride::kOne)) return why;
  return CheckFloatDType(name, weight);
}

const char* CheckSide(const FbCall& call, const Names& names, const FbTensor& x, const FbTensor& q,
                      const FbTensor& weight) {
  if (const char* why = CheckHeads(call, names.x, x, q)) return why;
  if (x.shape[1] * x.shape[3] > kMaxFeatures) {
    return Reject("%s: want at most %" PRId64 " elements in a position, got %" PRId64, names.x,
                  kMaxFeatures, x.shape[1] * x.shape[3]);
  }
  return CheckWeight(call, names.weight, weight, x);
}

// q, k, their weights, the tables and the parameters.
const char* CheckInputs(const FbCall& call, const Inputs& in) {
  const FbQkNormRopeParams& params = ParamsOf(call);
  if (const char* why = rms_norm::CheckNorm(params.casting, params.eps, params.offset)) return why;
  if (params.all_heads != 0 && params.all_heads != 1) {
    return Reject("all_heads: want 0 or 1, got %d", params.all_heads);
  }
  const FbTensor& q = in.x[0];
  if (IsAbsent(q)) return Reject("q: want a tensor, got none");
  if (const char* why = CheckSide(call, kNames[0], q, q, in.weight[0])) return why;
  if (!IsAbsent(in.x[1])) {
    if (const char* why = CheckSide(call, kNames[1], in.x[1], q, in.weight[1])) return why;
    const int32_t want = rms_norm::OutputDType(q, in.weight[0], params.casting);
    const int32_t got = rms_norm::OutputDType(q, in.weight[1], params.casting);
    if (want != got) {
      return Reject("k_weight: want a result in %s, as q has it, got one in %s", DTypeName(want),
                    DTypeName(got));
    }
  }
  return CheckRotation(call, params.rope, q, in.cos[0], in.cos[1]);
}

// `upstream` is of the shape of `x` and of the dtype of the results.
const char* CheckUpstream(const FbCall& call, const char* name, const FbTensor& upstream,
                          const FbTensor& x, int32_t dtype) {
  if (const char* why = CheckHeads(call, name, upstream, WithDType(x, dtype))) return why;
  return CheckStrided(call, name, upstream, x.shape, 4);
}

const char* CheckGradients(const FbCall& call, int side, const Inputs& in, int32_t dtype) {
  const Names& names = kNames[side];
  const FbTensor& x = in.x[side];
  const FbTensor& dy = call.inputs[side];
  const FbTensor& dx = call.outputs[side];
  const FbTensor& dweight = call.outputs[2 + side];
  if (IsAbsent(dy) || IsAbsent(x)) {
    if (!IsAbsent(dy)) return Reject("%s: want it absent, as %s is", names.dy, names.x);
    if (!IsAbsent(dx)) return Reject("%s: want it absent, as %s is", names.dx, names.dy);
    if (IsAbsent(dweight)) return nullptr;
    return Reject("%s: want it absent, as %s is", names.dweight, names.dy);
  }
  if (const char* why = CheckUpstream(call, names.dy, dy, x, dtype)) return why;
  if (!IsAbsent(dx)) {
    if (const char* why = CheckOutputHeads(call, names.dx, dx, names.x, x)) return why;
  }
  if (IsAbsent(dweight)) return nullptr;
  const FbTensor& weight = in.weight[side];
  if (IsAbsent(weight)) return Reject("%s: want it absent, as %s is", names.dweight, names.weight);
  if (const char* why = CheckWeight(call, names.dweight, dweight, x)) return why;
  return CheckDType(names.dweight, dweight, weight.dtype);
}

int32_t ResultDType(const FbCall& call, const Inputs& in) {
  return rms_norm::OutputDType(in.x[0], in.weight[0], ParamsOf(call).casting);
}

// All but the sides' gradients and results.
Call CallOf(const FbCall& call, const Inputs& in, FbPhase phase) {
  const FbQkNormRopeParams& params = ParamsOf(call);
  Call result = {};
  result.dtype = in.x[0].dtype;
  result.result_dtype = ResultDType(call, in);
  result.norm = {.eps = static_cast<float>(params.eps),
                 .offset = static_cast<float>(params.offset),
                 .round_normed = params.casting == FB_CASTING_LLAMA,
                 .round_scaled = params.casting != FB_CASTING_NONE,
                 .all_heads = params.all_heads != 0};
  result.rotation = RotationOf(in.x[0], in.cos[0], in.cos[1], params.rope, phase == FB_BACKWARD);
  if (!result.norm.round_scaled || result.result_dtype != result.dtype) {
    result.rotation.round_products = false;
  }
  for (int i = 0; i < 2; ++i) {
    Side& side = result.side[i];
    side.x = HeadsOf(in.x[i]);
    side.weight = in.weight[i];
    side.dweight.ndim = -1;
  }
  return result;
}

}  // namespace

const char* RejectForward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 6, 2, sizeof(FbQkNormRopeParams))) return why;
  const Inputs in = InputsOf(*call, FB_FORWARD);
  if (const char* why = CheckInputs(*call, in)) return why;
  for (int i = 0; i < 2; ++i) {
    const FbTensor x = WithDType(in.x[i], ResultDType(*call, in));
    if (const char* why = CheckOutputHeads(*call, kNames[i].y, call->outputs[i], kNames[i].x, x)) {
      return why;
    }
  }
  return nullptr;
}

const char* RejectBackward(const FbCall* call, int32_t device_type) {
  if (const char* why = CheckCall(call, device_type, 8, 4, sizeof(FbQkNormRopeParams))) return why;
  const Inputs in = InputsOf(*call, FB_BACKWARD);
  if (const char* why = CheckInputs(*call, in)) return why;
  for (int i = 0; i < 2; ++i) {
    if (const char* why = CheckGradients(*call, i, in, ResultDType(*call, in))) return why;
  }
  return nullptr;
}

Call ForwardOf(const FbCall& call) {
  Call result = CallOf(call, InputsOf(call, FB_FORWARD), FB_FORWARD);
  for (int i = 0; i < 2; ++i) result.side[i].out = HeadsOf(call.outputs[i]);
  return result;
}

Call BackwardOf(const FbCall& call) {
  Call result = CallOf(call, InputsOf(call, FB_BACKWARD), FB_BACKWARD);
  for (int i = 0; i < 2; ++i) {
    Side& side = result.side[i];
    side.upstream = HeadsOf(call.inputs[i]);
    side.out = HeadsOf(call.outputs[i]);
    side.dweight = call.outputs[2 + i];
    if (!IsWanted(side)) side.x.count = 0;
  }
  return result;
}

}  // namespace fuseboard::qk_norm_rope
