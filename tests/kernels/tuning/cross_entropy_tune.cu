// Times cross_entropy under several policies, to choose those of cross_entropy_policy.h. Not a
// test.
//
//   cross_entropy_tune [substring of the shapes to run, e.g. 8192x128256]
//
// Each line: shape, pass, candidate, median milliseconds of 21, and the share of the limit, which
// is the least traffic of the pass over the copy rate of the same run. Between two launches on the
// same memory come enough others to replace the L2 cache. `default` is what SelectPolicy gives.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cross_entropy/cross_entropy_cuda.h"

namespace fuseboard::cross_entropy {
namespace {

constexpr int kRepeats = 21;
constexpr size_t kColdBytes = size_t{256} << 20;  // Five times the L2 cache.

void Check(int error, const char* what) {
  if (error == 0) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(EXIT_FAILURE);
}

// Fills with small bf16 or fp32 values; the bits are a hash of the place.
__global__ void FillKernel(uint16_t* at, size_t size, bool is_f32) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < size;
       i += size_t{gridDim.x} * blockDim.x) {
    const auto hash = static_cast<uint32_t>(i * 2654435761u) >> 16;
    const bool is_mantissa = is_f32 && i % 2 == 0;
    at[i] = static_cast<uint16_t>(is_mantissa ? hash : 0x3f00u | (hash & 0x80ffu));
  }
}

struct Bench {
  void* logits = nullptr;    // `copies` matrices,
  void* dlogits = nullptr;   // likewise.
  float* per_row = nullptr;  // loss, lse and scale.
  int64_t* target = nullptr;
  size_t matrix_bytes = 0;
  int copies = 1;
  CudaTarget device{};
  int sm = 0;
  double copy_rate = 0;  // Bytes per second, read and written.
};

double MedianMs(const std::function<void(int)>& launch) {
  std::vector<float> times;
  cudaEvent_t begin;
  cudaEvent_t end;
  Check(cudaEventCreate(&begin), "event");
  Check(cudaEventCreate(&end), "event");
  for (int i = 0; i < kRepeats + 3; ++i) {
    Check(cudaEventRecord(begin), "record");
    launch(i);
    Check(cudaEventRecord(end), "record");
    Check(cudaEventSynchronize(end), "run");
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end), "time");
    if (i >= 3) times.push_back(ms);
  }
  Check(cudaEventDestroy(begin), "event");
  Check(cudaEventDestroy(end), "event");
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2];
}

char* MatrixAt(void* base, const Bench& bench, int i) {
  return static_cast<char*>(base) + static_cast<size_t>(i % bench.copies) * bench.matrix_bytes;
}

Bench MakeBench(int64_t rows, int64_t vocab, int element_bytes) {
  Bench bench;
  bench.matrix_bytes = static_cast<size_t>(rows * vocab * element_bytes + 255) / 256 * 256;
  bench.copies = static_cast<int>(kColdBytes / bench.matrix_bytes + 1);
  const size_t bytes = bench.matrix_bytes * static_cast<size_t>(bench.copies);
  Check(cudaMalloc(&bench.logits, bytes), "logits");
  Check(cudaMalloc(&bench.dlogits, bytes), "dlogits");
  Check(cudaMalloc(&bench.per_row, rows * 3 * sizeof(float)), "rows");
  Check(cudaMalloc(&bench.target, rows * sizeof(int64_t)), "target");
  FillKernel<<<1024, 256>>>(static_cast<uint16_t*>(bench.logits), bytes / 2, element_bytes == 4);
  const std::vector<int64_t> targets(rows, vocab / 3);
  Check(cudaMemcpy(bench.target, targets.data(), rows * sizeof(int64_t), cudaMemcpyHostToDevice),
        "target");
  const std::vector<float> ones(rows * 3, 1.0F);
  Check(cudaMemcpy(bench.per_row, ones.data(), ones.size() * sizeof(float), cudaMemcpyHostToDevice),
        "rows");
  cudaDeviceProp device;
  Check(cudaGetDeviceProperties(&device, 0), "device");
  bench.device = {0, device.multiProcessorCount, nullptr};
  bench.sm = device.major * 10 + device.minor;
  const double ms = MedianMs([&](int i) {
    Check(cudaMemcpyAsync(MatrixAt(bench.dlogits, bench, i), MatrixAt(bench.logits, bench, i),
                          bench.matrix_bytes, cudaMemcpyDeviceToDevice),
          "copy");
  });
  bench.copy_rate = 2.0 * static_cast<double>(bench.matrix_bytes) / ms * 1e3;
  return bench;
}

void FreeBench(const Bench& bench) {
  for (void* memory : {bench.logits, bench.dlogits, static_cast<void*>(bench.per_row),
                       static_cast<void*>(bench.target)}) {
    Check(cudaFree(memory), "free");
  }
}

Problem MakeProblem(const Bench& bench, int64_t rows, int64_t vocab, int32_t dtype) {
  Problem p{};
  p.target = bench.target;
  p.loss = bench.per_row;
  p.lse = bench.per_row + rows;
  p.rows = rows;
  p.vocab = static_cast<int32_t>(vocab);
  p.logits_stride = p.dlogits_stride = vocab;
  p.target_stride = 1;
  p.ignore_index = -100;
  p.dtype = dtype;
  p.logit_scale = 1.0F;
  p.target_is_i64 = true;
  return p;
}

struct Candidate {
  std::string name;
  Policy policy;
};

// As many slots as leave room for `blocks` on a multiprocessor; at most what the kernel has.
Policy Ring(int sm, int threads, int blocks, int cluster, int chunk_bytes, int sum_threads = 0) {
  return {Algorithm::kRing, threads,    blocks, cluster, SlotsPerBlock(sm, blocks, chunk_bytes),
          chunk_bytes,      sum_threads};
}

std::string NameOf(const Policy& policy) {
  return "ring cluster=" + std::to_string(policy.cluster) +
         " blocks/sm=" + std::to_string(policy.blocks_per_sm) +
         " threads=" + std::to_string(policy.threads) +
         " sum=" + std::to_string(policy.sum_threads) +
         " chunk=" + std::to_string(policy.chunk_bytes) + " slots=" + std::to_string(policy.slots);
}

std::vector<Policy> LossCandidates(int sm) {
  std::vector<Policy> out;
  for (const int blocks : {1, 2, 3, 4}) {
    for (const int threads : {128, 192, 256}) {
      for (const int chunk : {8192, 16384}) out.push_back(Ring(sm, threads, blocks, 1, chunk));
    }
  }
  return out;
}

std::vector<Policy> GradientCandidates(int sm, int64_t row_bytes) {
  constexpr struct {
    int sum;
    int store;
  } kSplits[] = {{64, 128}, {128, 128}, {128, 256}, {128, 384}, {192, 192}, {256, 128}, {256, 256}};
  std::vector<Policy> out;
  for (const int cluster : {1, 2, 4, 8}) {
    for (const int blocks : {1, 2, 3}) {
      for (const auto& split : kSplits) {
        for (const int chunk : {8192, 16384, 32768}) {
          const Policy policy =
              Ring(sm, split.sum + split.store, blocks, cluster, chunk, split.sum);
          const bool fits = (policy.threads + 64) * blocks <= kMaxPipelineThreads;
          if (fits && RingHoldsSlice(policy, row_bytes)) out.push_back(policy);
        }
      }
    }
  }
  return out;
}

std::vector<Candidate> Candidates(int sm, int64_t vocab, int element_bytes, bool gradient) {
  std::vector<Candidate> out = {
      {"default",
       SelectPolicy(sm, vocab, element_bytes, gradient ? Pass::kPlainGradient : Pass::kLoss)}};
  for (const int threads : {1024, 512}) {
    out.push_back({"twice-read threads=" + std::to_string(threads),
                   {Algorithm::kBlockPerRow, threads, 1024 / threads, 1, 0, 0}});
  }
  for (const Policy& policy :
       gradient ? GradientCandidates(sm, vocab * element_bytes) : LossCandidates(sm)) {
    out.push_back({NameOf(policy), policy});
  }
  return out;
}

void Print(const char* shape, const char* pass, const std::string& name, double ms,
           double traffic_bytes, const Bench& bench) {
  const double limit_ms = traffic_bytes / bench.copy_rate * 1e3;
  std::printf("%-18s %-12s %-58s %8.4f ms %6.1f %%\n", shape, pass, name.c_str(), ms,
              100.0 * limit_ms / ms);
  std::fflush(stdout);
}

void RunShape(const char* shape, int64_t rows, int64_t vocab, int32_t dtype) {
  const int element_bytes = dtype == FB_F32 ? 4 : 2;
  const Bench bench = MakeBench(rows, vocab, element_bytes);
  std::printf("%-18s copy rate %.3f TB/s\n", shape, bench.copy_rate / 1e12);
  const auto bytes = static_cast<double>(rows * vocab * element_bytes);
  Problem p = MakeProblem(bench, rows, vocab, dtype);
  const auto forward = [&](const char* pass, bool gradient, bool in_place) {
    for (const Candidate& candidate : Candidates(bench.sm, vocab, element_bytes, gradient)) {
      const double ms = MedianMs([&](int i) {
        p.logits = MatrixAt(bench.logits, bench, i);
        p.dlogits = !gradient  ? nullptr
                    : in_place ? MatrixAt(bench.logits, bench, i)
                               : MatrixAt(bench.dlogits, bench, i);
        Check(LaunchForward(p, candidate.policy, bench.device), candidate.name.c_str());
      });
      Print(shape, pass, candidate.name, ms, gradient ? 2 * bytes : bytes, bench);
    }
  };
  forward("loss", false, false);
  forward("out-of-place", true, false);
  p.lse_in = p.lse;
  p.scale = bench.per_row + 2 * rows;
  p.scale_stride = 1;
  const double ms = MedianMs([&](int i) {
    p.logits = MatrixAt(bench.logits, bench, i);
    p.dlogits = MatrixAt(bench.dlogits, bench, i);
    Check(LaunchBackward(p, nullptr, bench.device), "backward");
  });
  Print(shape, "backward", "default", ms, 2 * bytes, bench);
  p.scale = nullptr;
  forward("in-place", true, true);  // Last: it replaces the logits by gradients.
  FreeBench(bench);
}

}  // namespace
}  // namespace fuseboard::cross_entropy

int main(int argc, char** argv) {
  struct {
    const char* name;
    int64_t rows;
    int64_t vocab;
    int32_t dtype;
  } const shapes[] = {
      {"8192x32000-bf16", 8192, 32000, FB_BF16},   {"8192x128256-bf16", 8192, 128256, FB_BF16},
      {"1024x128256-bf16", 1024, 128256, FB_BF16}, {"8192x151936-bf16", 8192, 151936, FB_BF16},
      {"4096x262144-bf16", 4096, 262144, FB_BF16}, {"8192x50257-bf16", 8192, 50257, FB_BF16},
      {"4096x128256-f32", 4096, 128256, FB_F32},
  };
  for (const auto& shape : shapes) {
    if (argc > 1 && std::strstr(shape.name, argv[1]) == nullptr) continue;
    fuseboard::cross_entropy::RunShape(shape.name, shape.rows, shape.vocab, shape.dtype);
  }
  return 0;
}
