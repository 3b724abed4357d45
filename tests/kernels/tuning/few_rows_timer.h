// Times candidates for calls that are shorter than a launch, as tests/benchmarks/timing.py does:
// the device is kept busy while the host enqueues, and all candidates are gone round in each round.

#ifndef TESTS_KERNELS_TUNING_FEW_ROWS_TIMER_H_
#define TESTS_KERNELS_TUNING_FEW_ROWS_TIMER_H_

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

// Prints the medians, and the 10th and 90th percentiles.
inline void TimeInterleaved(std::vector<Candidate> candidates, int rounds = 60) {
  constexpr int kWarmUp = 4;
  constexpr long long kHeadStartNs = 40'000;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  for (int round = 0; round < rounds + kWarmUp; ++round) {
    for (Candidate& candidate : candidates) {
      SpinKernel<<<1, 1>>>(kHeadStartNs);
      Check(cudaEventRecord(begin));
      Check(candidate.run(round));
      Check(cudaEventRecord(end));
      Check(cudaDeviceSynchronize());
      float ms = 0.0f;
      Check(cudaEventElapsedTime(&ms, begin, end));
      if (round >= kWarmUp) candidate.us.push_back(ms * 1e3f);
    }
  }
  for (Candidate& candidate : candidates) {
    std::sort(candidate.us.begin(), candidate.us.end());
    const size_t count = candidate.us.size();
    std::printf("%-64s %7.3f us (%.3f - %.3f)\n", candidate.name.c_str(), candidate.us[count / 2],
                candidate.us[count / 10], candidate.us[count - 1 - count / 10]);
  }
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
}

}  // namespace fuseboard::tuning

#endif  // TESTS_KERNELS_TUNING_FEW_ROWS_TIMER_H_
