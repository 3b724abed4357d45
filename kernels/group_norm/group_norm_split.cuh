// GroupNorm on the GPU of groups that no block or cluster holds, or whose channels are not whole
// packs: several blocks per group and several kernels, which hand on what they found in memory.
// Here what the kernels of both phases share.
//
// Determinism: parts follow from the shape and the alignment, and what they found is added up in
// their order. No atomics.

#ifndef KERNELS_GROUP_NORM_GROUP_NORM_SPLIT_CUH_
#define KERNELS_GROUP_NORM_GROUP_NORM_SPLIT_CUH_

#include "kernels/common/row_layout.cuh"
#include "kernels/group_norm/group_frame.cuh"

namespace fuseboard::group_norm {

struct SplitArgs {
  const void* x;
  const void* dy;      // Backward.
  const void* weight;  // Or NULL.
  const void* bias;    // Or NULL.
  void* out;           // y or dx.
  float* mean;         // [all_groups]; written by the forward.
  float* rstd;
  float2* part_moments;  // Forward, [pieces]: mean, and squared distances from it summed up.
  float* dy_sums;        // Backward, [examples * parts, channels].
  float* product_sums;   // Likewise, of dy * n.
  float2* group_means;   // Backward, [all_groups]: of g and g * n.
  int64_t channels;
  int64_t group_channels;
  int64_t groups;  // Of an example.
  int64_t all_groups;
  int64_t elements;  // Of a channel.
  int64_t part;      // Elements of each part of a channel but the last.
  int64_t parts;     // Of a channel.
  int64_t pieces;    // Parts of all channels.
  int32_t weight_dtype;
  int32_t bias_dtype;
  float eps;
};

// Quotient and rest of numbers that are not negative; most fit 32 bits, where a division takes a
// fourth of the time.
__device__ __forceinline__ int64_t DivideBy(int64_t a, int64_t b, int64_t* rest) {
  if (((a | b) >> 32) == 0) {
    const auto quotient = static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
    *rest = static_cast<uint32_t>(a) - quotient * static_cast<uint32_t>(b);
    return quotient;
  }
  const int64_t quotient = a / b;
  *rest = a - quotient * b;
  return quotient;
}

// The part of a channel that a threadIdx.y has.
struct Piece {
  int64_t index;
  bool active;
  int64_t part;
  int64_t example;
  int64_t channel;
  int64_t group;  // Of all.
  int64_t begin;  // Its first element in the tensor.
  int length;     // 0 if not active.

  __device__ __forceinline__ explicit Piece(const SplitArgs& args) {
    index = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    active = index < args.pieces;
    const int64_t row = DivideBy(active ? index : 0, args.parts, &part);
    example = DivideBy(row, args.channels, &channel);
    int64_t unused = 0;
    group = DivideBy(row, args.group_channels, &unused);
    begin = row * args.elements + part * args.part;
    length = active ? static_cast<int>(min(args.part, args.elements - part * args.part)) : 0;
  }
};

template <int kLanes>
struct LaneTag {
  static constexpr int value = kLanes;
};

// Calls fn(column, LaneTag) for the runs of the row that this thread has.
template <typename T, int kLanes, typename Fn>
__device__ __forceinline__ void ForEachRun(const RowLayout<T, kLanes>& layout, const Fn& fn) {
  const auto step = static_cast<int>(blockDim.x);
#pragma unroll 4
  for (int unit = static_cast<int>(threadIdx.x); unit < layout.units; unit += step) {
    fn(layout.ColumnOfUnit(unit), LaneTag<kLanes>());
  }
  if constexpr (kLanes > 1) {
    for (int edge = static_cast<int>(threadIdx.x); edge < layout.edges; edge += step) {
      fn(layout.ColumnOfEdge(edge), LaneTag<1>());
    }
  }
}

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_GROUP_NORM_SPLIT_CUH_
