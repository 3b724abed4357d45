// Losses that are an elementwise function of two matrices, summed over each row, with the gradient
// in the same pass, on the CPU: the twin of row_loss.cuh. Compiled once per instruction set
// (cpu_isa.h).
//
// Function is the operation's own:
//   void operator()(const float* x, const float* y, int64_t n, float* loss, float* gradient) const
// for a block of elements; `loss` or `gradient` is null where it is not wanted.
//
// Rows are taken in tiles, so that a few wide rows use all threads; tiles are added in order, so
// that results depend neither on the threads nor on the schedule.

#ifndef KERNELS_COMMON_ROW_LOSS_CPU_H_
#define KERNELS_COMMON_ROW_LOSS_CPU_H_

#include "kernels/common/cpu_float.h"
#include "kernels/common/cpu_sum.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/parallel.h"
#include "kernels/common/row_loss_call.h"
#include "kernels/common/row_loss_policy.h"

namespace fuseboard::row_loss::FB_CPU_ISA {

using fuseboard::FB_CPU_ISA::StoreBlock;
using fuseboard::FB_CPU_ISA::SumBlock;
using fuseboard::FB_CPU_ISA::ViewBlock;

inline constexpr int64_t kBlock = 1024;           // 4 KiB of floats; up to ten such are live.
inline constexpr int64_t kGrainElements = 16384;  // Work below this does not pay for a thread.

inline bool IsIgnored(const Call& call, int64_t row) {
  if (call.label == nullptr) return false;
  const int64_t at = row * call.label_stride;
  const int64_t label = call.label_is_i64 ? static_cast<const int64_t*>(call.label)[at]
                                          : static_cast<const int32_t*>(call.label)[at];
  return label == call.ignore_index;
}

// Columns [begin, begin + n) of a row whose label is ignored.
template <typename T>
void ClearBlock(const Call& call, int64_t row, int64_t begin, int64_t n) {
  const float zeros[kBlock] = {};
  if (call.losses != nullptr) {
    StoreBlock(zeros, call.losses + row * call.losses_stride + begin, n);
  }
  if (call.dinput != nullptr) {
    T* dinput = static_cast<T*>(call.dinput) + row * call.dinput_stride;
    StoreBlock(zeros, dinput + begin, n);
  }
}

// Columns [begin, begin + n) of a row: writes what the call wants of them and returns their sum.
template <typename T, typename Function>
double SolveBlock(const Call& call, const Function& function, int64_t row, int64_t begin,
                  int64_t n) {
  float x_buffer[kBlock];
  float y_buffer[kBlock];
  float losses[kBlock];
  float gradient[kBlock];
  const T* input = static_cast<const T*>(call.input) + row * call.input_stride + begin;
  const T* target = static_cast<const T*>(call.target) + row * call.target_stride + begin;
  const bool wants_loss = call.loss != nullptr || call.losses != nullptr;
  function(ViewBlock(input, x_buffer, n), ViewBlock(target, y_buffer, n), n,
           wants_loss ? losses : nullptr, call.dinput != nullptr ? gradient : nullptr);
  if (call.losses != nullptr) {
    float* out = call.losses + row * call.losses_stride + begin;
    for (int64_t i = 0; i < n; ++i) out[i] = losses[i];
  }
  if (call.dinput != nullptr) {
    if (call.dloss != nullptr) {
      const float* dloss = call.dloss + row * call.dloss_stride + begin;
      for (int64_t i = 0; i < n; ++i) gradient[i] *= dloss[i];
    } else if (call.scale != nullptr) {
      const float scale = call.scale[row * call.scale_stride];
      for (int64_t i = 0; i < n; ++i) gradient[i] *= scale;
    }
    T* dinput = static_cast<T*>(call.dinput) + row * call.dinput_stride;
    StoreBlock(gradient, dinput + begin, n);
  }
  return call.loss != nullptr ? SumBlock(losses, n) : 0.0;
}

template <typename T, typename Function>
double SolveTile(const Call& call, const Function& function, int64_t row, int64_t tile) {
  const int64_t begin = tile * kCpuTile;
  const int64_t end = begin + kCpuTile < call.cols ? begin + kCpuTile : call.cols;
  const bool ignored = IsIgnored(call, row);
  double sum = 0.0;
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = end - at < kBlock ? end - at : kBlock;
    if (ignored) {
      ClearBlock<T>(call, row, at, n);
    } else {
      sum += SolveBlock<T>(call, function, row, at, n);
    }
  }
  return sum;
}

// loss[row] = the sum of the row's tiles.
inline void AddTiles(const Call& call, const double* sums, int64_t tiles) {
  for (int64_t row = 0; row < call.rows; ++row) {
    double sum = 0.0;
    for (int64_t tile = 0; tile < tiles; ++tile) sum += sums[row * tiles + tile];
    call.loss[row] = static_cast<float>(sum);
  }
}

// `workspace` is of CpuForwardWorkspaceBytes for a forward, and not looked at for a backward.
template <typename Function>
int32_t Run(const FbCall& raw, const Call& call, const Function& function, void* workspace) {
  if (IsEmpty(call)) return 0;
  const int64_t tiles = CpuTilesPerRow(call.cols);
  auto* sums = static_cast<double*>(workspace);
  const int64_t tile_cols = call.cols < kCpuTile ? call.cols : kCpuTile;
  const int64_t grain = tile_cols >= kGrainElements ? 1 : kGrainElements / (tile_cols + 1) + 1;
  DispatchFloat(call.dtype, [&](auto tag) {
    using T = decltype(tag)::type;
    ParallelFor(raw, call.rows * tiles, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = tiles == 1 ? i : i / tiles;
        const double sum = SolveTile<T>(call, function, row, i - row * tiles);
        if (call.loss == nullptr) continue;
        if (tiles == 1) {
          call.loss[row] = static_cast<float>(sum);
        } else {
          sums[i] = sum;
        }
      }
    });
  });
  if (call.loss != nullptr && tiles > 1) AddTiles(call, sums, tiles);
  return 0;
}

}  // namespace fuseboard::row_loss::FB_CPU_ISA

#endif  // KERNELS_COMMON_ROW_LOSS_CPU_H_
