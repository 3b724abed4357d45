// Times the ways to cut rows that logits_policy.h could choose for jsd's forward from logits, in
// place, on device 0, as a table: share of the copy rate measured in the same run, by least
// traffic, which is two reads and a write of a logit. Its numbers go into the policy's comments.

#include <cstdio>

#include "kernels/jsd/jsd.cuh"
#include "kernels/jsd/jsd_call.h"
#include "kernels/jsd/logits_launch.cuh"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard::jsd {
namespace {

constexpr int64_t kBytes = int64_t{1}
                           << 30;  // Of each matrix: twenty times the L2 cache of an H200.

// Bits of numbers between 1/2 and 2 of either sign, in bf16 and in f32.
__global__ void FillKernel(uint16_t* at, int64_t size) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t hash = static_cast<uint32_t>(i * 2654435761u) >> 16;
    at[i] = static_cast<uint16_t>(0x3f00u | (hash & 0x80ffu));
  }
}

struct Bench {
  tuning::Rotating input{kBytes};
  tuning::Rotating target{kBytes};
  tuning::Rotating loss{int64_t{1} << 20};
  FbCall call = tuning::NewCall();
  double copy_rate = tuning::CopyRate(input, target, kBytes);

  void Fill() const {
    for (const tuning::Rotating* matrix : {&input, &target}) {
      FillKernel<<<1024, 256>>>(reinterpret_cast<uint16_t*>(matrix->base()), kBytes / 2);
    }
  }
};

struct Shape {
  int64_t rows;
  int64_t cols;
  int32_t dtype;
};

template <int kThreads>
void Print(const Bench& bench, const Shape& shape, int cluster, double beta) {
  bench.Fill();  // The last candidate left gradients.
  const int64_t element_bytes = shape.dtype == FB_F32 ? 4 : 2;
  const int64_t units = shape.cols * element_bytes / 16;
  LogitsPolicy policy{32, cluster};
  while (policy.threads < kThreads && policy.threads * 4 < units) policy.threads *= 2;
  const double us = tuning::MedianUs(
      [&](int turn) {
        FbTensor absent = {};
        absent.ndim = -1;
        const FbTensor input = bench.input.Matrix(shape.rows, shape.cols, shape.dtype, turn);
        const FbTensor inputs[] = {
            input, bench.target.Matrix(shape.rows, shape.cols, shape.dtype, turn), absent, absent};
        const FbTensor outputs[] = {{bench.loss.base(), {shape.rows}, {1}, 1, FB_F32, FB_CUDA, 0},
                                    input};
        const FbJsdParams params = {sizeof(FbJsdParams), beta, 0, 1.0};
        FbCall raw = bench.call;
        raw.inputs = inputs;
        raw.outputs = outputs;
        raw.num_inputs = 4;
        raw.num_outputs = 2;
        raw.params = &params;
        return LaunchLogits<kThreads>(raw, LogitsCallOf(raw), Mixture(WeightsOf(beta)), 1.0f,
                                      policy);
      },
      /*repeats=*/9);
  if (us == 0.0) return;
  const auto bytes = static_cast<double>(shape.rows * shape.cols * element_bytes * 3);
  const bool is_policy =
      kThreads == kLogitsThreads &&
      policy == SelectLogitsPolicy(bench.call.sm, units, shape.cols * element_bytes);
  std::printf("%5lld x %-6lld %-4s threads %4d cluster %d  %8.1f us %5.1f %%%s\n",
              static_cast<long long>(shape.rows), static_cast<long long>(shape.cols),
              shape.dtype == FB_F32 ? "f32" : "bf16", policy.threads, cluster, us,
              100.0 * bytes / us / bench.copy_rate, is_policy ? "  <- policy" : "");
}

}  // namespace
}  // namespace fuseboard::jsd

int main() {
  using namespace fuseboard::jsd;
  const Bench bench;
  for (const Shape& shape :
       {Shape{1024, 128256, FB_BF16}, Shape{512, 262144, FB_BF16}, Shape{1024, 128256, FB_F32},
        Shape{4096, 32000, FB_BF16}, Shape{16384, 4096, FB_BF16}}) {
    for (const int cluster : {1, 2, 4, 8}) {
      Print<128>(bench, shape, cluster, 0.5);
      Print<256>(bench, shape, cluster, 0.5);
      Print<512>(bench, shape, cluster, 0.5);
    }
  }
  return 0;
}
