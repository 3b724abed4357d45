#include "kernels/common/rotary.h"

#include <algorithm>
#include <cinttypes>

#include "kernels/common/reject.h"

namespace fuseboard {
namespace {

// Heads and columns are counted in 32 bits, q's and k's heads together.
constexpr int64_t kMaxHeads = int64_t{1} << 30;
constexpr int64_t kMaxDim = int64_t{1} << 30;

const char* CheckFlag(const char* name, int32_t value) {
  if (value == 0 || value == 1) return nullptr;
  return Reject("%s: want 0 or 1, got %d", name, value);
}

const char* CheckSections(const FbRopeParams& params) {
  const int64_t pairs = params.rotary_dim / 2;
  const int64_t* s = params.sections;
  const bool fits =
      std::all_of(s, s + kRotaryStreams, [&](int64_t size) { return size >= 0 && size <= pairs; });
  if (fits && s[0] + s[1] + s[2] == pairs) return nullptr;
  return Reject("sections: want three that add up to %" PRId64 ", got %" PRId64 ", %" PRId64
                " and %" PRId64,
                pairs, s[0], s[1], s[2]);
}

FactorTable TableOf(const FbTensor& table) {
  return {table.data, table.stride[0], table.shape[1] == 1 ? 0 : table.stride[1], table.stride[2],
          table.stride[3]};
}

}  // namespace

const char* CheckHeads(const FbCall& call, const char* name, const FbTensor& tensor,
                       const FbTensor& like) {
  if (tensor.ndim != 4) return Reject("%s: want 4 dimensions, got %d", name, tensor.ndim);
  const int64_t shape[] = {like.shape[0], tensor.shape[1], like.shape[2], like.shape[3]};
  if (const char* why = CheckStrided(call, name, tensor, shape, 4)) return why;
  if (const char* why = CheckFloatDType(name, tensor)) return why;
  if (const char* why = CheckDType(name, tensor, like.dtype)) return why;
  if (tensor.shape[1] > kMaxHeads) {
    return Reject("%s: want at most %" PRId64 " heads, got %" PRId64, name, kMaxHeads,
                  tensor.shape[1]);
  }
  if (tensor.stride[3] != 1 && tensor.shape[3] > 1) {
    return Reject("%s: want stride 1 in the last dimension, got %" PRId64, name, tensor.stride[3]);
  }
  return nullptr;
}

const char* CheckOutputHeads(const FbCall& call, const char* name, const FbTensor& tensor,
                             const char* input_name, const FbTensor& input) {
  if (IsAbsent(tensor) != IsAbsent(input)) {
    return Reject("%s: want it %s, as %s is, got it %s", name,
                  IsAbsent(input) ? "absent" : "present", input_name,
                  IsAbsent(input) ? "present" : "absent");
  }
  if (IsAbsent(tensor)) return nullptr;
  const int64_t shape[] = {input.shape[0], input.shape[1], input.shape[2], input.shape[3]};
  if (tensor.ndim != 4) return Reject("%s: want 4 dimensions, got %d", name, tensor.ndim);
  if (const char* why = CheckStrided(call, name, tensor, shape, 4)) return why;
  if (const char* why = CheckHeads(call, name, tensor, input)) return why;
  return CheckNoOverlap(name, tensor);
}

const char* CheckRotation(const FbCall& call, const FbRopeParams& params, const FbTensor& heads,
                          const FbTensor& cos, const FbTensor& sin) {
  if (const char* why = CheckFlag("interleaved", params.interleaved)) return why;
  if (const char* why = CheckFlag("round_products", params.round_products)) return why;
  const int64_t dim = heads.shape[3];
  if (dim > kMaxDim) return Reject("dim: want at most %" PRId64 ", got %" PRId64, kMaxDim, dim);
  const int64_t rotary_dim = params.rotary_dim;
  if (rotary_dim < 2 || rotary_dim > dim || rotary_dim % 2 != 0) {
    return Reject("rotary_dim: want an even number from 2 to %" PRId64 ", got %" PRId64, dim,
                  rotary_dim);
  }
  if (cos.ndim != 4) return Reject("cos: want 4 dimensions, got %d", cos.ndim);
  if (cos.shape[0] != 1 && cos.shape[0] != kRotaryStreams) {
    return Reject("cos: want 1 or %" PRId64 " streams, got %" PRId64, kRotaryStreams, cos.shape[0]);
  }
  if (cos.shape[1] != 1 && cos.shape[1] != heads.shape[0]) {
    return Reject("cos: want a batch of 1 or %" PRId64 ", got %" PRId64, heads.shape[0],
                  cos.shape[1]);
  }
  if (cos.shape[3] != rotary_dim && cos.shape[3] != rotary_dim / 2) {
    return Reject("cos: want %" PRId64 " or %" PRId64 " columns, got %" PRId64, rotary_dim,
                  rotary_dim / 2, cos.shape[3]);
  }
  if (cos.shape[0] == kRotaryStreams) {
    if (const char* why = CheckSections(params)) return why;
  }
  const int64_t shape[] = {cos.shape[0], cos.shape[1], heads.shape[2], cos.shape[3]};
  if (const char* why = CheckStrided(call, "cos", cos, shape, 4)) return why;
  if (const char* why = CheckStrided(call, "sin", sin, shape, 4)) return why;
  if (heads.dtype == FB_F32) {
    if (const char* why = CheckDType("cos", cos, FB_F32)) return why;
  } else if (cos.dtype != heads.dtype && cos.dtype != FB_F32) {
    return Reject("cos: want %s or f32, got %s", DTypeName(heads.dtype), DTypeName(cos.dtype));
  }
  return CheckDType("sin", sin, cos.dtype);
}

Heads HeadsOf(const FbTensor& tensor) {
  if (IsAbsent(tensor)) return {};
  return {tensor.data, tensor.shape[1], tensor.stride[0], tensor.stride[1], tensor.stride[2]};
}

Rotation RotationOf(const FbTensor& heads, const FbTensor& cos, const FbTensor& sin,
                    const FbRopeParams& params, bool inverse) {
  Rotation r = {};
  r.cos = TableOf(cos);
  r.sin = TableOf(sin);
  r.batch = heads.shape[0];
  r.positions = heads.shape[2];
  r.dim = static_cast<int32_t>(heads.shape[3]);
  r.pairs = static_cast<int32_t>(params.rotary_dim / 2);
  const bool streams = cos.shape[0] == kRotaryStreams;
  r.section_end[0] = streams ? static_cast<int32_t>(params.sections[0]) : r.pairs;
  r.section_end[1] =
      streams ? static_cast<int32_t>(params.sections[0] + params.sections[1]) : r.pairs;
  r.table_dtype = cos.dtype;
  r.interleaved = params.interleaved != 0;
  r.per_pair = cos.shape[3] != params.rotary_dim;
  r.inverse = inverse;
  r.round_products = params.round_products != 0 && cos.dtype == heads.dtype;
  return r;
}

}  // namespace fuseboard
