// GroupNorm backward on the GPU of groups that the registers of a block or a cluster hold. With
// n = (x - mean) * rstd and g = dy * weight:
//   dx = rstd * (g - mean(g) - n * mean(g * n)),  dweight = sum over examples and elements of
//   dy * n,  dbias = sum over examples and elements of dy
//
// A channel has one weight, so all sums follow from two per channel, of dy and of dy * n.
//
// Traffic: dy and x read once, dx written once; two floats per channel and block for the
// parameters, which stay in L2. Determinism: a channel's sums are added in the order of its packs,
// then SumPartialsKernel adds those of the examples in order. No atomics.

#ifndef KERNELS_GROUP_NORM_GROUP_NORM_BACKWARD_CUH_
#define KERNELS_GROUP_NORM_GROUP_NORM_BACKWARD_CUH_

#include "kernels/group_norm/group_frame.cuh"

namespace fuseboard::group_norm {

struct BackwardArgs {
  const void* dy;
  const void* x;
  const void* weight;  // Or NULL.
  const float* mean;
  const float* rstd;
  void* dx;                // Or NULL.
  float* weight_partials;  // [examples * cluster, channels], or NULL.
  float* bias_partials;    // Likewise.
  int64_t channels;
  uint32_t all_groups;
  uint32_t groups;  // Of an example.
  int32_t group_channels;
  int32_t group_packs;
  Divisor channel_packs;
  // Every run of packs lies in one channel: its sums are one unit. Else those of each pack are.
  bool whole_runs;
  int32_t channel_units;
  int32_t block_units;      // Of a group.
  int32_t channel_threads;  // That add up the units of a channel: a power of two up to a warp.
  int32_t weight_dtype;
  float inverse_elements;  // Of a group.
};

// Dynamic shared memory of a block: its units' sums, then the weights of its groups' channels.
struct BackwardShared {
  float2* units;
  float* weights;

  __device__ __forceinline__ explicit BackwardShared(const BackwardArgs& args) {
    extern __shared__ float2 dynamic_shared[];
    units = dynamic_shared + threadIdx.y * args.block_units;
    weights = reinterpret_cast<float*>(dynamic_shared + blockDim.y * args.block_units) +
              threadIdx.y * args.group_channels;
  }
};

// Adds up the units of each channel that this block has, hands on the sums, and returns this
// thread's part of sum(g) and sum(g * n).
__device__ __forceinline__ float2 SumChannels(const BackwardArgs& args,
                                              const BackwardShared& shared, const Place& place,
                                              float rstd) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % args.channel_threads;
  const int step = static_cast<int>(blockDim.x) / args.channel_threads;
  const int first_unit = place.rank * args.block_units;
  const bool active = place.group < args.all_groups;
  const uint32_t group = active ? place.group : 0;
  const int64_t channel0 = int64_t{group % args.groups} * args.group_channels;
  const int64_t partial_row =
      int64_t{group / args.groups} * static_cast<int>(ClusterSize()) + place.rank;

  float2 of_group = {0.0f, 0.0f};
  // All threads take the same turns, for WarpSumPair.
  for (int base = 0; base < args.group_channels; base += step) {
    const int c = base + thread / args.channel_threads;
    const int begin = max(c * args.channel_units - first_unit, 0);
    const int end = min((c + 1) * args.channel_units - first_unit, args.block_units);
    float2 sums = {0.0f, 0.0f};
    for (int unit = begin + lane; unit < end && c < args.group_channels;
         unit += args.channel_threads) {
      sums.x += shared.units[unit].x;
      sums.y += shared.units[unit].y;
    }
    sums = WarpSumPair(sums, args.channel_threads);
    if (lane != 0 || c >= args.group_channels) continue;
    sums.y *= rstd;
    const float weight = LoadOr(1.0f, args.weight_dtype, args.weight, channel0 + c);
    shared.weights[c] = weight;
    of_group.x = fmaf(weight, sums.x, of_group.x);
    of_group.y = fmaf(weight, sums.y, of_group.y);
    if (!active) continue;
    const int64_t at = partial_row * args.channels + channel0 + c;
    if (args.weight_partials != nullptr) args.weight_partials[at] = sums.y;
    if (args.bias_partials != nullptr) args.bias_partials[at] = sums.x;
  }
  return of_group;
}

// blockDim = (threads per group, groups per block). No loop over groups.
// REQUIRES: every channel in 16-byte packs.
template <typename X, int kPacks>
__global__ void __launch_bounds__(1024, 1)
    GroupNormBackwardKernel(const __grid_constant__ BackwardArgs args) {
  constexpr int kLanes = kPackLanes<X>;
  __shared__ PairStorage storage;
  const BackwardShared shared(args);
  const bool in_cluster = ClusterSize() > 1;
  ArriveForExchange(&storage.exchange);
  const Place place = Place::Of<kPacks>();
  const bool active = place.group < args.all_groups;
  const uint32_t group = active ? place.group : 0;
  const int left = (active ? args.group_packs : 0) - place.first;
  const int64_t begin = int64_t{group} * args.group_packs * kLanes;
  const X* dy = static_cast<const X*>(args.dy) + begin;
  const X* x = static_cast<const X*>(args.x) + begin;

  Lanes<X, kLanes> held_dy[kPacks];
  Lanes<X, kLanes> held_x[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    held_dy[p] = {};
    held_x[p] = {};
    if (p * place.width >= left) continue;
    const int at = (place.first + p * place.width) * kLanes;
    held_dy[p] = LoadLanes<X, kLanes>(dy + at);
    held_x[p] = LoadLanes<X, kLanes>(x + at);
  }
  const float mean = args.mean[group];
  const float rstd = args.rstd[group];

  // Per pack: the sums of dy, which is 0 beyond the group, and of dy * (x - mean).
  float2 run = {0.0f, 0.0f};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    float a[kLanes];
    float b[kLanes];
    Unpack<X, kLanes>(held_dy[p], a);
    Unpack<X, kLanes>(held_x[p], b);
    float2 sums = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      sums.x += a[i];
      sums.y = fmaf(a[i], b[i] - mean, sums.y);
    }
    if (args.whole_runs) {
      run.x += sums.x;
      run.y += sums.y;
    } else {
      shared.units[place.first - place.block_first + p * place.width] = sums;
    }
  }
  if (args.whole_runs) {
    run = WarpSumPair(run, place.width);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread % place.width == 0) shared.units[thread / place.width] = run;
  }
  __syncthreads();

  float2 means = BlockSumPair(SumChannels(args, shared, place, rstd), storage.block);
  if (in_cluster) {
    ClusterWait();  // Now all blocks are there to be written to.
    means = ClusterSumPair(means, &storage.exchange, 0);
  }
  if (args.dx == nullptr) return;
  // dx = dy * weight * rstd + (x - mean) * slope + offset
  const float offset = -rstd * (means.x * args.inverse_elements);
  const float slope = -rstd * rstd * (means.y * args.inverse_elements);

  const auto zero = static_cast<uint32_t>(args.group_packs) >> 31;
  X* dx = static_cast<X*>(args.dx) + begin;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (p * place.width >= left) break;
    const int pack = place.first + p * place.width;
    const float scale = rstd * shared.weights[ChannelOfPack(pack, args.channel_packs)];
    float a[kLanes];
    float b[kLanes];
    Unpack<X, kLanes>(Renewed(held_dy[p], zero), a);
    Unpack<X, kLanes>(Renewed(held_x[p], zero), b);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) a[i] = fmaf(a[i], scale, fmaf(b[i] - mean, slope, offset));
    StoreFloats<X, kLanes>(dx + pack * kLanes, a);
  }
}

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_GROUP_NORM_BACKWARD_CUH_
