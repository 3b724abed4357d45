// Times candidates for calls that are shorter than a launch, as tests/benchmarks/timing.py does:
// the device is kept busy while the host enqueues, and all candidates are gone round in each round.

#ifndef TESTS_KERNELS_TUNING_FEW_ROWS_TIMER_H_
#define TESTS_KERNELS_TUNING_FEW_ROWS_TIMER_H_

#include <cstddef>
#include <numeric>
#include <string>

#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard::tuning {

// Keeps the device busy for about `ns`.
static __global__ void SpinKernel(long long ns) {
  long long begin = 0;
  long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

struct Candidate {
  std::string name;
  std::function<int(int)> run;  // Of a turn.
  std::vector<float> us = {};
};

// Prints the medians, the 10th and 90th percentiles, and the mean of what lies between these:
// the clock of events goes in steps of 0.2 us. Of `chain` runs one after another, per run.
inline void TimeInterleaved(std::vector<Candidate> candidates, int chain = 1, int rounds = 100) {
  constexpr int kWarmUp = 4;
  const long long head_start_ns = 40'000 + 8'000 * (chain - 1);
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  for (int round = 0; round < rounds + kWarmUp; ++round) {
    for (Candidate& candidate : candidates) {
      SpinKernel<<<1, 1>>>(head_start_ns);
      Check(cudaEventRecord(begin));
      for (int i = 0; i < chain; ++i) Check(candidate.run(round + i));
      Check(cudaEventRecord(end));
      Check(cudaDeviceSynchronize());
      float ms = 0.0f;
      Check(cudaEventElapsedTime(&ms, begin, end));
      if (round >= kWarmUp) candidate.us.push_back(ms * 1e3f / static_cast<float>(chain));
    }
  }
  for (Candidate& candidate : candidates) {
    std::sort(candidate.us.begin(), candidate.us.end());
    const size_t count = candidate.us.size();
    const auto begin_of_mean = candidate.us.begin() + static_cast<std::ptrdiff_t>(count / 10);
    const auto end_of_mean = candidate.us.end() - static_cast<std::ptrdiff_t>(count / 10);
    const float mean = std::accumulate(begin_of_mean, end_of_mean, 0.0f) /
                       static_cast<float>(end_of_mean - begin_of_mean);
    std::printf("%-64s %7.3f us (%.3f - %.3f) %7.3f\n", candidate.name.c_str(),
                candidate.us[count / 2], candidate.us[count / 10],
                candidate.us[count - 1 - count / 10], mean);
  }
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
}

}  // namespace fuseboard::tuning

#endif  // TESTS_KERNELS_TUNING_FEW_ROWS_TIMER_H_
