// Whether an output matrix lies where an input does. Host code; looks at metadata only. Both are
// matrices of one shape and of one of the float dtypes of kernels.

#ifndef KERNELS_COMMON_MATRIX_OVERLAP_H_
#define KERNELS_COMMON_MATRIX_OVERLAP_H_

#include <stdint.h>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard {

// Each element of one is the same element of the other.
inline bool IsInPlace(const FbTensor& a, const FbTensor& b) {
  return a.data == b.data && (a.shape[0] <= 1 || a.stride[0] == b.stride[0]);
}

// No element of one shares memory with an element of the other: their address ranges are apart, or
// both have one row stride and their columns lie beside each other in it.
inline bool AreDisjoint(const FbTensor& a, const FbTensor& b) {
  if (a.shape[0] == 0) return true;
  const int64_t bytes = a.dtype == FB_F32 ? 4 : 2;
  const int64_t row_bytes = a.shape[1] * bytes;
  const auto a_begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.data));
  const auto b_begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(b.data));
  const int64_t last_row = a.shape[0] - 1;
  if (a_begin + last_row * a.stride[0] * bytes + row_bytes <= b_begin) return true;
  if (b_begin + last_row * b.stride[0] * bytes + row_bytes <= a_begin) return true;
  if (last_row == 0 || a.stride[0] != b.stride[0] || a.stride[0] == 0) return false;
  const int64_t pitch = a.stride[0] * bytes;
  const int64_t shift = ((b_begin - a_begin) % pitch + pitch) % pitch;
  return shift >= row_bytes && pitch - shift >= row_bytes;
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_MATRIX_OVERLAP_H_
