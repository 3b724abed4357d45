// relu_squared on the CPU, compiled once per instruction set.

#include "kernels/relu_squared/relu_squared_cpu.h"

#include "kernels/elementwise/elementwise_cpu.h"
#include "kernels/relu_squared/relu_squared_call.h"

namespace fuseboard::relu_squared::FB_CPU_ISA {
namespace {

using elementwise::Call;
using elementwise::FB_CPU_ISA::ForEachBlock;
using elementwise::FB_CPU_ISA::kBlock;
using elementwise::FB_CPU_ISA::ReadBlock;
using elementwise::FB_CPU_ISA::WriteBlock;

// NaN is not <= 0.
[[gnu::always_inline]] inline float Relu(float x) { return x <= 0.0f ? 0.0f : x; }

}  // namespace

int32_t ForwardCpu(const FbCall* raw, void* /*workspace*/) {
  ForEachBlock(*raw, [](auto tag, const Call& call, int64_t row, int64_t col, int64_t n) {
    using T = decltype(tag)::type;
    float buffer[kBlock];
    float y[kBlock];
    const float* x = ReadBlock<T>(call.in[0], row, col, n, buffer);
    for (int64_t i = 0; i < n; ++i) y[i] = Relu(x[i]) * Relu(x[i]);
    WriteBlock<T>(y, call.out[0], row, col, n);
  });
  return 0;
}

int32_t BackwardCpu(const FbCall* raw, void* /*workspace*/) {
  ForEachBlock(*raw, [](auto tag, const Call& call, int64_t row, int64_t col, int64_t n) {
    using T = decltype(tag)::type;
    float dy_buffer[kBlock];
    float x_buffer[kBlock];
    float dx[kBlock];
    const float* dy = ReadBlock<T>(call.in[0], row, col, n, dy_buffer);
    const float* x = ReadBlock<T>(call.in[1], row, col, n, x_buffer);
    // Not dy * 2 relu(x): an infinite dy gives 0 where x is not positive.
    for (int64_t i = 0; i < n; ++i) dx[i] = x[i] <= 0.0f ? 0.0f : dy[i] * (2.0f * x[i]);
    WriteBlock<T>(dx, call.out[0], row, col, n);
  });
  return 0;
}

}  // namespace fuseboard::relu_squared::FB_CPU_ISA
