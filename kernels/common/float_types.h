// Storage types of the 16-bit floats. They carry bits and nothing else, so that one type names a
// dtype on the CPU, on the GPU and in tests without CUDA's headers (0.4 s per file) or compiler
// extensions. Conversions live where the arithmetic is: cpu_float.h, vector.cuh.

#ifndef KERNELS_COMMON_FLOAT_TYPES_H_
#define KERNELS_COMMON_FLOAT_TYPES_H_

#include <stdint.h>

namespace fuseboard {

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

}  // namespace fuseboard

#endif  // KERNELS_COMMON_FLOAT_TYPES_H_
