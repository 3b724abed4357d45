// Times the ways to cut `rescale` that rescale_policy.h could choose, on device 0: each gradient is
// written in order before, as a loss's forward writes it. Shares are of the copy rate measured in
// the same run. Its numbers go into the policy's comments.

#include <cuda_runtime.h>

#include <cstdio>

#include "kernels/common/launch.cuh"
#include "kernels/common/rescale.cuh"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard::rescale {
namespace {

using tuning::Check;

constexpr int64_t kLargest = int64_t{8192} * 128256 * 2;
constexpr int kRepeats = 16;

struct Bench {
  tuning::Rotating from{kLargest};
  tuning::Rotating gradient{kLargest};
  tuning::Rotating factors{2 * sizeof(float)};  // 0.5 and 1.
  tuning::Rotating counter{sizeof(uint32_t)};
  FbCall call = tuning::NewCall();
  double copy_rate = tuning::CopyRate(gradient, from, kLargest);

  Bench() {
    const float values[] = {0.5f, 1.0f};
    Check(cudaMemcpy(factors.base(), values, sizeof(values), cudaMemcpyHostToDevice));
  }
};

template <typename T>
__global__ void FillKernel(T* gradient, int64_t runs) {
  const int64_t run = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (run >= runs) return;
  StoreLanes<T, kPackLanes<T>>(gradient + run * kPackLanes<T>,
                               {kOneWord<T>, kOneWord<T>, kOneWord<T>, kOneWord<T>});
}

template <typename T, typename C>
int Launch(const Bench& bench, const Gradient<T>& gradient, const Plan& plan, int which_factor) {
  const LaunchShape shape = {.blocks = plan.Grid(), .threads = C::kThreads, .dependent = true};
  const auto* factor = reinterpret_cast<const float*>(bench.factors.base()) + which_factor;
  if (plan.rounds > 0) return LaunchKernel(RescaleKernel<T, C>, shape, gradient, plan, factor);
  auto* drawn = reinterpret_cast<uint32_t*>(bench.counter.base());
  Check(cudaMemsetAsync(drawn, 0, sizeof(*drawn)));
  return LaunchKernel(RescaleDrawnKernel<T, C>, shape, gradient, plan, factor, drawn);
}

// Of both kernels, less that of the first.
template <typename T, typename C>
double TimeUs(const Bench& bench, int64_t bytes, const Plan& plan, int which_factor) {
  const int64_t runs = bytes / 16;
  const Gradient<T> gradient = {reinterpret_cast<T*>(bench.gradient.base()), runs, 0, 0};
  const auto fill = [&] {
    FillKernel<T><<<static_cast<unsigned>((runs + 255) / 256), 256>>>(gradient.base, runs);
    return cudaGetLastError();
  };
  const double fill_us = tuning::MedianUs([&](int) { return fill(); }, kRepeats);
  return tuning::MedianUs(
             [&](int) {
               const int error = fill();
               return error != 0 ? error : Launch<T, C>(bench, gradient, plan, which_factor);
             },
             kRepeats) -
         fill_us;
}

template <typename T, typename C>
void Print(const Bench& bench, int64_t bytes, const Plan& plan, const char* how) {
  const double us = TimeUs<T, C>(bench, bytes, plan, 0);
  std::printf("%-4s %7.1f MB threads %4d unroll %d %-7s %8.1f us %5.1f %%, factor 1 %6.1f us\n",
              sizeof(T) == 4 ? "f32" : "bf16", static_cast<double>(bytes) / 1e6, C::kThreads,
              C::kUnroll, how, us, 200.0 * static_cast<double>(bytes) / us / bench.copy_rate,
              TimeUs<T, C>(bench, bytes, plan, 1));
}

template <typename T, typename C>
void Time(const Bench& bench, int64_t bytes) {
  Plan plan = PlanOf(bytes, bench.call.sm_count, C());
  plan.rounds = static_cast<uint32_t>(CeilDiv(plan.tiles, int64_t{plan.blocks} * kRoundTiles));
  Print<T, C>(bench, bytes, plan, "rounds");
  plan.rounds = 0;
  Print<T, C>(bench, bytes, plan, "drawn");
}

void Tune() {
  const Bench bench;
  for (const int64_t rows : {64, 256, 1024, 4096, 8192}) {
    const int64_t bytes = rows * 128256 * 2;
    Time<BFloat16, Cut<128, 2>>(bench, bytes);
    Time<BFloat16, Cut<256, 2>>(bench, bytes);
    Time<BFloat16, Cut<512, 2>>(bench, bytes);
    Time<BFloat16, Cut<512, 4>>(bench, bytes);
    Time<BFloat16, Cut<1024, 1>>(bench, bytes);
    Time<BFloat16, Cut<1024, 2>>(bench, bytes);
    Time<float, DefaultCut>(bench, bytes);
  }
}

}  // namespace
}  // namespace fuseboard::rescale

int main() { fuseboard::rescale::Tune(); }
