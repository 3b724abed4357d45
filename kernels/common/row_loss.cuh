// Losses that are an elementwise function of two matrices, summed over each row, with the gradient
// in the same pass, on the GPU.
//
// Function is the operation's own:
//   template <typename T> Terms At(float x, float y) const    loss and gradient of an element, of
//                                                             inputs of storage type T, up to
//   template <typename T> float LossFactor() const            factors, which are applied once per
//   template <typename T> float GradientFactor() const        row (losses: per element)
//
// Traffic: each input read once, each output written once; rows of several tiles add 8 bytes per
// tile. Determinism: the order of a row's sum is fixed by its width and the alignment of its
// inputs, with the gradient and without. No atomics. Ignored rows are not read: loss 0 and gradient
// 0, whatever they hold.

#ifndef KERNELS_COMMON_ROW_LOSS_CUH_
#define KERNELS_COMMON_ROW_LOSS_CUH_

#include "kernels/common/reduce.cuh"
#include "kernels/common/row_layout.cuh"
#include "kernels/common/row_loss_call.h"
#include "kernels/common/row_loss_policy.h"
#include "kernels/common/vector.cuh"

namespace fuseboard::row_loss {

// The loss of an element is p * per_p, which is added up in one operation, spelled out: a compiler
// may join a product to the sum that it goes into or not, by what else it is for, and a loss must
// have the same bits with its gradient and without.
struct Terms {
  float p;
  float per_p;
  float gradient;

  __device__ __forceinline__ float AddLossTo(float sum) const { return fmaf(p, per_p, sum); }
};

__device__ __forceinline__ bool IsIgnored(const Call& call, int64_t row) {
  if (call.label == nullptr) return false;
  const int64_t at = row * call.label_stride;
  const int64_t label = call.label_is_i64 ? static_cast<const int64_t*>(call.label)[at]
                                          : static_cast<const int32_t*>(call.label)[at];
  return label == call.ignore_index;
}

// StoreFloats to where a run may be stored whole only if `aligned`.
template <typename T, int kLanes>
__device__ __forceinline__ void StoreFloatsAt(T* address, bool aligned,
                                              const float (&values)[kLanes]) {
  if constexpr (kLanes > 1) {
    if (!aligned) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float one[1] = {values[i]};
        StoreFloats<T, 1>(address + i, one);
      }
      return;
    }
  }
  StoreFloats<T, kLanes>(address, values);
}

// One row's memory.
template <typename T>
struct RowPointers {
  const T* input;
  const T* target;
  const float* dloss;
  float* losses;
  T* dinput;
  bool dinput_is_aligned;  // As input.

  __device__ __forceinline__ RowPointers(const Call& call, int64_t row)
      : input(static_cast<const T*>(call.input) + row * call.input_stride),
        target(static_cast<const T*>(call.target) + row * call.target_stride),
        dloss(call.dloss + row * call.dloss_stride),
        losses(call.losses + row * call.losses_stride),
        dinput(static_cast<T*>(call.dinput) + row * call.dinput_stride),
        dinput_is_aligned(
            (reinterpret_cast<uintptr_t>(dinput) - reinterpret_cast<uintptr_t>(input)) % 16 == 0) {}
};

// Some neighbouring elements of each input, held as loaded.
template <typename T, int kLanes, Mode kMode>
struct Run {
  static constexpr bool kHasDloss = kMode == Mode::kBackward;

  Lanes<T, kLanes> input;
  Lanes<T, kLanes> target;
  Lanes<float, kHasDloss ? kLanes : 1> dloss;

  __device__ __forceinline__ void Load(const RowPointers<T>& row, int column) {
    input = LoadLanes<T, kLanes>(row.input + column);
    target = LoadLanes<T, kLanes>(row.target + column);
    if constexpr (kHasDloss) dloss = LoadLanes<float, kLanes>(row.dloss + column);
  }

  // Stores what the mode writes per element and adds to `sum` what it adds up.
  template <typename Function>
  __device__ __forceinline__ void Apply(const Function& function, const RowPointers<T>& row,
                                        int column, float gradient_factor, float (&sum)[2]) const {
    float x[kLanes];
    float y[kLanes];
    float upstream[kHasDloss ? kLanes : 1];
    float losses[kLanes];
    Unpack<T, kLanes>(input, x);
    Unpack<T, kLanes>(target, y);
    if constexpr (kHasDloss) Unpack<float, kLanes>(dloss, upstream);
    const float loss_factor = function.template LossFactor<T>();
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const Terms terms = function.template At<T>(x[i], y[i]);
      if constexpr (kMode == Mode::kElements) {
        losses[i] = terms.p * terms.per_p * loss_factor;
      }
      if constexpr (kMode == Mode::kLoss || kMode == Mode::kGradient) {
        sum[i % 2] = terms.AddLossTo(sum[i % 2]);
      }
      if constexpr (kHasDloss) {
        x[i] = terms.gradient * (gradient_factor * upstream[i]);
      } else {
        x[i] = terms.gradient * gradient_factor;
      }
    }
    if constexpr (kMode == Mode::kElements) StoreFloats<float, kLanes>(row.losses + column, losses);
    if constexpr (kMode == Mode::kGradient || kMode == Mode::kBackward) {
      StoreFloatsAt<T, kLanes>(row.dinput + column, row.dinput_is_aligned, x);
    }
  }

  __device__ __forceinline__ static void StoreZeros(const RowPointers<T>& row, int column) {
    const float zeros[kLanes] = {};
    if constexpr (kMode == Mode::kElements) StoreFloats<float, kLanes>(row.losses + column, zeros);
    if constexpr (kMode == Mode::kGradient || kMode == Mode::kBackward) {
      StoreFloatsAt<T, kLanes>(row.dinput + column, row.dinput_is_aligned, zeros);
    }
  }
};

// The units of a tile that this thread has, and of the first tile the edges.
template <typename T, int kLanes>
struct ThreadUnits {
  RowLayout<T, kLanes> layout;
  int first;
  int end;
  int step;
  int first_edge;

  __device__ __forceinline__ ThreadUnits(const T* row, int cols, int tile, int tile_units)
      : layout(row, cols),
        first(tile * tile_units + static_cast<int>(threadIdx.x)),
        end(min((tile + 1) * tile_units, layout.units)),
        step(static_cast<int>(blockDim.x)),
        first_edge(tile == 0 ? static_cast<int>(threadIdx.x) : layout.edges) {}
};

template <Mode kMode, typename T, int kLanes>
__device__ __forceinline__ void ClearTile(const ThreadUnits<T, kLanes>& units,
                                          const RowPointers<T>& row) {
  for (int unit = units.first; unit < units.end; unit += units.step) {
    Run<T, kLanes, kMode>::StoreZeros(row, units.layout.ColumnOfUnit(unit));
  }
  for (int edge = units.first_edge; edge < units.layout.edges; edge += units.step) {
    Run<T, 1, kMode>::StoreZeros(row, units.layout.ColumnOfEdge(edge));
  }
}

// This thread's part of the tile's sum.
template <Mode kMode, int kUnroll, typename Function, typename T, int kLanes>
__device__ __forceinline__ float SolveTile(const Function& function,
                                           const ThreadUnits<T, kLanes>& units,
                                           const RowPointers<T>& row, float gradient_factor) {
  float sum[2] = {0.0f, 0.0f};
  for (int unit = units.first; unit < units.end; unit += kUnroll * units.step) {
    Run<T, kLanes, kMode> run[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = unit + u * units.step;
      if (at < units.end) run[u].Load(row, units.layout.ColumnOfUnit(at));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = unit + u * units.step;
      if (at >= units.end) break;
      run[u].Apply(function, row, units.layout.ColumnOfUnit(at), gradient_factor, sum);
    }
  }
  if constexpr (kLanes > 1) {
    for (int edge = units.first_edge; edge < units.layout.edges; edge += units.step) {
      const int column = units.layout.ColumnOfEdge(edge);
      Run<T, 1, kMode> run;
      run.Load(row, column);
      run.Apply(function, row, column, gradient_factor, sum);
    }
  }
  return sum[0] + sum[1];
}

// blockDim = (threads per row, rows per block); see Policy. `tiles` is TilesOf(policy, rows), each
// a block's work. With several tiles per row, `sums` has the sum of each in row-major order; else
// it is the loss. REQUIRES: kLanes == 1, or the rows of all matrices but dinput are aligned alike
// to 16 bytes.
template <typename Function, typename T, int kLanes, Mode kMode, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    RowLossKernel(const __grid_constant__ Call call, const __grid_constant__ Function function,
                  int64_t tiles, int tiles_per_row, int tile_units, float* sums) {
  constexpr bool kSums = kMode == Mode::kLoss || kMode == Mode::kGradient;
  // Single elements are small: more of them on their way.
  constexpr int kUnroll = kLanes == 1 ? 4 * C::kUnroll : C::kUnroll;
  __shared__ float shared[2][kMaxWarps];
  int turn = 0;
  for (int64_t item = blockIdx.x; item < tiles; item += gridDim.x, turn ^= 1) {
    const int64_t group = tiles_per_row == 1 ? item : item / tiles_per_row;
    const auto tile = static_cast<int>(item - group * tiles_per_row);
    const int64_t index = group * blockDim.y + threadIdx.y;
    const bool active = index < call.rows;
    float sum = 0.0f;
    if (active) {
      const RowPointers<T> row(call, index);
      const ThreadUnits<T, kLanes> units(row.input, call.cols, tile, tile_units);
      if (IsIgnored(call, index)) {
        ClearTile<kMode>(units, row);
      } else {
        const float scale = call.scale == nullptr ? 1.0f : call.scale[index * call.scale_stride];
        sum = SolveTile<kMode, kUnroll>(function, units, row,
                                        scale * function.template GradientFactor<T>());
      }
    }
    if constexpr (kSums) {
      const int threads = static_cast<int>(blockDim.x);
      sum = threads <= kWarpThreads
                ? WarpReduce(sum, Sum(), threads)
                : GroupReduce(sum, Sum(), 0.0f, shared[turn], threads / kWarpThreads);
      if (active && threadIdx.x == 0 && sums != nullptr) {
        sums[index * tiles_per_row + tile] = sum * function.template LossFactor<T>();
      }
    }
  }
}

// loss[row] = the sum of the row's tiles. A warp per row. Launched dependent.
static __global__ void __launch_bounds__(256)
    SumTilesKernel(const float* sums, int64_t rows, int tiles_per_row, float* loss) {
  WaitForPredecessor();
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warps = static_cast<int>(blockDim.x) / kWarpThreads;
  const int64_t first = int64_t{blockIdx.x} * warps + static_cast<int>(threadIdx.x) / kWarpThreads;
  for (int64_t row = first; row < rows; row += int64_t{gridDim.x} * warps) {
    float sum = 0.0f;
    for (int tile = lane; tile < tiles_per_row; tile += kWarpThreads) {
      sum += sums[row * tiles_per_row + tile];
    }
    sum = WarpReduce(sum, Sum());
    if (lane == 0) loss[row] = sum;
  }
}

}  // namespace fuseboard::row_loss

#endif  // KERNELS_COMMON_ROW_LOSS_CUH_
