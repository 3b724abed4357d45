// A division by a number that only the host knows.

#ifndef KERNELS_COMMON_QUOTIENT_CUH_
#define KERNELS_COMMON_QUOTIENT_CUH_

#include <stdint.h>

namespace fuseboard {

// In 32 bits where they are enough: a division in 64 is a hundred instructions.
// REQUIRES: 0 <= a, 0 < b.
__device__ __forceinline__ int64_t Quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) != 0) return a / b;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_QUOTIENT_CUH_
