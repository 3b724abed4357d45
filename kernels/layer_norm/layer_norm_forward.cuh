// LayerNorm forward on the GPU: y = (x - mean) * rsqrt(var + eps) * weight + bias.
//
// Traffic: x read once, y written once; weight and bias from L1 after a block's first row.
// Determinism: the order of each row's sums is fixed by the policy. No atomics.

#ifndef KERNELS_LAYER_NORM_LAYER_NORM_FORWARD_CUH_
#define KERNELS_LAYER_NORM_LAYER_NORM_FORWARD_CUH_

#include "kernels/common/dispatch.h"
#include "kernels/common/vector.cuh"
#include "kernels/rms_norm/row_sum.cuh"

namespace fuseboard::layer_norm {

using rms_norm::RowSum;
using rms_norm::RowSumPair;
using rms_norm::RowSumPairStorage;
using rms_norm::RowSumStorage;

// What a row's second sum gives. The first mean, of a sum in f32, is off where values are many and
// large; the mean of what is left over it is its error. H 1024, mean 1000: y off by 1e-4 without.
struct RowStatistics {
  float shift;  // To be taken from x - first mean.
  float rstd;
};

// `sums`: of x - mean and of its square over the row.
__device__ __forceinline__ RowStatistics StatisticsOf(float2 sums, float inverse_hidden,
                                                      float eps) {
  const float shift = sums.x * inverse_hidden;
  return {shift, rsqrtf(fmaxf(sums.y * inverse_hidden - shift * shift, 0.0f) + eps)};
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
  float eps;
};

// v * weight + bias, where there are any. kSame: both have the dtype X.
template <typename X, bool kSame, int kLanes>
__device__ __forceinline__ void ScaleAndShift(const ForwardArgs& args, int64_t column,
                                              float (&v)[kLanes]) {
  if (args.weight != nullptr) {
    float w[kLanes];
    LoadFloatsOf<kLanes>(kSame ? kDTypeOf<X> : args.weight_dtype, args.weight, column, w);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) v[i] *= w[i];
  }
  if (args.bias != nullptr) {
    float b[kLanes];
    LoadFloatsOf<kLanes>(kSame ? kDTypeOf<X> : args.bias_dtype, args.bias, column, b);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) v[i] += b[i];
  }
}

// Rows held in registers, kPacks packs per thread. blockDim = (threads per row, rows per block).
// REQUIRES: all rows, weight and bias in 16-byte runs.
template <typename X, bool kSame, int kPacks>
__global__ void __launch_bounds__(kPacks == 8 ? 1024 : 512, kPacks == 8 ? 1 : 2)
    LayerNormForwardKernel(const ForwardArgs args) {
  constexpr int kLanes = kPackLanes<X>;
  __shared__ RowSumStorage sums;
  __shared__ RowSumPairStorage pairs;
  int turn = 0;
  const int cluster = static_cast<int>(ClusterSize());
  const int row_packs = static_cast<int>(args.hidden / kLanes);
  const int first = static_cast<int>(threadIdx.x + ClusterRank() * blockDim.x);
  const int step = static_cast<int>(blockDim.x) * cluster;
  const int64_t row_step = int64_t{gridDim.x} / cluster * blockDim.y;
  const float inverse_hidden = 1.0f / static_cast<float>(args.hidden);
  bool cluster_started = cluster == 1;
  if (!cluster_started) ClusterArrive();

  for (int64_t base = int64_t{blockIdx.x} / cluster * blockDim.y; base < args.rows;
       base += row_step) {
    const int64_t row = base + threadIdx.y;
    const bool active = row < args.rows;
    const X* x = static_cast<const X*>(args.x) + (active ? row : 0) * args.x_stride;

    Lanes<X, kLanes> held[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      held[p] = {};
      if (active && pack < row_packs) held[p] = LoadLanes<X, kLanes>(x + pack * kLanes);
    }
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float v[kLanes];
      Unpack<X, kLanes>(held[p], v);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) sum[i % 2] += v[i];
    }
    if (!cluster_started) {
      ClusterWait();  // No block may write to another's memory before that one runs.
      cluster_started = true;
    }
    const float mean =
        RowSum(sum[0] + sum[1], sums.block[turn], sums.cluster[turn]) * inverse_hidden;

    float2 left = {0.0f, 0.0f};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (first + p * step >= row_packs) break;  // Lanes beyond the row are no zeros now.
      float v[kLanes];
      Unpack<X, kLanes>(held[p], v);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float distance = v[i] - mean;
        left.x += distance;
        left.y += distance * distance;
      }
    }
    left = RowSumPair(left, pairs.block[turn], pairs.cluster[turn]);
    turn ^= 1;
    const auto [shift, rstd] = StatisticsOf(left, inverse_hidden, args.eps);
    if (!active) continue;
    if (first == 0) {
      if (args.mean != nullptr) args.mean[row] = mean + shift;
      if (args.rstd != nullptr) args.rstd[row] = rstd;
    }
    X* y = static_cast<X*>(args.y) + row * args.y_stride;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      if (pack >= row_packs) break;
      float v[kLanes];
      Unpack<X, kLanes>(held[p], v);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) v[i] = (v[i] - mean - shift) * rstd;
      ScaleAndShift<X, kSame, kLanes>(args, int64_t{pack} * kLanes, v);
      StoreFloats<X, kLanes>(y + pack * kLanes, v);
    }
  }
}

// Any alignment and width, element by element; reads each row three times, after the first from L1
// or L2.
template <typename X>
__global__ void __launch_bounds__(512) LayerNormForwardLoopingKernel(const ForwardArgs args) {
  __shared__ RowSumStorage sums;
  __shared__ RowSumPairStorage pairs;
  int turn = 0;
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
    const float mean = RowSum(sum, sums.block[turn], sums.cluster[turn]) * inverse_hidden;
    float2 left = {0.0f, 0.0f};
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
      float v[1];
      LoadFloats<X, 1>(x + i, v);
      left.x += v[0] - mean;
      left.y += (v[0] - mean) * (v[0] - mean);
    }
    left = RowSumPair(left, pairs.block[turn], pairs.cluster[turn]);
    turn ^= 1;
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
