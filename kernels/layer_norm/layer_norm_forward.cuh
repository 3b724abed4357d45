// LayerNorm forward on the GPU: y = (x - mean) * rsqrt(var + eps) * weight + bias.
//
// Traffic: x read once, y written once; weight and bias from L1 after a block's first row.
// Determinism: the order of each row's sums is fixed by the policy. No atomics.

#ifndef KERNELS_LAYER_NORM_LAYER_NORM_FORWARD_CUH_
#define KERNELS_LAYER_NORM_LAYER_NORM_FORWARD_CUH_

#include "kernels/common/dispatch.h"
#include "kernels/common/vector.cuh"
#include "kernels/layer_norm/row_moments.cuh"
#include "kernels/rms_norm/row_sum.cuh"

namespace fuseboard::layer_norm {

using rms_norm::RowSum;
using rms_norm::RowSumPair;
using rms_norm::RowSumPairStorage;
using rms_norm::RowSumStorage;

__device__ __forceinline__ float RstdOf(float variance, float eps) {
  return rsqrtf(fmaxf(variance, 0.0f) + eps);
}

// What a row's second sum gives: the mean of what is left over the first is its error.
struct RowStatistics {
  float shift;  // To be taken from x - first mean.
  float rstd;
};

// `sums`: of x - mean and of its square over the row.
__device__ __forceinline__ RowStatistics StatisticsOf(float2 sums, float inverse_hidden,
                                                      float eps) {
  const float shift = sums.x * inverse_hidden;
  return {shift, RstdOf(sums.y * inverse_hidden - shift * shift, eps)};
}

struct ForwardArgs {
  const void* x;
  const void* weight;  // Or NULL.
  const void* bias;    // Or NULL.
  void* y;
  float* mean;  // Or NULL.
  float* rstd;  // Or NULL.
  int64_t x_stride;
  int64_t y_stride;
  int64_t rows;
  int64_t hidden;
  int32_t weight_dtype;
  int32_t bias_dtype;
  float inverse_hidden;
  uint32_t zero;  // 0, which the compiler does not know; see Renewed.
  float eps;
};

// v * weight + bias, where there are any. kSame: both have the dtype X.
template <typename X, bool kSame, int kLanes>
__device__ __forceinline__ void ScaleAndShift(const ForwardArgs& args, int64_t column,
                                              const float (&weight)[kLanes], float (&v)[kLanes]) {
  if (args.weight != nullptr) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) v[i] *= weight[i];
  }
  if (args.bias != nullptr) {
    float b[kLanes];
    LoadFloatsOf<kLanes>(kSame ? kDTypeOf<X> : args.bias_dtype, args.bias, column, b);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) v[i] += b[i];
  }
}

template <typename X, bool kSame, int kLanes>
__device__ __forceinline__ void ScaleAndShift(const ForwardArgs& args, int64_t column,
                                              float (&v)[kLanes]) {
  float w[kLanes] = {};
  if (args.weight != nullptr) {
    LoadFloatsOf<kLanes>(kSame ? kDTypeOf<X> : args.weight_dtype, args.weight, column, w);
  }
  ScaleAndShift<X, kSame, kLanes>(args, column, w, v);
}

// Rows held in registers, kPacks packs per thread. blockDim = (threads per row, rows per block).
// kSame: weight and bias have the dtype X. kCluster: several blocks may share a row. REQUIRES: all
// rows, weight and bias in 16-byte runs.
template <typename X, bool kSame, int kPacks, bool kCluster>
__global__ void __launch_bounds__(kPacks == 8 ? 1024 : 512, kPacks == 8 ? 1 : 2)
    LayerNormForwardKernel(const __grid_constant__ ForwardArgs args) {
  using Blocks = RowBlocks<kCluster>;
  constexpr int kLanes = kPackLanes<X>;
  // Asked for before the sums; for the bias as well, 64 registers are not enough.
  constexpr bool kHoldWeight = kSame && kPacks <= 4;
  __shared__ RowSumPairStorage<kCluster> shared;
  if constexpr (kCluster) ArriveForExchange(&shared.exchange);
  const int row_packs = static_cast<int>(args.hidden / kLanes);
  const int first = static_cast<int>(threadIdx.x + Blocks::Rank() * blockDim.x);
  const int step = static_cast<int>(blockDim.x * Blocks::Size());
  const int64_t row = int64_t{Blocks::Index()} * blockDim.y + threadIdx.y;
  const bool active = row < args.rows;
  const int end = active ? row_packs : 0;
  const X* x = static_cast<const X*>(args.x) + (active ? row : 0) * args.x_stride;

  Lanes<X, kLanes> held[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = first + p * step;
    held[p] = {};
    if (pack < end) held[p] = LoadLanes<X, kLanes>(x + pack * kLanes);
  }
  Lanes<X, kLanes> weight[kHoldWeight ? kPacks : 1];
  if constexpr (kHoldWeight) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      weight[p] = {};
      if (args.weight != nullptr && pack < end) {
        weight[p] = LoadLanes<X, kLanes>(static_cast<const X*>(args.weight) + pack * kLanes);
      }
    }
  }
  const float reference = MeanOfRun(x);
  if constexpr (kCluster) {
    if (ClusterSize() > 1) ClusterWait();  // Now all blocks are there to be written to.
  }
  const Moments m = MomentsOf<X, kPacks, kCluster>(held, first, step, end, reference,
                                                   args.inverse_hidden, args.zero, &shared);
  const float rstd = RstdOf(m.variance, args.eps);
  const float offset = -m.shift * rstd;
  if (!active) return;
  if (first == 0) {
    if (args.mean != nullptr) args.mean[row] = m.base + m.shift;
    if (args.rstd != nullptr) args.rstd[row] = rstd;
  }
  X* y = static_cast<X*>(args.y) + row * args.y_stride;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = first + p * step;
    if (pack >= row_packs) break;
    float v[kLanes];
    Unpack<X, kLanes>(Renewed(held[p], args.zero), v);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) v[i] = fmaf(v[i] - m.base, rstd, offset);
    if constexpr (kHoldWeight) {
      float w[kLanes];
      Unpack<X, kLanes>(weight[p], w);
      ScaleAndShift<X, kSame, kLanes>(args, int64_t{pack} * kLanes, w, v);
    } else {
      ScaleAndShift<X, kSame, kLanes>(args, int64_t{pack} * kLanes, v);
    }
    StoreFloats<X, kLanes>(y + pack * kLanes, v);
  }
}

// Any alignment and width, element by element; reads each row three times, after the first from L1
// or L2.
template <typename X>
__global__ void __launch_bounds__(512) LayerNormForwardLoopingKernel(const ForwardArgs args) {
  __shared__ RowSumStorage<false> sums;
  __shared__ RowSumPairStorage<false> pairs;
  uint32_t turn = 0;
  const int64_t row_step = int64_t{gridDim.x} * blockDim.y;
  const float inverse_hidden = 1.0f / static_cast<float>(args.hidden);
  for (int64_t base = int64_t{blockIdx.x} * blockDim.y; base < args.rows; base += row_step) {
    const int64_t row = base + threadIdx.y;
    const bool active = row < args.rows;
    const int64_t hidden = active ? args.hidden : 0;
    const X* x = static_cast<const X*>(args.x) + (active ? row : 0) * args.x_stride;
    X* y = static_cast<X*>(args.y) + (active ? row : 0) * args.y_stride;

    float sum = 0.0f;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
      float v[1];
      LoadFloats<X, 1>(x + i, v);
      sum += v[0];
    }
    const float mean = RowSum<false>(sum, &sums, turn) * inverse_hidden;
    float2 left = {0.0f, 0.0f};
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
      float v[1];
      LoadFloats<X, 1>(x + i, v);
      left.x += v[0] - mean;
      left.y += (v[0] - mean) * (v[0] - mean);
    }
    left = RowSumPair<false>(left, &pairs, turn);
    ++turn;
    const auto [shift, rstd] = StatisticsOf(left, inverse_hidden, args.eps);
    if (active && threadIdx.x == 0) {
      if (args.mean != nullptr) args.mean[row] = mean + shift;
      if (args.rstd != nullptr) args.rstd[row] = rstd;
    }
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
      float v[1];
      LoadFloats<X, 1>(x + i, v);
      v[0] = (v[0] - mean - shift) * rstd;
      ScaleAndShift<X, false, 1>(args, i, v);
      StoreFloats<X, 1>(y + i, v);
    }
  }
}

}  // namespace fuseboard::layer_norm

#endif  // KERNELS_LAYER_NORM_LAYER_NORM_FORWARD_CUH_
