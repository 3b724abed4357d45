// What the programs that time candidates share: memory beyond the L2 cache, medians of event times,
// and the copy rate of the same run that they are compared with. Exits at the first CUDA error.

#ifndef TESTS_KERNELS_TUNING_DEVICE_TIMER_H_
#define TESTS_KERNELS_TUNING_DEVICE_TIMER_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::tuning {

inline void Check(int error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(EXIT_FAILURE);
}

// Median microseconds of run(turn) over `repeats`; 0 if a launch is refused. Turns are queued one
// after the other, so that the GPU need not wait for the host, whose time is not meant.
inline double MedianUs(const std::function<int(int)>& run, int repeats = 24) {
  constexpr int kWarmUp = 4;  // The first turns load the kernels.
  std::vector<cudaEvent_t> events(static_cast<size_t>(2 * (repeats + kWarmUp)));
  for (cudaEvent_t& event : events) Check(cudaEventCreate(&event));
  int error = cudaSuccess;
  for (size_t i = 0; i < events.size() && error == cudaSuccess; i += 2) {
    if (i == 2) Check(cudaDeviceSynchronize());
    Check(cudaEventRecord(events[i]));
    error = run(static_cast<int>(i / 2));
    Check(cudaEventRecord(events[i + 1]));
  }
  Check(cudaDeviceSynchronize());
  std::vector<float> times;
  for (size_t i = size_t{2} * kWarmUp; i < events.size() && error == cudaSuccess; i += 2) {
    float ms = 0.0f;
    Check(cudaEventElapsedTime(&ms, events[i], events[i + 1]));
    times.push_back(ms * 1e3f);
  }
  for (const cudaEvent_t event : events) Check(cudaEventDestroy(event));
  if (error != cudaSuccess) return 0.0;
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats) / 2];
}

// Memory of which each turn uses another part, so that nothing is left of it in the L2 cache.
class Rotating {
 public:
  explicit Rotating(int64_t bytes, int fill = 0) : bytes_(bytes) {
    void* memory = nullptr;
    Check(cudaMalloc(&memory, static_cast<size_t>(bytes)));
    Check(cudaMemset(memory, fill, static_cast<size_t>(bytes)));
    base_ = static_cast<char*>(memory);
  }

  char* base() const { return base_; }
  // bf16 values around `mean`, as of a uniform distribution of deviation 1, repeated every 8 MiB.
  void FillBf16(float mean) const {
    std::vector<uint16_t> values(size_t{4} << 20);
    uint32_t state = 1;
    for (uint16_t& value : values) {
      state = state * 1664525u + 1013904223u;
      const float v = mean + (static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * 3.4641f;
      uint32_t word;
      std::memcpy(&word, &v, sizeof(word));
      value = static_cast<uint16_t>(word >> 16);
    }
    const auto chunk = static_cast<int64_t>(values.size() * 2);
    for (int64_t at = 0; at < bytes_; at += chunk) {
      Check(cudaMemcpy(base_ + at, values.data(), static_cast<size_t>(std::min(chunk, bytes_ - at)),
                       cudaMemcpyHostToDevice));
    }
  }
  FbTensor Matrix(int64_t rows, int64_t cols, int32_t dtype, int turn) const {
    const int64_t bytes = rows * cols * (dtype == FB_F32 ? 4 : 2);
    const int64_t turns = std::max<int64_t>(bytes_ / bytes, 1);
    return {base_ + turn % turns * bytes, {rows, cols}, {cols, 1}, 2, dtype, FB_CUDA, 0};
  }

 private:
  int64_t bytes_;
  char* base_;
};

// Bytes per microsecond, read and written, of a copy from one to the other.
inline double CopyRate(const Rotating& to, const Rotating& from, int64_t bytes) {
  const double us = MedianUs([&](int) {
    return cudaMemcpyAsync(to.base(), from.base(), static_cast<size_t>(bytes),
                           cudaMemcpyDeviceToDevice);
  });
  std::printf("copy %.2f TB/s\n", 2.0 * static_cast<double>(bytes) / us / 1e6);
  return 2.0 * static_cast<double>(bytes) / us;
}

// A call on device 0, without tensors.
inline FbCall NewCall() {
  int major = 0;
  int minor = 0;
  FbCall call = {};
  call.struct_size = sizeof(FbCall);
  call.device_type = FB_CUDA;
  Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  Check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  Check(cudaDeviceGetAttribute(&call.sm_count, cudaDevAttrMultiProcessorCount, 0));
  call.sm = 10 * major + minor;
  return call;
}

}  // namespace fuseboard::tuning

#endif  // TESTS_KERNELS_TUNING_DEVICE_TIMER_H_
