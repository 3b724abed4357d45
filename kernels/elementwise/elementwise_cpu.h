// Elementwise operations on the CPU: blocks of floats that stay in the L1 cache, over whose
// elements the compiler vectorises loops. For sources that fb_kernel compiles per instruction set.

#ifndef KERNELS_ELEMENTWISE_ELEMENTWISE_CPU_H_
#define KERNELS_ELEMENTWISE_ELEMENTWISE_CPU_H_

#include "kernels/common/cpu_float.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/parallel.h"
#include "kernels/elementwise/elementwise_call.h"

namespace fuseboard::elementwise::FB_CPU_ISA {

using fuseboard::FB_CPU_ISA::FromFloat;
using fuseboard::FB_CPU_ISA::RoundBlock;
using fuseboard::FB_CPU_ISA::StoreBlock;
using fuseboard::FB_CPU_ISA::ToFloat;
using fuseboard::FB_CPU_ISA::ViewBlock;

inline constexpr int64_t kBlock = 1024;      // 4 KiB of floats; up to five such buffers are live.
inline constexpr int64_t kGrainBlocks = 16;  // Work below this does not pay for another thread.

template <typename T>
T* At(const Matrix& matrix, int64_t row, int64_t col) {
  return static_cast<T*>(matrix.base) + row * matrix.stride + col * matrix.step;
}

// Elements from (row, col) on as floats, in memory or in `buffer`.
template <typename T>
const float* ReadBlock(const Matrix& matrix, int64_t row, int64_t col, int64_t n, float* buffer) {
  const T* in = At<const T>(matrix, row, col);
  if (matrix.step == 1) return ViewBlock(in, buffer, n);
  for (int64_t i = 0; i < n; ++i) buffer[i] = ToFloat(in[2 * i]);
  return buffer;
}

template <typename T>
void WriteBlock(const float* __restrict__ values, const Matrix& matrix, int64_t row, int64_t col,
                int64_t n) {
  T* __restrict__ out = At<T>(matrix, row, col);
  if (matrix.step == 1) {
    StoreBlock(values, out, n);
  } else {
    for (int64_t i = 0; i < n; ++i) out[2 * i] = FromFloat<T>(values[i]);
  }
}

// Calls block(tag, call, row, col, n) for all blocks of the matrices, over the caller's threads;
// tag is a TypeTag of the dtype.
template <typename Fn>
void ForEachBlock(const FbCall& raw, const Fn& block) {
  const Call call = CallOf(raw);
  const int64_t per_row = (call.cols + kBlock - 1) / kBlock;
  // A block may be short where rows are.
  const int64_t length = call.cols < kBlock ? call.cols + 1 : kBlock;
  const int64_t grain = kGrainBlocks * (kBlock / length + 1);
  DispatchFloat(call.dtype, [&](auto tag) {
    ParallelFor(raw, call.rows * per_row, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / per_row;
        const int64_t col = (i - row * per_row) * kBlock;
        block(tag, call, row, col, call.cols - col < kBlock ? call.cols - col : kBlock);
      }
    });
  });
}

}  // namespace fuseboard::elementwise::FB_CPU_ISA

#endif  // KERNELS_ELEMENTWISE_ELEMENTWISE_CPU_H_
