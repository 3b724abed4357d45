// How group_norm is cut for a device. Host-only and constexpr, so it is tested without a GPU.
//
// A group belongs to `threads` threads in each of `cluster` blocks, and each of these threads holds
// `packs` packs of 16 bytes of it. Groups that do not fit that way (packs == 0) are split over
// blocks that read them more than once: see Split.

#ifndef KERNELS_GROUP_NORM_GROUP_NORM_POLICY_H_
#define KERNELS_GROUP_NORM_GROUP_NORM_POLICY_H_

#include <stdint.h>

namespace fuseboard::group_norm {

struct Policy {
  int packs;    // Per thread: 4 or 8 (forward), 2 or 4 (backward); 0: the group is split.
  int threads;  // Per group in one block. Up to 32 a power of two, beyond a multiple of 32.
  int groups_per_block;
  int cluster;  // Blocks that share a group; a power of two up to 8.

  friend constexpr bool operator==(const Policy&, const Policy&) = default;
};

inline constexpr int kWarp = 32;
inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxCluster = 8;
// Blocks are counted in 31 bits.
inline constexpr int64_t kMaxBlocks = INT32_MAX;
// Channels of a group whose weight and bias have room in a block's shared memory.
inline constexpr int64_t kMaxHeldChannels = 2048;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Up to 32, where a group is part of a warp's, so that warps are full.
constexpr int PowerOfTwoThreads(int64_t wanted) {
  int threads = 1;
  while (threads < kWarp && threads < wanted) threads *= 2;
  return threads;
}

// The fewest blocks of at most `max_threads` threads with `packs` packs each that hold a group of
// `group_packs`; {} (packs == 0) if `max_cluster` are not enough. Groups share a block of one warp.
// REQUIRES: with clusters, at least twice a warp's threads.
constexpr Policy FitGroup(int64_t group_packs, int packs, int max_threads, int max_cluster) {
  int cluster = 1;
  while (cluster <= max_cluster && group_packs > int64_t{cluster} * max_threads * packs) {
    cluster *= 2;
  }
  if (cluster > max_cluster) return {};
  const int64_t wanted = CeilDiv(group_packs, int64_t{cluster} * packs);
  const int threads = wanted <= kWarp ? PowerOfTwoThreads(wanted)
                                      : static_cast<int>(CeilDiv(wanted, kWarp) * kWarp);
  return {.packs = packs,
          .threads = threads,
          .groups_per_block = threads < kWarp ? kWarp / threads : 1,
          .cluster = cluster};
}

constexpr int64_t BlocksOf(const Policy& policy, int64_t groups) {
  return CeilDiv(groups, policy.groups_per_block) * policy.cluster;
}

constexpr int MaxClusterOf(int sm) { return sm >= 90 ? kMaxCluster : 1; }

// H200, share of the copy rate, bf16 unless f32 is said. Few packs per thread for small groups: 8 x
// 8 images of 40 channels (320 packs) 70 %, with 8 packs 66 %; 14 x 14 of 16 in f32 (784) 94 and 93
// %. Then 8: 16 x 16 of 40 (1,280) 72 %, with 4 packs 68 %; 28 x 28 of 16 (1,568) 86 and 74 %. One
// block while it has room: 64 x 64 of 16 (8,192) 85 %, two blocks of 512 threads 80 %, four of 256
// 76
// %; 56 x 56 of 16 (6,272) 79 and 72 %. Beyond that small blocks: 64 x 64 of 16 in f32 88 %, two of
// 1,024 threads 87 %; 256 x 256 of 4 67 %, and 63 % with 1,024 threads.
constexpr Policy SelectForward(int sm, int64_t group_packs) {
  const int cluster = MaxClusterOf(sm);
  if (group_packs <= 1024) return FitGroup(group_packs, 4, 512, 1);
  if (group_packs <= 8192) return FitGroup(group_packs, 8, kMaxThreads, 1);
  if (group_packs <= int64_t{8} * 512 * cluster) return FitGroup(group_packs, 8, 512, cluster);
  return FitGroup(group_packs, 8, kMaxThreads, cluster);
}

// Backward has two tensors to hold: half as many packs of each; with 8 of each (102 registers) it
// is slower by 1 to 15 %, but for 64 x 64 in f32 (84 %, 82 %). 64 x 64 of 16 channels (8,192
// packs): 80 %, two blocks of 1,024 threads 71 %. 28 x 28 in f32 (3,136): one block of 800 threads
// 87 %, two of 416 74
// %; but 32 x 32 of 20 (2,560): two of 320 threads 68 %, one of 640, of which a multiprocessor
// holds one, 61 %.
constexpr Policy SelectBackward(int sm, int64_t group_packs) {
  const int cluster = MaxClusterOf(sm);
  if (group_packs <= 64) return FitGroup(group_packs, 2, kWarp, 1);
  if (group_packs > 3072 && group_packs <= 4096) return FitGroup(group_packs, 4, kMaxThreads, 1);
  if (group_packs <= int64_t{4} * 512 * cluster) return FitGroup(group_packs, 4, 512, cluster);
  return FitGroup(group_packs, 4, kMaxThreads, cluster);
}

// A quotient by a number that is known before the launch, of dividends below 2^16: those of packs
// within a held group. Exact: the error of the reciprocal times the dividend stays below 1.
struct Divisor {
  uint32_t value;
  uint32_t reciprocal;  // Of 2^32, rounded up; 0 for 1, which does not fit.
};

constexpr Divisor DivisorOf(uint32_t value) {
  return {value, static_cast<uint32_t>(((uint64_t{1} << 32) + value - 1) / value)};
}

// The device's quotient (ChannelOfPack), for the test.
constexpr uint32_t Divide(uint32_t dividend, const Divisor& divisor) {
  if (divisor.reciprocal == 0) return dividend;
  return static_cast<uint32_t>((uint64_t{dividend} * divisor.reciprocal) >> 32);
}

// Packs of a group that may be held: its threads count them in 16 bits.
inline constexpr int64_t kMaxHeldPacks = 65536;

// ---- Groups that are split ----

// The work of a split group is cut along its channels, each in `parts` parts of `part` elements.
struct Split {
  int threads;  // Per part. Up to 32 a power of two; or a block's 256.
  int parts_per_block;
  int64_t part;
  int64_t parts;  // Of a channel.

  friend constexpr bool operator==(const Split&, const Split&) = default;
};

constexpr Split SelectSplit(int64_t elements) {
  constexpr int kThreads = 256;
  constexpr int64_t kPart = 16384;  // 8 packs of 16-bit floats to a thread.
  constexpr int64_t kPartUnit = 8;  // Parts begin like their channel within 16 bytes.
  if (elements <= 2048) {
    const int threads = PowerOfTwoThreads(CeilDiv(elements, 4));
    return {threads, kThreads / threads, elements, 1};
  }
  const int64_t even = CeilDiv(elements, CeilDiv(elements, kPart));
  const int64_t part = CeilDiv(even, kPartUnit) * kPartUnit;
  return {kThreads, 1, part, CeilDiv(elements, part)};
}

// Threads that add up the `pieces` of a split group.
constexpr int SumThreads(int64_t pieces) { return pieces <= 64 ? PowerOfTwoThreads(pieces) : 256; }

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_GROUP_NORM_POLICY_H_
