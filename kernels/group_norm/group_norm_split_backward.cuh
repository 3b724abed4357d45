// GroupNorm backward of groups that are split: sums of each part of a channel; means of each group;
// dx. dy and x are read twice, the second time from L2 where they fit.

#ifndef KERNELS_GROUP_NORM_GROUP_NORM_SPLIT_BACKWARD_CUH_
#define KERNELS_GROUP_NORM_GROUP_NORM_SPLIT_BACKWARD_CUH_

#include "kernels/group_norm/group_norm_split.cuh"

namespace fuseboard::group_norm {

template <typename T, int kLanes>
__global__ void __launch_bounds__(256) PartSumsKernel(const __grid_constant__ SplitArgs args) {
  __shared__ float2 shared[kMaxWarps];
  const Piece piece(args);
  const T* x = static_cast<const T*>(args.x) + piece.begin;
  const T* dy = static_cast<const T*>(args.dy) + piece.begin;
  const float mean = args.mean[piece.group];
  float2 sums = {0.0f, 0.0f};
  ForEachRun(RowLayout<T, kLanes>(x, piece.length), [&](int column, auto lanes) {
    float a[lanes.value];
    float b[lanes.value];
    LoadFloats<T, lanes.value>(dy + column, a);
    LoadFloats<T, lanes.value>(x + column, b);
#pragma unroll
    for (int i = 0; i < lanes.value; ++i) {
      sums.x += a[i];
      sums.y = fmaf(a[i], b[i] - mean, sums.y);
    }
  });
  sums = BlockSumPair(sums, shared);
  if (!piece.active || threadIdx.x != 0) return;
  const int64_t at = (piece.example * args.parts + piece.part) * args.channels + piece.channel;
  args.dy_sums[at] = sums.x;
  args.product_sums[at] = sums.y * args.rstd[piece.group];
}

// blockDim = (threads per group, groups per block); over any number of groups.
static __global__ void __launch_bounds__(256)
    GroupMeansKernel(const __grid_constant__ SplitArgs args) {
  __shared__ float2 shared[2][kMaxWarps];
  const int64_t count = args.group_channels * args.parts;
  const auto elements = static_cast<float>(args.group_channels * args.elements);
  int turn = 0;
  for (int64_t base = int64_t{blockIdx.x} * blockDim.y; base < args.all_groups;
       base += int64_t{gridDim.x} * blockDim.y, turn ^= 1) {
    const bool active = base + threadIdx.y < args.all_groups;
    int64_t in_example = 0;
    const int64_t example = DivideBy(active ? base + threadIdx.y : 0, args.groups, &in_example);
    const int64_t channel0 = in_example * args.group_channels;
    float2 sums = {0.0f, 0.0f};
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      int64_t c = 0;
      const int64_t part = DivideBy(i, args.group_channels, &c);
      const int64_t at = (example * args.parts + part) * args.channels + channel0 + c;
      const float weight = LoadOr(1.0f, args.weight_dtype, args.weight, channel0 + c);
      sums.x = fmaf(weight, args.dy_sums[at], sums.x);
      sums.y = fmaf(weight, args.product_sums[at], sums.y);
    }
    sums = BlockSumPair(sums, shared[turn]);
    if (!active || threadIdx.x != 0) continue;
    args.group_means[base + threadIdx.y] = {sums.x / elements, sums.y / elements};
  }
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(256) InputGradientKernel(const __grid_constant__ SplitArgs args) {
  const Piece piece(args);
  if (!piece.active) return;
  const T* x = static_cast<const T*>(args.x) + piece.begin;
  const T* dy = static_cast<const T*>(args.dy) + piece.begin;
  T* dx = static_cast<T*>(args.out) + piece.begin;
  const float mean = args.mean[piece.group];
  const float rstd = args.rstd[piece.group];
  const float2 means = args.group_means[piece.group];
  const float scale = rstd * LoadOr(1.0f, args.weight_dtype, args.weight, piece.channel);
  const float offset = -rstd * means.x;
  const float slope = -rstd * rstd * means.y;
  ForEachRun(RowLayout<T, kLanes>(x, piece.length), [&](int column, auto lanes) {
    float a[lanes.value];
    float b[lanes.value];
    LoadFloats<T, lanes.value>(dy + column, a);
    LoadFloats<T, lanes.value>(x + column, b);
#pragma unroll
    for (int i = 0; i < lanes.value; ++i)
      a[i] = fmaf(a[i], scale, fmaf(b[i] - mean, slope, offset));
    StoreFloats<T, lanes.value>(dx + column, a);
  });
}

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_GROUP_NORM_SPLIT_BACKWARD_CUH_
