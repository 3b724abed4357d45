// Times the ways to cut bf16 rows that rms_norm_policy.h could choose, on device 0, as a table:
// share of the copy rate measured in the same run, by least traffic (docs/kernels/rms_norm.md).
// Buffers rotate through 512 MiB, ten times the L2 cache of an H200. Its numbers go into the
// policy's comments.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "kernels/abi/rms_norm.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rms_norm/rms_norm_policy.h"

namespace fuseboard::rms_norm {
namespace {

constexpr int64_t kBytes = int64_t{512} << 20;  // Of each of x, dy and y.
constexpr int kRepeats = 24;

void Check(int error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(EXIT_FAILURE);
}

char* Allocate(int64_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, static_cast<size_t>(bytes)));
  Check(cudaMemset(memory, 0, static_cast<size_t>(bytes)));
  return static_cast<char*>(memory);
}

// Median microseconds of run(i); 0 if a launch is refused.
double Median(const std::function<int(int)>& run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kRepeats + 4; ++i) {
    Check(cudaEventRecord(begin));
    if (run(i) != cudaSuccess) return 0.0;
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float ms = 0.0f;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 4) times.push_back(ms * 1e3f);  // The first load the kernels.
  }
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2];
}

struct Device {
  char* x = Allocate(kBytes);
  char* dy = Allocate(kBytes);
  char* y = Allocate(kBytes);
  char* weight = Allocate(int64_t{1} << 20);
  char* dweight = Allocate(int64_t{1} << 20);
  char* rstd = Allocate(int64_t{64} << 20);
  char* workspace = Allocate(int64_t{1} << 30);
  int sm_count = 0;
  int sm = 0;

  Device() {
    int major = 0;
    int minor = 0;
    Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    Check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    Check(cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, 0));
    sm = 10 * major + minor;
  }
};

FbTensor Matrix(char* base, int64_t rows, int64_t hidden, int turn) {
  const int64_t bytes = rows * hidden * 2;
  const int64_t turns = std::max<int64_t>(kBytes / bytes, 1);
  return {base + turn % turns * bytes, {rows, hidden}, {hidden, 1}, 2, FB_BF16, FB_CUDA, 0};
}

FbTensor Vector(char* base, int64_t size, int32_t dtype) {
  return {base, {size}, {1}, 1, dtype, FB_CUDA, 0};
}

double Time(Device* d, FbPhase phase, const Policy& policy, int64_t rows, int64_t hidden) {
  const FbRmsNormParams params = {sizeof(FbRmsNormParams), FB_CASTING_LLAMA, 1e-6, 0.0};
  return Median([&](int turn) {
    const FbTensor x = Matrix(d->x, rows, hidden, turn);
    const FbTensor y = Matrix(d->y, rows, hidden, turn);
    const FbTensor weight = Vector(d->weight, hidden, FB_BF16);
    const FbTensor rstd = Vector(d->rstd, rows, FB_F32);
    FbCall call = {};
    call.device_type = FB_CUDA;
    call.sm = d->sm;
    call.sm_count = d->sm_count;
    call.params = &params;
    if (phase == FB_FORWARD) {
      const FbTensor inputs[] = {x, weight};
      const FbTensor outputs[] = {y, rstd};
      call.inputs = inputs;
      call.outputs = outputs;
      return LaunchForward(call, policy);
    }
    const FbTensor inputs[] = {Matrix(d->dy, rows, hidden, turn), x, weight, rstd};
    const FbTensor outputs[] = {y, Vector(d->dweight, hidden, FB_BF16)};
    call.inputs = inputs;
    call.outputs = outputs;
    return LaunchBackward(call, policy, d->workspace);
  });
}

void Print(const char* phase, int64_t rows, int64_t hidden, const Policy& p, bool chosen,
           double share) {
  std::printf(
      "%-8s %7lld x %-7lld packs %d threads %4d rows %2d cluster %d blocks/sm %2d stages %d "
      "%5.1f %%%s\n",
      phase, static_cast<long long>(rows), static_cast<long long>(hidden), p.packs,
      p.threads_per_row, p.rows_per_block, p.cluster, p.blocks_per_sm, p.stages, share,
      chosen ? "  <- policy" : "");
}

void TuneForward(Device* d, int64_t rows, int64_t hidden, double copy_bytes_per_us) {
  const int64_t packs = hidden / 8;
  const Policy chosen = SelectForward(d->sm, packs);
  std::vector<Policy> candidates = {chosen};
  for (const int per_thread : {1, 2, 4, 8}) {
    for (const int threads : {32, 128, 256, 512}) {
      for (const int block : {32, 128, 256}) {
        const int max_cluster = packs > 2048 && d->sm >= 90 ? kMaxCluster : 1;
        Policy p = CutRow(packs, per_thread, threads, max_cluster, block);
        for (const int blocks_per_sm : {0, 4, 8}) {
          p.blocks_per_sm = p.cluster == 1 ? blocks_per_sm : 0;
          const bool fits = p.packs > 0 && p.threads_per_row * p.rows_per_block <= 512;
          const bool known = std::ranges::find(candidates, p) != candidates.end();
          if (fits && !known) candidates.push_back(p);
        }
      }
    }
  }
  for (const Policy& p : candidates) {
    const double us = Time(d, FB_FORWARD, p, rows, hidden);
    const auto bytes = static_cast<double>(rows * hidden * 4);
    if (us > 0) {
      Print("forward", rows, hidden, p, p == chosen, 100 * bytes / us / copy_bytes_per_us);
    }
  }
}

void TuneBackward(Device* d, int64_t rows, int64_t hidden, double copy_bytes_per_us) {
  const int64_t packs = hidden / 8;
  const Policy chosen = SelectBackward(d->sm, packs, 2, 2);
  std::vector<Policy> candidates = {chosen};
  for (const int per_thread : {1, 2, 4, 8}) {
    for (const int threads : {32, 256, 512}) {
      const int max_cluster = packs > 2048 && d->sm >= 90 ? kMaxCluster : 1;
      Policy p = CutRow(packs, per_thread, threads, max_cluster, 256);
      if (p.packs == 0) continue;
      if (p.threads_per_row * p.rows_per_block > (per_thread <= 2 ? 256 : 512)) continue;
      for (const bool shared_weight : {true, false}) {
        if (!shared_weight && p.rows_per_block > 1) continue;
        for (const int stages : {1, 2, 3}) {
          for (const int blocks_per_sm : {1, 2, 3, 4, 6}) {
            p.shared_weight = shared_weight;
            p.stages = stages;
            p.blocks_per_sm = blocks_per_sm;
            if (FitsShared(p, d->sm, 2, 2) && !(p == chosen)) candidates.push_back(p);
          }
        }
      }
    }
  }
  for (const Policy& p : candidates) {
    const double us = Time(d, FB_BACKWARD, p, rows, hidden);
    const auto bytes = static_cast<double>(rows * hidden * 6);
    if (us > 0) {
      Print("backward", rows, hidden, p, p == chosen, 100 * bytes / us / copy_bytes_per_us);
    }
  }
}

void Tune() {
  Device d;
  const double copy_us = Median([&](int) {
    return cudaMemcpyAsync(d.y, d.x, static_cast<size_t>(kBytes), cudaMemcpyDeviceToDevice);
  });
  const double rate = 2.0 * static_cast<double>(kBytes) / copy_us;
  std::printf("copy %.2f TB/s\n", rate / 1e6);
  constexpr int64_t kElements = int64_t{1} << 26;  // 16,384 x 4,096.
  for (const int64_t hidden : {128, 1024, 2048, 4096, 5120, 8192, 16384, 65536, 131072, 262144}) {
    TuneForward(&d, kElements / hidden, hidden, rate);
    TuneBackward(&d, kElements / hidden, hidden, rate);
  }
}

}  // namespace
}  // namespace fuseboard::rms_norm

int main() { fuseboard::rms_norm::Tune(); }
