// SwiGLU on the CPU, compiled once per instruction set. Elements go through blocks of floats that
// stay in the L1 cache; the compiler vectorises the loops over a block.

#include "kernels/swiglu/swiglu_cpu.h"

#include "kernels/common/cpu_float.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/parallel.h"
#include "kernels/swiglu/swiglu_call.h"

namespace fuseboard::swiglu::FB_CPU_ISA {
namespace {

using namespace fuseboard::FB_CPU_ISA;  // NOLINT(google-build-using-namespace): cpu_float.h.

constexpr int64_t kBlock = 1024;      // 4 KiB of floats; up to five such buffers are live.
constexpr int64_t kGrainBlocks = 16;  // Work below this does not pay for another thread.

template <typename T>
T* At(const Matrix& matrix, int64_t row, int64_t col) {
  return static_cast<T*>(matrix.base) + row * matrix.stride + col;
}

// sigmoid of each gate: 1 / (1 + e^-g), in a form that overflows on neither side. Inlined always,
// as GCC 12 takes a call with a converted block for a use of uninitialised memory.
[[gnu::always_inline]] inline void SigmoidBlock(const float* gate, float* __restrict__ out,
                                                int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float e = ExpNonPositive(g < 0.0f ? g : -g);
    out[i] = (g < 0.0f ? e : 1.0f) / (1.0f + e);
  }
}

template <typename T>
void ForwardBlock(const Call& call, int64_t row, int64_t col, int64_t n) {
  float gate_buffer[kBlock];
  float up_buffer[kBlock];
  float silu[kBlock];
  const float* gate = ViewBlock(At<const T>(call.in[0], row, col), gate_buffer, n);
  const float* up = ViewBlock(At<const T>(call.in[1], row, col), up_buffer, n);
  SigmoidBlock(gate, silu, n);
  for (int64_t i = 0; i < n; ++i) silu[i] *= gate[i];
  if (call.round_activation) RoundBlock<T>(silu, n);
  for (int64_t i = 0; i < n; ++i) silu[i] *= up[i];
  StoreBlock(silu, At<T>(call.out[0], row, col), n);
}

template <typename T>
void BackwardBlock(const Call& call, int64_t row, int64_t col, int64_t n) {
  float dout_buffer[kBlock];
  float gate_buffer[kBlock];
  float up_buffer[kBlock];
  float sigmoid[kBlock];
  float result[kBlock];
  const float* dout = ViewBlock(At<const T>(call.in[0], row, col), dout_buffer, n);
  const float* gate = ViewBlock(At<const T>(call.in[1], row, col), gate_buffer, n);
  const float* up = ViewBlock(At<const T>(call.in[2], row, col), up_buffer, n);
  SigmoidBlock(gate, sigmoid, n);
  if (call.out[0].base != nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      const float s = sigmoid[i];
      result[i] = dout[i] * up[i] * (s + gate[i] * s * (1.0f - s));
    }
    StoreBlock(result, At<T>(call.out[0], row, col), n);
  }
  if (call.out[1].base != nullptr) {
    for (int64_t i = 0; i < n; ++i) result[i] = gate[i] * sigmoid[i];
    if (call.round_activation) RoundBlock<T>(result, n);
    for (int64_t i = 0; i < n; ++i) result[i] *= dout[i];
    StoreBlock(result, At<T>(call.out[1], row, col), n);
  }
}

// Calls block(row, col, n) for all blocks of the matrices, over the caller's threads.
template <typename Fn>
void ForEachBlock(const FbCall& raw, const Call& call, const Fn& block) {
  const int64_t per_row = (call.cols + kBlock - 1) / kBlock;
  // A block may be short where rows are.
  const int64_t length = call.cols < kBlock ? call.cols + 1 : kBlock;
  const int64_t grain = kGrainBlocks * (kBlock / length + 1);
  ParallelFor(raw, call.rows * per_row, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / per_row;
      const int64_t col = (i - row * per_row) * kBlock;
      block(row, col, call.cols - col < kBlock ? call.cols - col : kBlock);
    }
  });
}

}  // namespace

int32_t ForwardCpu(const FbCall* raw, void* /*workspace*/) {
  const Call call = CallOf(*raw);
  DispatchFloat(call.dtype, [&](auto tag) {
    using T = decltype(tag)::type;
    ForEachBlock(*raw, call,
                 [&](int64_t row, int64_t col, int64_t n) { ForwardBlock<T>(call, row, col, n); });
  });
  return 0;
}

int32_t BackwardCpu(const FbCall* raw, void* /*workspace*/) {
  const Call call = CallOf(*raw);
  DispatchFloat(call.dtype, [&](auto tag) {
    using T = decltype(tag)::type;
    ForEachBlock(*raw, call,
                 [&](int64_t row, int64_t col, int64_t n) { BackwardBlock<T>(call, row, col, n); });
  });
  return 0;
}

}  // namespace fuseboard::swiglu::FB_CPU_ISA
