// GroupNorm forward on the GPU of groups that the registers of a block or a cluster hold.
//
// Traffic: x read once, y written once; weight and bias once per group, into shared memory.
// Determinism: the order of each group's sums is fixed by the policy. No atomics.

#ifndef KERNELS_GROUP_NORM_GROUP_NORM_FORWARD_CUH_
#define KERNELS_GROUP_NORM_GROUP_NORM_FORWARD_CUH_

#include "kernels/group_norm/group_frame.cuh"
#include "kernels/group_norm/moments.cuh"

namespace fuseboard::group_norm {

struct ForwardArgs {
  const void* x;
  const void* weight;  // Or NULL.
  const void* bias;    // Or NULL.
  void* y;
  float* mean;  // Or NULL.
  float* rstd;  // Or NULL.
  uint32_t all_groups;
  uint32_t groups;  // Of an example.
  int32_t group_channels;
  int32_t group_packs;
  Divisor channel_packs;
  int32_t weight_dtype;
  int32_t bias_dtype;
  float inverse_elements;  // Of a group.
  float eps;
};

template <typename X, int kPacks>
struct HeldGroup {
  static constexpr int kLanes = kPackLanes<X>;
  Lanes<X, kLanes> pack[kPacks];

  // Sums of the distances from `reference` of this thread's elements, and of their squares.
  __device__ __forceinline__ float2 SumsFrom(float reference, int packs_left, int step,
                                             uint32_t zero) const {
    float2 sums = {0.0f, 0.0f};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (p * step >= packs_left) break;
      float v[kLanes];
      Unpack<X, kLanes>(Renewed(pack[p], zero), v);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float distance = v[i] - reference;
        sums.x += distance;
        sums.y = fmaf(distance, distance, sums.y);
      }
    }
    return sums;
  }
};

// blockDim = (threads per group, groups per block); dynamic shared memory for a float2 per channel
// of the block's groups. No loop over groups: its bookkeeping would cost registers.
// REQUIRES: every channel in 16-byte packs.
template <typename X, int kPacks>
__global__ void __launch_bounds__(kPacks == 8 ? 1024 : 512, kPacks == 8 ? 1 : 2)
    GroupNormForwardKernel(const __grid_constant__ ForwardArgs args) {
  constexpr int kLanes = kPackLanes<X>;
  extern __shared__ float2 affine_of_groups[];
  __shared__ PairStorage storage;
  __shared__ float2 block_again[kMaxWarps];
  const bool in_cluster = ClusterSize() > 1;
  ArriveForExchange(&storage.exchange);
  const Place place = Place::Of<kPacks>();
  const bool active = place.group < args.all_groups;
  const uint32_t group = active ? place.group : 0;
  const int left = (active ? args.group_packs : 0) - place.first;
  const int64_t begin = int64_t{group} * args.group_packs * kLanes;
  const X* x = static_cast<const X*>(args.x) + begin;

  HeldGroup<X, kPacks> held;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    held.pack[p] = {};
    if (p * place.width >= left) continue;
    held.pack[p] = LoadLanes<X, kLanes>(x + (place.first + p * place.width) * kLanes);
  }
  // The mean of the group's first pack is the reference: near the mean, and read by all at once.
  float first_pack[kLanes];
  LoadFloats<X, kLanes>(x, first_pack);
  float reference = 0.0f;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) reference += first_pack[i] * (1.0f / kLanes);

  float2* affine = affine_of_groups + threadIdx.y * args.group_channels;
  const int64_t channel = int64_t{group % args.groups} * args.group_channels;
  for (int c = static_cast<int>(threadIdx.x); c < args.group_channels; c += blockDim.x) {
    affine[c] = {LoadOr(1.0f, args.weight_dtype, args.weight, channel + c),
                 LoadOr(0.0f, args.bias_dtype, args.bias, channel + c)};
  }

  const auto zero = static_cast<uint32_t>(args.group_packs) >> 31;
  const auto moments = [&](float from, float2* block, uint32_t turn) {
    float2 sums = held.SumsFrom(from, left, place.width, zero);
    sums = BlockSumPair(sums, block);
    if (in_cluster) sums = ClusterSumPair(sums, &storage.exchange, turn);
    return MomentsOf(sums, args.inverse_elements);
  };
  if (in_cluster) ClusterWait();  // Now all blocks are there to be written to.
  Moments m = moments(reference, storage.block, 0);
  // Alike for all threads of a group, and the groups of a block meet at the sums' barrier.
  const bool far = IsFar(m);
  if (blockDim.y > 1 ? __syncthreads_or(far) != 0 : far) {
    const float nearer = reference + m.shift;
    const Moments again = moments(nearer, block_again, 1);
    if (far) {
      reference = nearer;
      m = again;
    }
  }
  const float rstd = rsqrtf(m.variance + args.eps);
  if (active && place.first == 0) {
    if (args.mean != nullptr) args.mean[group] = reference + m.shift;
    if (args.rstd != nullptr) args.rstd[group] = rstd;
  }

  X* y = static_cast<X*>(args.y) + begin;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (p * place.width >= left) break;
    const int pack = place.first + p * place.width;
    const float2 a = affine[ChannelOfPack(pack, args.channel_packs)];
    const float scale = rstd * a.x;
    const float offset = fmaf(-m.shift, scale, a.y);
    float v[kLanes];
    Unpack<X, kLanes>(Renewed(held.pack[p], zero), v);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) v[i] = fmaf(v[i] - reference, scale, offset);
    StoreFloats<X, kLanes>(y + pack * kLanes, v);
  }
}

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_GROUP_NORM_FORWARD_CUH_
