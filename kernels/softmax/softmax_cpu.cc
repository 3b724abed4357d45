// Softmax on the CPU, compiled once per instruction set. Rows go through blocks of floats that stay
// in the L1 cache; the compiler vectorises the loops over a block. Sums have one order for every
// instruction set and number of threads (cpu_sum.h).

#include "kernels/softmax/softmax_cpu.h"

#include "kernels/common/cpu_float.h"
#include "kernels/common/cpu_sum.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/parallel.h"
#include "kernels/softmax/softmax_call.h"

namespace fuseboard::softmax::FB_CPU_ISA {
namespace {

using namespace fuseboard::FB_CPU_ISA;  // NOLINT(google-build-using-namespace): cpu_float.h.

constexpr int64_t kBlock = 1024;  // 4 KiB of floats; up to three such buffers are live.
constexpr int kLanes = 32;
constexpr int64_t kGrainElements = 16384;  // Work below this does not pay for another thread.
constexpr float kInfinity = __builtin_inff();

int64_t BlockLength(int64_t begin, int64_t size) {
  return size - begin < kBlock ? size - begin : kBlock;
}

template <typename T>
T* Row(const Matrix& matrix, int64_t row) {
  return static_cast<T*>(matrix.base) + row * matrix.stride;
}

// NaN is passed over: it shows in the sum.
float MaxOf(const float* values, int64_t n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -kInfinity;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    }
  }
  for (; i < n; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
  float max = lanes[0];
  for (const float lane : lanes) max = lane > max ? lane : max;
  return max;
}

// The maximum of a row, and the sum of the exponentials of what is below it.
struct RowStats {
  float max;
  float sum;
};

template <typename T>
RowStats StatsOf(const T* x, int64_t cols) {
  float buffer[kBlock];
  float max = -kInfinity;
  for (int64_t at = 0; at < cols; at += kBlock) {
    const int64_t n = BlockLength(at, cols);
    const float block_max = MaxOf(ViewBlock(x + at, buffer, n), n);
    max = block_max > max ? block_max : max;
  }
  double sum = 0.0;
  for (int64_t at = 0; at < cols; at += kBlock) {
    const int64_t n = BlockLength(at, cols);
    const float* values = ViewBlock(x + at, buffer, n);
    for (int64_t i = 0; i < n; ++i) buffer[i] = ExpNonPositive(values[i] - max);
    sum += SumBlock(buffer, n);
  }
  return {max, static_cast<float>(sum)};
}

template <typename T>
void ForwardRow(const Call& call, int64_t row) {
  const T* x = Row<const T>(call.in[0], row);
  T* y = Row<T>(call.out, row);
  const RowStats stats = StatsOf(x, call.cols);
  float buffer[kBlock];
  for (int64_t at = 0; at < call.cols; at += kBlock) {
    const int64_t n = BlockLength(at, call.cols);
    const float* values = ViewBlock(x + at, buffer, n);
    for (int64_t i = 0; i < n; ++i) buffer[i] = ExpNonPositive(values[i] - stats.max) / stats.sum;
    StoreBlock(buffer, y + at, n);
  }
}

template <typename T>
void BackwardRow(const Call& call, int64_t row) {
  const T* dy = Row<const T>(call.in[0], row);
  const T* y = Row<const T>(call.in[1], row);
  T* dx = Row<T>(call.out, row);
  float dy_buffer[kBlock];
  float y_buffer[kBlock];
  float result[kBlock];
  double sum = 0.0;
  for (int64_t at = 0; at < call.cols; at += kBlock) {
    const int64_t n = BlockLength(at, call.cols);
    const float* dys = ViewBlock(dy + at, dy_buffer, n);
    const float* ys = ViewBlock(y + at, y_buffer, n);
    for (int64_t i = 0; i < n; ++i) result[i] = dys[i] * ys[i];
    sum += SumBlock(result, n);
  }
  const auto dot = static_cast<float>(sum);
  for (int64_t at = 0; at < call.cols; at += kBlock) {
    const int64_t n = BlockLength(at, call.cols);
    const float* dys = ViewBlock(dy + at, dy_buffer, n);
    const float* ys = ViewBlock(y + at, y_buffer, n);
    for (int64_t i = 0; i < n; ++i) result[i] = ys[i] * (dys[i] - dot);
    StoreBlock(result, dx + at, n);
  }
}

// Calls row(tag of the dtype, number) for all rows, over the caller's threads.
template <typename Fn>
void ForEachRow(const FbCall& raw, const Fn& row) {
  const Call call = CallOf(raw);
  const int64_t grain = call.cols >= kGrainElements ? 1 : kGrainElements / (call.cols + 1) + 1;
  DispatchFloat(call.dtype, [&](auto tag) {
    ParallelFor(raw, call.rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) row(tag, call, i);
    });
  });
}

}  // namespace

int32_t ForwardCpu(const FbCall* raw, void* /*workspace*/) {
  ForEachRow(*raw, [](auto tag, const Call& call, int64_t row) {
    ForwardRow<typename decltype(tag)::type>(call, row);
  });
  return 0;
}

int32_t BackwardCpu(const FbCall* raw, void* /*workspace*/) {
  ForEachRow(*raw, [](auto tag, const Call& call, int64_t row) {
    BackwardRow<typename decltype(tag)::type>(call, row);
  });
  return 0;
}

}  // namespace fuseboard::softmax::FB_CPU_ISA
