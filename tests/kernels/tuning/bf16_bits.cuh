// Memory full of bf16 for the programs that time candidates, and what parts two results.

#ifndef TESTS_KERNELS_TUNING_BF16_BITS_CUH_
#define TESTS_KERNELS_TUNING_BF16_BITS_CUH_

#include <cstdint>
#include <cstdio>

#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard::tuning {

// Bits of bf16 in [-2, 2), the same every time.
static __global__ void FillKernel(uint16_t* out, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < count;
       i += gridDim.x * int64_t{256}) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, h *= 3266489917u, h ^= h >> 16;
    const float value = (static_cast<float>(h & 0xffff) - 32768.0f) / 16384.0f;
    out[i] = static_cast<uint16_t>(__float_as_uint(value) >> 16);
  }
}

inline void FillBits(void* memory, int64_t bytes, uint32_t seed) {
  FillKernel<<<1024, 256>>>(static_cast<uint16_t*>(memory), bytes / 2, seed);
  Check(cudaGetLastError());
}

// How far the heads in `out` are from what another kernel has left in `expected`.
static __global__ void CompareKernel(const uint16_t* out, const uint16_t* expected, int64_t count,
                                     unsigned long long* differ, int* worst) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < count;
       i += gridDim.x * int64_t{256}) {
    const float a = __uint_as_float(uint32_t{out[i]} << 16);
    const float b = __uint_as_float(uint32_t{expected[i]} << 16);
    if (a == b) continue;
    atomicAdd(differ, 1ull);
    atomicMax(worst, static_cast<int>(fminf(fabsf(a - b) / fmaxf(fabsf(b), 0.0625f), 1e4f) * 1e4f));
  }
}

struct Difference {
  unsigned long long* differ = nullptr;
  int* worst = nullptr;
  Difference() {
    Check(cudaMallocManaged(&differ, 8));
    Check(cudaMallocManaged(&worst, 4));
  }
  void Print(const void* out, const void* expected, int64_t count, const char* what) {
    *differ = 0, *worst = 0;
    CompareKernel<<<1024, 256>>>(static_cast<const uint16_t*>(out),
                                 static_cast<const uint16_t*>(expected), count, differ, worst);
    Check(cudaDeviceSynchronize());
    std::printf("    %s: %llu of %lld differ, at most by %.4f of the value\n", what, *differ,
                static_cast<long long>(count), *worst * 1e-4);
  }
};

}  // namespace fuseboard::tuning

#endif  // TESTS_KERNELS_TUNING_BF16_BITS_CUH_
