#include "kernels/cross_entropy/cross_entropy_check.h"

#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdint>

#include "kernels/abi/cross_entropy.h"
#include "kernels/common/matrix_overlap.h"
#include "kernels/common/reject.h"

namespace fuseboard::cross_entropy {
namespace {

// Column arithmetic is 32-bit and looks a few vectors past the end; rows are counted in 64 bits.
constexpr int64_t kMaxVocab = int64_t{1} << 30;

const char* CheckParams(const FbCrossEntropyParams& params) {
  if (!(params.label_smoothing >= 0 && params.label_smoothing <= 1)) {
    return Reject("label_smoothing: want 0 to 1, got %g", params.label_smoothing);
  }
  if (!(params.softcap >= 0 && std::isfinite(params.softcap))) {
    return Reject("softcap: want 0 (none) or more, got %g", params.softcap);
  }
  if (!(params.z_loss_scale >= 0 && std::isfinite(params.z_loss_scale))) {
    return Reject("z_loss_scale: want 0 or more, got %g", params.z_loss_scale);
  }
  if (!std::isfinite(params.logit_scale) || static_cast<float>(params.logit_scale) == 0) {
    return Reject("logit_scale: want a finite number other than 0, got %g", params.logit_scale);
  }
  if (params.z_loss_in_loss != 0 && params.z_loss_in_loss != 1) {
    return Reject("z_loss_in_loss: want 0 or 1, got %d", params.z_loss_in_loss);
  }
  return nullptr;
}

// A float vector of one value per row (or per class), absent or stride `stride`.
const char* CheckOptionalFloats(const FbCall& call, const char* name, const FbTensor& tensor,
                                int64_t size, VectorStride stride) {
  if (IsAbsent(tensor)) return nullptr;
  if (const char* why = CheckVector(call, name, tensor, size, stride)) return why;
  return CheckDType(name, tensor, FB_F32);
}

const char* CheckTarget(const FbCall& call, const FbTensor& target, int64_t rows) {
  if (const char* why = CheckVector(call, "target", target, rows, VectorStride::kAny)) return why;
  if (target.dtype != FB_I64 && target.dtype != FB_I32) {
    return Reject("target: want i64 or i32, got %s", DTypeName(target.dtype));
  }
  return nullptr;
}

int64_t ElementBytesOf(const FbTensor& tensor) { return tensor.dtype == FB_F32 ? 4 : 2; }

// Loads and stores are of whole elements, so a base between two elements cannot be served.
const char* CheckElementAlignment(const char* name, const FbTensor& tensor) {
  const auto offset =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data) % ElementBytesOf(tensor));
  if (offset == 0) return nullptr;
  return Reject("%s: want memory aligned to its elements, got %" PRId64 " bytes off", name, offset);
}

const char* CheckGradient(const FbCall& call, const FbTensor& logits, const FbTensor& dlogits) {
  const int64_t rows = logits.shape[0];
  if (const char* why = CheckOutputMatrix(call, "dlogits", dlogits, rows, logits.shape[1])) {
    return why;
  }
  if (const char* why = CheckDType("dlogits", dlogits, logits.dtype)) return why;
  if (const char* why = CheckElementAlignment("dlogits", dlogits)) return why;
  if (IsInPlace(logits, dlogits) || AreDisjoint(logits, dlogits)) return nullptr;
  return Reject("dlogits: want the memory of logits or none of it, got an overlap (%p and %p)",
                dlogits.data, logits.data);
}

const char* CheckCommon(const FbCall* call, int32_t device_type, int32_t num_inputs,
                        int32_t num_outputs) {
  if (const char* why =
          CheckCall(call, device_type, num_inputs, num_outputs, sizeof(FbCrossEntropyParams))) {
    return why;
  }
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): CheckCall refuses a call that is NULL.
  if (const char* why = CheckParams(*static_cast<const FbCrossEntropyParams*>(call->params))) {
    return why;
  }
  const FbTensor& logits = call->inputs[0];
  const int64_t rows = logits.shape[0];
  const int64_t vocab = logits.shape[1];
  if (const char* why = CheckMatrix(*call, "logits", logits, rows, vocab)) return why;
  if (const char* why = CheckFloatDType("logits", logits)) return why;
  if (const char* why = CheckElementAlignment("logits", logits)) return why;
  if (vocab < 1 || vocab > kMaxVocab) {
    return Reject("logits: want 1 to %" PRId64 " columns, got %" PRId64, kMaxVocab, vocab);
  }
  if (const char* why = CheckTarget(*call, call->inputs[1], rows)) return why;
  return CheckOptionalFloats(*call, "class_weight", call->inputs[2], vocab, VectorStride::kOne);
}

const char* CheckFloats(const FbCall& call, const char* name, const FbTensor& tensor, int64_t rows,
                        VectorStride stride) {
  if (const char* why = CheckVector(call, name, tensor, rows, stride)) return why;
  return CheckDType(name, tensor, FB_F32);
}

// lse or entropy.
const char* CheckStatistic(const FbCall& call, const char* name, const FbTensor& tensor) {
  const FbTensor& logits = call.inputs[0];
  if (const char* why = CheckVector(call, name, tensor, logits.shape[0], VectorStride::kOne)) {
    return why;
  }
  if (logits.dtype == FB_F32 && tensor.dtype == FB_F64) return nullptr;
  return CheckDType(name, tensor, FB_F32);
}

// An entropy is made after all else, from lse and from logits that are as they were.
const char* CheckEntropy(const FbCall& call) {
  const FbTensor& entropy = call.outputs[5];
  if (IsAbsent(entropy)) return nullptr;
  if (const char* why = CheckStatistic(call, "entropy", entropy)) return why;
  if (IsAbsent(call.outputs[2])) return Reject("entropy: want lse beside it, got none");
  if (const char* why = CheckDType("entropy", entropy, call.outputs[2].dtype)) return why;
  if (IsAbsent(call.outputs[4])) return nullptr;
  return Reject("entropy: want no dlogits beside it, got some");
}

}  // namespace

const char* ForwardRejectReason(const FbCall* call, int32_t device_type) {
  const bool has_entropy = call != nullptr && call->num_outputs == 6;
  if (const char* why = CheckCommon(call, device_type, 4, has_entropy ? 6 : 5)) return why;
  const FbTensor& logits = call->inputs[0];
  const int64_t rows = logits.shape[0];
  if (const char* why =
          CheckOptionalFloats(*call, "scale", call->inputs[3], rows, VectorStride::kAny)) {
    return why;
  }
  constexpr std::array kNames = {"loss", "z_loss"};
  for (int i = 0; i < 2; ++i) {
    if (const char* why =
            CheckOptionalFloats(*call, kNames[i], call->outputs[i], rows, VectorStride::kOne)) {
      return why;
    }
  }
  if (!IsAbsent(call->outputs[2])) {
    if (const char* why = CheckStatistic(*call, "lse", call->outputs[2])) return why;
  }
  const FbTensor& argmax = call->outputs[3];
  if (!IsAbsent(argmax)) {
    if (const char* why = CheckVector(*call, "argmax", argmax, rows, VectorStride::kOne)) {
      return why;
    }
    if (const char* why = CheckDType("argmax", argmax, FB_I64)) return why;
  }
  if (has_entropy) {
    if (const char* why = CheckEntropy(*call)) return why;
  }
  if (IsAbsent(call->outputs[4])) return nullptr;
  return CheckGradient(*call, logits, call->outputs[4]);
}

const char* BackwardRejectReason(const FbCall* call, int32_t device_type) {
  const bool has_entropy = call != nullptr && call->num_inputs == 7;
  if (const char* why = CheckCommon(call, device_type, has_entropy ? 7 : 5, 1)) return why;
  const FbTensor& logits = call->inputs[0];
  const int64_t rows = logits.shape[0];
  const auto check = [&](const char* name, int input, VectorStride stride) {
    return CheckFloats(*call, name, call->inputs[input], rows, stride);
  };
  if (const char* why = check("scale", 3, VectorStride::kAny)) return why;
  const FbTensor& lse = call->inputs[4];
  if (const char* why = CheckStatistic(*call, "lse", lse)) return why;
  if (has_entropy) {
    const FbTensor& entropy = call->inputs[5];
    if (const char* why = CheckStatistic(*call, "entropy", entropy)) return why;
    if (const char* why = CheckDType("entropy", entropy, lse.dtype)) return why;
    if (const char* why = check("dentropy", 6, VectorStride::kAny)) return why;
  }
  return CheckGradient(*call, logits, call->outputs[0]);
}

}  // namespace fuseboard::cross_entropy
