// GroupNorm forward of groups that are split: moments of each part of a channel; of each group; y.
// x is read twice, the second time from L2 where it fits.

#ifndef KERNELS_GROUP_NORM_GROUP_NORM_SPLIT_FORWARD_CUH_
#define KERNELS_GROUP_NORM_GROUP_NORM_SPLIT_FORWARD_CUH_

#include "kernels/group_norm/group_norm_split.cuh"
#include "kernels/group_norm/moments.cuh"

namespace fuseboard::group_norm {

template <typename T, int kLanes>
__global__ void __launch_bounds__(256) PartMomentsKernel(const __grid_constant__ SplitArgs args) {
  __shared__ float2 shared[2][kMaxWarps];
  const Piece piece(args);
  const T* x = static_cast<const T*>(args.x) + piece.begin;
  const RowLayout<T, kLanes> layout(x, piece.length);
  const float inverse = 1.0f / static_cast<float>(max(piece.length, 1));
  const auto moments = [&](float reference, float2* storage) {
    float2 sums = {0.0f, 0.0f};
    ForEachRun(layout, [&](int column, auto lanes) {
      float v[lanes.value];
      LoadFloats<T, lanes.value>(x + column, v);
#pragma unroll
      for (const float value : v) {
        sums.x += value - reference;
        sums.y = fmaf(value - reference, value - reference, sums.y);
      }
    });
    return MomentsOf(BlockSumPair(sums, storage), inverse);
  };
  float first[1];
  LoadFloats<T, 1>(x, first);
  float reference = first[0];
  Moments m = moments(reference, shared[0]);
  // Alike for all threads of a piece, but a block may have several pieces.
  const bool far = IsFar(m);
  if (__syncthreads_or(far)) {
    const float nearer = reference + m.shift;
    const Moments again = moments(nearer, shared[1]);
    if (far) {
      reference = nearer;
      m = again;
    }
  }
  if (!piece.active || threadIdx.x != 0) return;
  args.part_moments[piece.index] = {reference + m.shift,
                                    m.variance * static_cast<float>(piece.length)};
}

// blockDim = (threads per group, groups per block); over any number of groups.
static __global__ void __launch_bounds__(256)
    GroupMomentsKernel(const __grid_constant__ SplitArgs args) {
  __shared__ float2 shared[2][kMaxWarps];
  const int64_t count = args.group_channels * args.parts;
  const auto elements = static_cast<float>(args.group_channels * args.elements);
  for (int64_t base = int64_t{blockIdx.x} * blockDim.y; base < args.all_groups;
       base += int64_t{gridDim.x} * blockDim.y) {
    const bool active = base + threadIdx.y < args.all_groups;
    const int64_t group = active ? base + threadIdx.y : 0;
    const float2* moments = args.part_moments + group * count;
    const float reference = moments[0].x;
    float2 sums = {0.0f, 0.0f};
    float left = 0.0f;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      int64_t part = 0;
      DivideBy(i, args.parts, &part);
      const auto length = static_cast<float>(min(args.part, args.elements - part * args.part));
      const float distance = moments[i].x - reference;
      sums.x = fmaf(length, distance, sums.x);
      left += moments[i].y;
    }
    sums.y = left;
    sums = BlockSumPair(sums, shared[0]);
    const float mean_shift = sums.x / elements;
    // Squares from the mean, which is known only now.
    float2 squares = {0.0f, 0.0f};
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      int64_t part = 0;
      DivideBy(i, args.parts, &part);
      const auto length = static_cast<float>(min(args.part, args.elements - part * args.part));
      const float distance = moments[i].x - reference - mean_shift;
      squares.x = fmaf(length * distance, distance, squares.x);
    }
    squares = BlockSumPair(squares, shared[1]);
    if (!active || threadIdx.x != 0) continue;
    args.mean[group] = reference + mean_shift;
    args.rstd[group] = rsqrtf((sums.y + squares.x) / elements + args.eps);
  }
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(256) ApplyKernel(const __grid_constant__ SplitArgs args) {
  const Piece piece(args);
  if (!piece.active) return;
  const T* x = static_cast<const T*>(args.x) + piece.begin;
  T* y = static_cast<T*>(args.out) + piece.begin;
  const float mean = args.mean[piece.group];
  const float scale =
      args.rstd[piece.group] * LoadOr(1.0f, args.weight_dtype, args.weight, piece.channel);
  const float offset = LoadOr(0.0f, args.bias_dtype, args.bias, piece.channel);
  ForEachRun(RowLayout<T, kLanes>(x, piece.length), [&](int column, auto lanes) {
    float v[lanes.value];
    LoadFloats<T, lanes.value>(x + column, v);
#pragma unroll
    for (float& value : v) value = fmaf(value - mean, scale, offset);
    StoreFloats<T, lanes.value>(y + column, v);
  });
}

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_GROUP_NORM_SPLIT_FORWARD_CUH_
