// The sentences of reject_reason: one thread-local buffer per library and the checks that every
// operation shares. Each check returns NULL or the sentence, so that a validator reads
//   if (const char* why = CheckMatrix("x", x, rows, cols)) return why;
// Reads metadata only.

#ifndef KERNELS_COMMON_REJECT_H_
#define KERNELS_COMMON_REJECT_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard {

// Formats into the calling thread's buffer and returns it; valid until the thread's next Reject.
const char* Reject(const char* format, ...) __attribute__((format(printf, 1, 2)));

// "f32", "bf16", ...; "dtype 17" for a number outside FbDType.
const char* DTypeName(int32_t dtype);

constexpr bool IsAbsent(const FbTensor& tensor) { return tensor.ndim == -1; }

// The call itself: struct sizes, counts, the device type, and that params are at least as long as
// this library's parameter struct was in its first version.
const char* CheckCall(const FbCall* call, int32_t device_type, int32_t num_inputs,
                      int32_t num_outputs, uint32_t params_bytes);

// The same for an entry that has no parameters.
const char* CheckBareCall(const FbCall* call, int32_t device_type, int32_t num_inputs,
                          int32_t num_outputs);

// `tensor` is present, [rows, cols], on the call's device, with elements behind its pointer, and
// columns one after the other. The row stride may be anything that is not negative.
const char* CheckMatrix(const FbCall& call, const char* name, const FbTensor& tensor, int64_t rows,
                        int64_t cols);

// CheckMatrix, and no two rows share memory: for what is written.
const char* CheckOutputMatrix(const FbCall& call, const char* name, const FbTensor& tensor,
                              int64_t rows, int64_t cols);

// `tensor` is present, [size], on the call's device; `stride` is 1, or any for kAnyStride.
enum class VectorStride { kOne, kAny };
const char* CheckVector(const FbCall& call, const char* name, const FbTensor& tensor, int64_t size,
                        VectorStride stride);

// `tensor` is present, of this shape of `ndim` numbers, on the call's device, with elements behind
// its pointer. Any strides that are not negative.
const char* CheckStrided(const FbCall& call, const char* name, const FbTensor& tensor,
                         const int64_t* shape, int32_t ndim);

// No two elements of `tensor` share memory, by its strides: for what is written.
const char* CheckNoOverlap(const char* name, const FbTensor& tensor);

const char* CheckDType(const char* name, const FbTensor& tensor, int32_t want);
const char* CheckFloatDType(const char* name, const FbTensor& tensor);

}  // namespace fuseboard

#endif  // KERNELS_COMMON_REJECT_H_
