// Sums over blocks of floats on the CPU. Compiled once per instruction set (cpu_isa.h); the order
// of the additions is the same for all of them.

#ifndef KERNELS_COMMON_CPU_SUM_H_
#define KERNELS_COMMON_CPU_SUM_H_

#ifndef FB_CPU_ISA
#error "cpu_sum.h is for sources that fb_kernel compiles per instruction set"
#endif

#include <stdint.h>

namespace fuseboard::FB_CPU_ISA {

// In 32 interleaved parts of float, and these in double. `n` of a few thousand at most: a part is
// rounded n / 32 times.
static inline double SumBlock(const float* values, int64_t n) {
  constexpr int kLanes = 32;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += values[i];
  double sum = 0.0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  return sum;
}

}  // namespace fuseboard::FB_CPU_ISA

#endif  // KERNELS_COMMON_CPU_SUM_H_
