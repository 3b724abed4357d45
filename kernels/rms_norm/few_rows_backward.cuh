// The backward of the norms for few rows, in one kernel: of rms_norm, with kAdd of
// fused_add_rms_norm, with kCenter of layer_norm. The formulas are those of rms_norm_backward.cuh
// and layer_norm_backward.cuh. modulated_rms_norm has its rows from here too.
//
// With few rows a launch is longer than the work. So some blocks make dx, a row each, while others
// make dweight and dbias, some columns of all rows each: what the forward keeps of a row is all
// they need. No sums are left for a second kernel.
//
// Traffic: x and dy read twice, once from L2; dx written once. Determinism: a column's rows are
// added up in an order that depends on the number of threads only. REQUIRES: dx lies apart from x
// and dy.

#ifndef KERNELS_RMS_NORM_FEW_ROWS_BACKWARD_CUH_
#define KERNELS_RMS_NORM_FEW_ROWS_BACKWARD_CUH_

#include <type_traits>

#include "kernels/common/dispatch.h"
#include "kernels/common/vector.cuh"
#include "kernels/rms_norm/few_rows_policy.h"
#include "kernels/rms_norm/gradient_args.h"
#include "kernels/rms_norm/row_sum.cuh"

namespace fuseboard::rms_norm {

struct FewRowsArgs : GradientArgs {
  void* dweight;  // Or NULL.
  void* dbias;    // kCenter, or NULL.
  int32_t rows;
  int32_t row_packs;
  int32_t column_blocks;  // Those of dweight and dbias, the first of the grid.
  int32_t dweight_dtype;
  int32_t dbias_dtype;
};

// (x - mean) * rstd and its like: what a row's values are multiplied by.
template <bool kCenter>
struct RowStatistics {
  float mean;
  float rstd;

  __device__ __forceinline__ RowStatistics(const FewRowsArgs& args, int row)
      : mean(kCenter ? args.mean[row] : 0.0f), rstd(args.rstd[row]) {}
  __device__ __forceinline__ float Distance(float x) const { return kCenter ? x - mean : x; }
};

// dx of one row. blockDim.x * kPacks packs cover it. kModulate: y was modulated by `scale`, a row
// of it.
template <typename X, bool kCenter, bool kAdd, bool kModulate, int kPacks>
__device__ __forceinline__ void FewRowsGradient(const FewRowsArgs& args, int row,
                                                [[maybe_unused]] const X* scale) {
  constexpr int kLanes = kPackLanes<X>;
  __shared__ RowSumPairStorage<false> sums;
  const X* const x_row = static_cast<const X*>(args.x) + row * args.x_stride;
  const X* const dy_row = static_cast<const X*>(args.dy) + row * args.dy_stride;
  const X* const dsum_row = static_cast<const X*>(args.dsum) + row * args.dsum_stride;
  const bool has_weight = args.weight != nullptr;
  const bool has_dsum = kAdd && args.dsum != nullptr;
  const RowStatistics<kCenter> of(args, row);

  Lanes<X, kLanes> xs[kPacks], dys[kPacks], ws[kPacks];
  Lanes<X, kLanes> dsums[kAdd ? kPacks : 1], scales[kModulate ? kPacks : 1];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const auto pack = static_cast<int>(threadIdx.x + p * blockDim.x);
    xs[p] = dys[p] = ws[p] = {};
    if constexpr (kModulate) scales[p] = {};
    if (pack >= args.row_packs) continue;
    xs[p] = LoadLanes<X, kLanes>(x_row + pack * kLanes);
    dys[p] = LoadLanes<X, kLanes>(dy_row + pack * kLanes);
    if (has_weight) {
      ws[p] = LoadLanes<X, kLanes>(static_cast<const X*>(args.weight) + pack * kLanes);
    }
    if constexpr (kAdd) {
      dsums[p] = {};
      if (has_dsum) dsums[p] = LoadLanes<X, kLanes>(dsum_row + pack * kLanes);
    }
    if constexpr (kModulate) scales[p] = LoadLanes<X, kLanes>(scale + pack * kLanes);
  }
  // g = dy * (offset + weight), kModulate: * (1 + scale).
  const auto gradients = [&](int p, float(&g)[kLanes]) {
    Unpack<X, kLanes>(dys[p], g);
    float factor[kLanes];
    if constexpr (kModulate) {
      Unpack<X, kLanes>(scales[p], factor);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) g[i] *= 1.0f + factor[i];
    }
    if (!has_weight) return;
    Unpack<X, kLanes>(ws[p], factor);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) g[i] *= args.offset + factor[i];
  };

  float2 dots = {0.0f, 0.0f};  // Sums of g, if kCenter, and of g * (x - mean).
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    // Lanes beyond the row have g = 0.
    float x[kLanes], g[kLanes];
    Unpack<X, kLanes>(xs[p], x);
    gradients(p, g);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      if constexpr (kCenter) dots.x += g[i];
      dots.y += g[i] * of.Distance(x[i]);
    }
  }
  dots.y *= of.rstd;
  if constexpr (kCenter) {
    dots = RowSumPair<false>(dots, &sums, 0);
  } else {
    dots.y = GroupReduce(dots.y, Sum(), 0.0f, reinterpret_cast<float*>(sums.block[0]),
                         static_cast<int>(blockDim.x) / kWarpThreads);
  }
  const float slope = -of.rstd * (dots.y * args.inverse_hidden);
  const float mean_g = dots.x * args.inverse_hidden;

  X* const dx_row = static_cast<X*>(args.dx) + row * args.dx_stride;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const auto pack = static_cast<int>(threadIdx.x + p * blockDim.x);
    if (pack >= args.row_packs) continue;
    float x[kLanes], g[kLanes], dx[kLanes];
    Unpack<X, kLanes>(xs[p], x);
    gradients(p, g);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      dx[i] = of.rstd * fmaf(of.Distance(x[i]), slope, kCenter ? g[i] - mean_g : g[i]);
    }
    if constexpr (kAdd) {
      float dsum[kLanes];
      Unpack<X, kLanes>(dsums[p], dsum);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) dx[i] += dsum[i];
    }
    StoreFloats<X, kLanes>(dx_row + pack * kLanes, dx);
  }
}

// Goes through rows `row`, `row` + `step` and so on of the pack at `column`: add(x * rstd, dy),
// both in f32. kBatch rows are asked for at a time, since the first use of one waits for it.
template <typename X, bool kCenter, int kBatch, typename Add>
__device__ __forceinline__ void ForEachRow(const FewRowsArgs& args, int column, int row, int end,
                                           int step, const Add& add) {
  constexpr int kLanes = kPackLanes<X>;
  const X* const x_column = static_cast<const X*>(args.x) + column;
  const X* const dy_column = static_cast<const X*>(args.dy) + column;
  for (; row < end; row += kBatch * step) {
    Lanes<X, kLanes> xs[kBatch], dys[kBatch];
    float means[kBatch], rstds[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int at = row + b * step;
      xs[b] = dys[b] = {};
      means[b] = rstds[b] = 0.0f;
      if (at >= end) continue;
      xs[b] = LoadLanes<X, kLanes>(x_column + at * args.x_stride);
      dys[b] = LoadLanes<X, kLanes>(dy_column + at * args.dy_stride);
      const RowStatistics<kCenter> of(args, at);
      means[b] = of.mean;
      rstds[b] = of.rstd;
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (b > 0 && row + b * step >= end) break;
      float x[kLanes], dy[kLanes];
      Unpack<X, kLanes>(xs[b], x);
      Unpack<X, kLanes>(dys[b], dy);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) x[i] = (kCenter ? x[i] - means[b] : x[i]) * rstds[b];
      if (!kCenter && args.round_normed) RoundFloats<X>(x);
      add(x, dy);
    }
  }
}

// The sums of a thread's columns over its rows: `lane`, `lane` + `lanes` and so on.
template <typename X, bool kCenter, int kBatch>
struct ColumnSums {
  static constexpr int kLanes = kPackLanes<X>;
  float dweight[kLanes] = {};
  float dbias[kCenter ? kLanes : 1] = {};

  __device__ __forceinline__ void AddRows(const FewRowsArgs& args, int pack, int lane, int lanes) {
    const auto add = [&](const float(&normed)[kLanes], const float(&dy)[kLanes]) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) dweight[i] += dy[i] * normed[i];
      if constexpr (kCenter) {
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dbias[i] += dy[i];
      }
    };
    ForEachRow<X, kCenter, kBatch>(args, pack * kLanes, lane, args.rows, lanes, add);
  }
};

// Adds up `sums` of the threads of a block that have the same columns, kFewRowsTile packs side by
// side, and stores them as columns from `column` on.
template <int kLanes>
__device__ __forceinline__ void StoreColumns(float (&sums)[kLanes], float* shared, int column,
                                             int columns, int32_t dtype, void* out) {
  constexpr int kTileColumns = kFewRowsTile * kLanes;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
#pragma unroll
    for (int offset = kFewRowsTile; offset < kWarpThreads; offset *= 2) {
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], offset);
    }
  }
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpThreads;
  float* const of_warp = shared + thread / kWarpThreads * kTileColumns;
  if (lane < kFewRowsTile) {
#pragma unroll
    for (int i = 0; i < kLanes; i += 4) {
      *reinterpret_cast<float4*>(of_warp + lane * kLanes + i) =
          make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    }
  }
  __syncthreads();
  if (thread >= kTileColumns || column + thread >= columns) return;
  const auto warps = static_cast<int>(blockDim.x) / kWarpThreads;
  float sum = 0.0f;
#pragma unroll 8
  for (int warp = 0; warp < warps; ++warp) sum += shared[warp * kTileColumns + thread];
  StoreFloatOf(dtype, out, column + thread, sum);
}

// dweight and dbias of one tile of columns.
template <typename X, bool kCenter, int kBatch>
__device__ __forceinline__ void FewRowsColumns(const FewRowsArgs& args, int tile) {
  constexpr int kLanes = kPackLanes<X>;
  constexpr int kWarps = kFewRowsMaxThreads / kWarpThreads;
  __shared__ alignas(16) float shared[kCenter ? 2 : 1][kWarps * kFewRowsTile * kLanes];
  const auto thread = static_cast<int>(threadIdx.x);
  const int first = tile * kFewRowsTile;
  const int pack = first + thread % kFewRowsTile;
  ColumnSums<X, kCenter, kBatch> sums;
  if (pack < args.row_packs) {
    sums.AddRows(args, pack, thread / kFewRowsTile, static_cast<int>(blockDim.x) / kFewRowsTile);
  }
  const int columns = args.row_packs * kLanes;
  if constexpr (kCenter) {
    if (args.dbias != nullptr) {
      StoreColumns(sums.dbias, shared[1], first * kLanes, columns, args.dbias_dtype, args.dbias);
    }
  }
  if (args.dweight != nullptr) {
    StoreColumns(sums.dweight, shared[0], first * kLanes, columns, args.dweight_dtype,
                 args.dweight);
  }
}

// A block for each tile of columns, then one for each row. May be launched dependent. REQUIRES:
// whole warps, at most kFewRowsMaxThreads threads; all rows in 16-byte runs; dy and the weight of
// the dtype of x.
template <typename X, bool kCenter, bool kAdd, int kPacks, int kBatch = kFewRowsBatch>
__global__ void __launch_bounds__(kFewRowsMaxThreads)
    FewRowsBackwardKernel(const __grid_constant__ FewRowsArgs args) {
  WaitForPredecessor();
  const auto block = static_cast<int>(blockIdx.x);
  if (block < args.column_blocks) {
    FewRowsColumns<X, kCenter, kBatch>(args, block);
  } else {
    FewRowsGradient<X, kCenter, kAdd, /*kModulate=*/false, kPacks>(args, block - args.column_blocks,
                                                                   nullptr);
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_FEW_ROWS_BACKWARD_CUH_
