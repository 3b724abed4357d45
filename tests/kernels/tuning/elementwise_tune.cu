// Times the ways to cut elementwise kernels that elementwise_policy.h could choose, on device 0,
// bf16: milliseconds and share of the copy rate measured in the same run, by least traffic. Every
// matrix is larger than the L2 cache. Its numbers go into the policy's comments.

#include <cuda_runtime.h>

#include <cstdio>
#include <type_traits>

#include "kernels/elementwise/elementwise_launch.cuh"
#include "kernels/geglu/geglu.cuh"
#include "kernels/relu_squared/relu_squared.cuh"
#include "kernels/swiglu/swiglu.cuh"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard::elementwise {
namespace {

constexpr int64_t kRows = 8192;
constexpr int64_t kCols = 14336;
constexpr int64_t kElements = kRows * kCols;
constexpr int64_t kBytes = kElements * 2;
constexpr int kMatrices = kMaxInputs + kMaxOutputs;

struct Bench {
  tuning::Rotating memory{kMatrices * kBytes, 0x3e};
  double copy_rate = CopyRate();  // Bytes per microsecond.

  char* Matrix(int64_t index) const { return memory.base() + index * kBytes; }

  double CopyRate() const {
    const double us = tuning::MedianUs([&](int) {
      return cudaMemcpyAsync(Matrix(1), Matrix(0), kBytes, cudaMemcpyDeviceToDevice);
    });
    std::printf("copy %.3f TB/s\n", 2.0 * static_cast<double>(kBytes) / us / 1e6);
    return 2.0 * static_cast<double>(kBytes) / us;
  }
};

template <typename Params>
Params ParamsFor() {
  if constexpr (std::is_same_v<Params, GatedParams>) {
    return {.round_activation = true};
  } else if constexpr (std::is_same_v<Params, swiglu::Options>) {
    return {.round_activation = true,
            .limited = true,
            .gate_multiplier = 1.0f,
            .out_multiplier = 1.0f,
            .alpha = 1.702f,
            .minus_alpha_log2e = -1.702f * 1.442695f,
            .limit = 7.0f,
            .up_offset = 1.0f};
  } else {
    return {};
  }
}

// Inputs, then outputs, one after the other in memory, so that a pair that alternates lies where it
// would lie in two matrices.
template <typename F>
Call CallOver(const Bench& bench) {
  Call call = {};
  for (int i = 0; i < F::kInputs; ++i) call.in[i] = {bench.Matrix(i), kElements, 1};
  for (int i = 0; i < F::kOutputs; ++i) call.out[i] = {bench.Matrix(F::kInputs + i), kElements, 1};
  call.rows = 1;
  call.cols = kElements;
  call.dtype = FB_BF16;
  return call;
}

template <template <typename> typename Function, bool kAlternating, typename C>
void Time(const Bench& bench, const char* name) {
  using F = Function<BFloat16>;
  constexpr int kLanes = kRunLanes<BFloat16, kAlternating>;
  const Call call = CallOver<F>(bench);
  const auto params = ParamsFor<typename F::Params>();
  const Policy policy = SelectPolicy<C>(call.cols / kLanes);
  const Tiles tiles = TilesOf<C>(policy, 1, call.cols / kLanes);
  const LaunchShape shape = {.blocks = tiles.count, .threads = dim3(policy.threads_per_row, 1)};
  const double us = tuning::MedianUs([&](int) {
    return LaunchKernel(ElementwiseKernel<Function, BFloat16, kLanes, C, kAlternating>, shape, call,
                        params, tiles);
  });
  const double bytes = static_cast<double>(kBytes) * (F::kInputs + F::kOutputs);
  std::printf("%-24s threads %4d unroll %d blocks/sm %2d  %.4f ms %5.1f %%\n", name, C::kThreads,
              C::kUnroll, C::kBlocksPerSm, us / 1e3, 100 * bytes / bench.copy_rate / us);
}

// With room for 64 registers to a thread, and for 40.
template <template <typename> typename Function, bool kAlternating, int kThreads, int kUnroll>
void TimeBlocks(const Bench& bench, const char* name) {
  Time<Function, kAlternating, Cut<kThreads, kUnroll, 1024 / kThreads>>(bench, name);
  Time<Function, kAlternating, Cut<kThreads, kUnroll, 1536 / kThreads>>(bench, name);
}

template <template <typename> typename Function, bool kAlternating, int kThreads>
void TimeUnrolls(const Bench& bench, const char* name) {
  TimeBlocks<Function, kAlternating, kThreads, 1>(bench, name);
  TimeBlocks<Function, kAlternating, kThreads, 2>(bench, name);
  TimeBlocks<Function, kAlternating, kThreads, 4>(bench, name);
}

template <template <typename> typename Function, bool kAlternating = false>
void TimeAll(const Bench& bench, const char* name) {
  TimeUnrolls<Function, kAlternating, 64>(bench, name);
  TimeUnrolls<Function, kAlternating, 128>(bench, name);
  TimeUnrolls<Function, kAlternating, 256>(bench, name);
}

void Tune() {
  const Bench bench;
  TimeAll<swiglu::Forward>(bench, "swiglu forward");
  TimeAll<swiglu::Backward>(bench, "swiglu backward");
  TimeAll<swiglu::GeneralForward>(bench, "options forward");
  TimeAll<swiglu::GeneralBackward>(bench, "options backward");
  TimeAll<swiglu::GeneralForward, true>(bench, "interleaved forward");
  TimeAll<swiglu::GeneralBackward, true>(bench, "interleaved backward");
  TimeAll<geglu::TanhForward>(bench, "geglu tanh forward");
  TimeAll<geglu::TanhBackward>(bench, "geglu tanh backward");
  TimeAll<geglu::ExactForward>(bench, "geglu exact forward");
  TimeAll<geglu::ExactBackward>(bench, "geglu exact backward");
  TimeAll<relu_squared::Forward>(bench, "relu_squared forward");
  TimeAll<relu_squared::Backward>(bench, "relu_squared backward");
}

}  // namespace
}  // namespace fuseboard::elementwise

int main() { fuseboard::elementwise::Tune(); }
