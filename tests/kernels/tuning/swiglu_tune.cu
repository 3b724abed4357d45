// Times the ways to cut swiglu that elementwise_policy.h could choose, on device 0, bf16:
// milliseconds and share of the copy rate measured in the same run, by least traffic. Every matrix
// is larger than the L2 cache. Its numbers go into the policy's comments.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "kernels/common/launch.cuh"
#include "kernels/elementwise/elementwise.cuh"
#include "kernels/swiglu/swiglu.cuh"

namespace fuseboard::swiglu {
namespace {

using elementwise::Call;
using elementwise::Cut;
using elementwise::ElementwiseKernel;
using elementwise::Policy;
using elementwise::Tiles;

constexpr int64_t kRows = 8192;
constexpr int64_t kCols = 14336;
constexpr int64_t kBytes = kRows * kCols * 2;
constexpr int kRepeats = 21;

void Check(int error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(EXIT_FAILURE);
}

double MedianMs(const std::function<void()>& run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kRepeats + 3; ++i) {
    Check(cudaEventRecord(begin));
    run();
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float ms = 0.0f;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2];
}

struct Bench {
  void* memory[5] = {};
  double copy_rate = 0;  // Bytes per millisecond.

  Bench() {
    for (void*& matrix : memory) {
      Check(cudaMalloc(&matrix, kBytes));
      Check(cudaMemset(matrix, 0x3e, kBytes));
    }
    const double ms = MedianMs(
        [&] { Check(cudaMemcpyAsync(memory[1], memory[0], kBytes, cudaMemcpyDeviceToDevice)); });
    copy_rate = 2.0 * static_cast<double>(kBytes) / ms;
    std::printf("copy %.3f TB/s\n", copy_rate / 1e9);
  }
};

template <template <typename> typename Function, typename C>
void Time(const Bench& bench, const char* pass) {
  using F = Function<BFloat16>;
  Call call = {};
  for (int i = 0; i < F::kInputs; ++i) call.in[i] = {bench.memory[i], kRows * kCols};
  for (int i = 0; i < F::kOutputs; ++i) call.out[i] = {bench.memory[3 + i], kRows * kCols};
  call.rows = 1;
  call.cols = kRows * kCols;
  call.dtype = FB_BF16;
  const typename F::Params params = {.round_activation = true};
  const Policy policy = elementwise::SelectPolicy<C>(call.cols / 8);
  const Tiles tiles = elementwise::TilesOf<C>(policy, 1, call.cols / 8);
  const LaunchShape shape = {.blocks = tiles.count, .threads = dim3(policy.threads_per_row, 1)};
  const double ms = MedianMs([&] {
    Check(LaunchKernel(ElementwiseKernel<Function, BFloat16, 8, C, false>, shape, call, params,
                       tiles));
  });
  const double bytes = static_cast<double>(kBytes) * (F::kInputs + F::kOutputs);
  std::printf("%-8s threads %4d unroll %d blocks/sm %2d  %.4f ms %5.1f %%\n", pass, C::kThreads,
              C::kUnroll, C::kBlocksPerSm, ms, 100 * bytes / bench.copy_rate / ms);
}

template <typename C>
void TimeBoth(const Bench& bench) {
  Time<Forward, C>(bench, "forward");
  Time<Backward, C>(bench, "backward");
}

template <int kThreads, int kUnroll>
void TimeBlocks(const Bench& bench) {
  constexpr int kFull = 2048 / kThreads;
  TimeBoth<Cut<kThreads, kUnroll, kFull / 2>>(bench);
  TimeBoth<Cut<kThreads, kUnroll, kFull * 5 / 8>>(bench);
  TimeBoth<Cut<kThreads, kUnroll, kFull * 3 / 4>>(bench);
  TimeBoth<Cut<kThreads, kUnroll, kFull>>(bench);
}

template <int kThreads>
void TimeThreads(const Bench& bench) {
  TimeBlocks<kThreads, 1>(bench);
  TimeBlocks<kThreads, 2>(bench);
}

}  // namespace
}  // namespace fuseboard::swiglu

int main() {
  const fuseboard::swiglu::Bench bench;
  fuseboard::swiglu::TimeThreads<64>(bench);
  fuseboard::swiglu::TimeThreads<128>(bench);
  fuseboard::swiglu::TimeThreads<256>(bench);
  fuseboard::swiglu::TimeThreads<512>(bench);
  fuseboard::swiglu::TimeThreads<1024>(bench);
}
