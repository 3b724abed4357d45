// Quotients by a number that is known before the launch: a product instead of a division, which
// costs a kernel's prologue about 20 instructions in 32 bits.

#ifndef KERNELS_COMMON_RECIPROCAL_H_
#define KERNELS_COMMON_RECIPROCAL_H_

#include <stdint.h>

#if defined(__CUDACC__)
#define FB_HOST_DEVICE __host__ __device__
#else
#define FB_HOST_DEVICE
#endif

namespace fuseboard {

// Exact for all dividends: the reciprocal, of 2^64, is too large by less than 1, and 2^32 times
// that over 2^64 is less than what parts a fraction from the next whole number.
struct Reciprocal {
  uint32_t value;
  uint64_t reciprocal;  // Rounded up; 0 for 1, which does not fit.

  FB_HOST_DEVICE constexpr uint32_t Quotient(uint32_t dividend) const {
    if (reciprocal == 0) return dividend;
    const uint64_t low = dividend * (reciprocal & 0xffffffffu);
    const uint64_t high = dividend * (reciprocal >> 32);
    return static_cast<uint32_t>((high + (low >> 32)) >> 32);
  }
};

// REQUIRES: value > 0.
constexpr Reciprocal ReciprocalOf(uint32_t value) {
  return {value, value == 1 ? 0 : ~uint64_t{0} / value + 1};
}

}  // namespace fuseboard

#undef FB_HOST_DEVICE

#endif  // KERNELS_COMMON_RECIPROCAL_H_
