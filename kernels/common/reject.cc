#include "kernels/common/reject.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "kernels/common/dispatch.h"

namespace fuseboard {
namespace {

constexpr int kMessageBytes = 256;

const char* CheckTensor(const FbCall& call, const char* name, const FbTensor& tensor,
                        int32_t ndim) {
  if (tensor.ndim != ndim) {
    return Reject("%s: want %d dimensions, got %d", name, ndim, tensor.ndim);
  }
  if (tensor.device_type != call.device_type || tensor.device_index != call.device_index) {
    return Reject("%s: want device %d:%d, got %d:%d", name, call.device_type, call.device_index,
                  tensor.device_type, tensor.device_index);
  }
  return nullptr;
}

const char* CheckPointer(const char* name, const FbTensor& tensor, int64_t elements) {
  if (tensor.data == nullptr && elements > 0) {
    return Reject("%s: want memory for %" PRId64 " elements, got NULL", name, elements);
  }
  return nullptr;
}

// "[2, 3, 4]"; of at most FB_MAX_DIMS numbers.
std::array<char, 112> ShapeText(const int64_t* shape, int32_t ndim) {
  std::array<char, 112> text = {};
  size_t at = 0;
  for (int32_t i = 0; i < ndim; ++i) {
    const char* before = i == 0 ? "" : ", ";
    at += static_cast<size_t>(
        snprintf(text.data() + at, text.size() - at, "%s%" PRId64, before, shape[i]));
  }
  return text;
}

}  // namespace

// NOLINTNEXTLINE(modernize-avoid-variadic-functions): no <format> without exceptions and memory.
const char* Reject(const char* format, ...) {
  thread_local char message[kMessageBytes];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof(message), format, args);
  va_end(args);
  return message;
}

const char* DTypeName(int32_t dtype) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "f64", "i32", "i64", "bool"};
  if (dtype >= FB_F32 && dtype <= FB_BOOL) return kNames[dtype];
  thread_local char unknown[24];
  snprintf(unknown, sizeof(unknown), "dtype %d", dtype);
  return unknown;
}

const char* CheckBareCall(const FbCall* call, int32_t device_type, int32_t num_inputs,
                          int32_t num_outputs) {
  if (call->struct_size < sizeof(FbCall)) {
    return Reject("call: want struct_size >= %zu, got %u", sizeof(FbCall), call->struct_size);
  }
  if (call->device_type != device_type) {
    return Reject("call: want device type %d, got %d", device_type, call->device_type);
  }
  if (call->num_inputs != num_inputs || call->num_outputs != num_outputs) {
    return Reject("call: want %d inputs and %d outputs, got %d and %d", num_inputs, num_outputs,
                  call->num_inputs, call->num_outputs);
  }
  return nullptr;
}

const char* CheckCall(const FbCall* call, int32_t device_type, int32_t num_inputs,
                      int32_t num_outputs, uint32_t params_bytes) {
  if (const char* why = CheckBareCall(call, device_type, num_inputs, num_outputs)) return why;
  if (call->params == nullptr) return Reject("params: want a parameter struct, got NULL");
  const auto got = *static_cast<const uint32_t*>(call->params);
  if (got < params_bytes) {
    return Reject("params: want struct_size >= %u, got %u", params_bytes, got);
  }
  return nullptr;
}

const char* CheckMatrix(const FbCall& call, const char* name, const FbTensor& tensor, int64_t rows,
                        int64_t cols) {
  if (const char* why = CheckTensor(call, name, tensor, 2)) return why;
  if (tensor.shape[0] != rows || tensor.shape[1] != cols) {
    return Reject("%s: want shape [%" PRId64 ", %" PRId64 "], got [%" PRId64 ", %" PRId64 "]", name,
                  rows, cols, tensor.shape[0], tensor.shape[1]);
  }
  if (tensor.stride[1] != 1 && cols > 1) {
    return Reject("%s: want column stride 1, got %" PRId64, name, tensor.stride[1]);
  }
  if (tensor.stride[0] < 0) {
    return Reject("%s: want row stride >= 0, got %" PRId64, name, tensor.stride[0]);
  }
  return CheckPointer(name, tensor, rows * cols);
}

const char* CheckOutputMatrix(const FbCall& call, const char* name, const FbTensor& tensor,
                              int64_t rows, int64_t cols) {
  if (const char* why = CheckMatrix(call, name, tensor, rows, cols)) return why;
  if (rows > 1 && tensor.stride[0] < cols) {
    return Reject("%s: want row stride >= %" PRId64 " (rows that do not overlap), got %" PRId64,
                  name, cols, tensor.stride[0]);
  }
  return nullptr;
}

const char* CheckVector(const FbCall& call, const char* name, const FbTensor& tensor, int64_t size,
                        VectorStride stride) {
  if (const char* why = CheckTensor(call, name, tensor, 1)) return why;
  if (tensor.shape[0] != size) {
    return Reject("%s: want shape [%" PRId64 "], got [%" PRId64 "]", name, size, tensor.shape[0]);
  }
  if (stride == VectorStride::kOne && tensor.stride[0] != 1 && size > 1) {
    return Reject("%s: want stride 1, got %" PRId64, name, tensor.stride[0]);
  }
  return CheckPointer(name, tensor, size);
}

const char* CheckStrided(const FbCall& call, const char* name, const FbTensor& tensor,
                         const int64_t* shape, int32_t ndim) {
  if (const char* why = CheckTensor(call, name, tensor, ndim)) return why;
  if (!std::equal(shape, shape + ndim, tensor.shape)) {
    return Reject("%s: want shape [%s], got [%s]", name, ShapeText(shape, ndim).data(),
                  ShapeText(tensor.shape, ndim).data());
  }
  int64_t elements = 1;
  for (int32_t i = 0; i < ndim; ++i) {
    elements *= shape[i];
    if (tensor.stride[i] < 0) {
      return Reject("%s: want strides >= 0, got %" PRId64 " in dimension %d", name,
                    tensor.stride[i], i);
    }
  }
  return CheckPointer(name, tensor, elements);
}

const char* CheckNoOverlap(const char* name, const FbTensor& tensor) {
  std::array<int32_t, FB_MAX_DIMS> dims = {};  // Those that step, by their strides.
  int32_t count = 0;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] == 0) return nullptr;
    if (tensor.shape[i] == 1) continue;
    int32_t at = count++;
    for (; at > 0 && tensor.stride[dims[at - 1]] > tensor.stride[i]; --at) dims[at] = dims[at - 1];
    dims[at] = i;
  }
  int64_t span = 1;  // Elements from the first to the last of the dimensions so far.
  for (int32_t i = 0; i < count; ++i) {
    const int64_t stride = tensor.stride[dims[i]];
    if (stride < span) {
      return Reject("%s: want stride >= %" PRId64 " in dimension %d (no overlap), got %" PRId64,
                    name, span, dims[i], stride);
    }
    span += (tensor.shape[dims[i]] - 1) * stride;
  }
  return nullptr;
}

const char* CheckDType(const char* name, const FbTensor& tensor, int32_t want) {
  if (tensor.dtype == want) return nullptr;
  return Reject("%s: want %s, got %s", name, DTypeName(want), DTypeName(tensor.dtype));
}

const char* CheckFloatDType(const char* name, const FbTensor& tensor) {
  if (IsFloatDType(tensor.dtype)) return nullptr;
  return Reject("%s: want f32, f16 or bf16, got %s", name, DTypeName(tensor.dtype));
}

}  // namespace fuseboard
