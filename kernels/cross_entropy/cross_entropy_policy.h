// How cross entropy is shaped for a device. Host-only and constexpr, so it is tested without a GPU.

#ifndef KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_POLICY_H_
#define KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_POLICY_H_

#include <cstdint>
#include <initializer_list>

namespace fuseboard::cross_entropy {

enum class Algorithm : std::uint8_t {
  kWarpPerRow,   // A warp reads its row twice, the second time from L1. Small vocabularies.
  kBlockPerRow,  // A block reads its row twice, the second time from L2. Any device, any
                 // vocabulary.
  kRing,         // A cluster of blocks streams rows through shared memory: one read, one write.
};

struct Policy {
  Algorithm algorithm;
  int threads;        // That compute, per block. kRing adds one warp that loads.
  int blocks_per_sm;  // Resident blocks: bounds the grid of the first two, follows from shared
                      // memory for kRing.
  int cluster;        // kRing: blocks that share a row, at most 8 (the portable cluster size).
  int slots;          // kRing: chunks that the shared memory of a block holds.
  int chunk_bytes;    // kRing: what one bulk copy brings, a multiple of 16.

  friend constexpr bool operator==(const Policy&, const Policy&) = default;
};

inline constexpr int kMaxCluster = 8;
inline constexpr int kMaxSlots = 32;
inline constexpr int kMaxRingThreads = 256;
// Below this a block's reduction costs more than its row's traffic.
inline constexpr std::int64_t kMaxWarpVocab = 1024;
inline constexpr std::int64_t kMinRingRowBytes = 16 << 10;
// Per block: 1 KiB that the system takes and the barriers and partial results of the kernel.
inline constexpr int kRingReservedBytes = 1024 + 2048;

// Shared memory of one multiprocessor. Consumer Blackwell (sm_120) has 100 KiB, sm_90 to sm_110
// have 228 KiB; an unknown newer device is taken for the smaller kind.
constexpr int SharedBytesPerSm(int sm) { return (sm >= 120 ? 100 : 228) << 10; }

// Bytes of a row that one of `cluster` blocks holds.
constexpr std::int64_t SliceBytes(std::int64_t row_bytes, int cluster) {
  const std::int64_t units = (row_bytes + 15) / 16;
  return (units + cluster - 1) / cluster * 16;
}

// Chunks that fit a block when `blocks_per_sm` of them share a multiprocessor.
constexpr int SlotsPerBlock(int sm, int blocks_per_sm, int chunk_bytes) {
  const int slots = (SharedBytesPerSm(sm) / blocks_per_sm - kRingReservedBytes) / chunk_bytes;
  return slots < kMaxSlots ? slots : kMaxSlots;
}

// Whether a slice is held whole: the gradient is taken from shared memory, so it has to be.
constexpr bool RingHoldsSlice(const Policy& policy, std::int64_t row_bytes) {
  return SliceBytes(row_bytes, policy.cluster) <=
         static_cast<std::int64_t>(policy.slots) * policy.chunk_bytes;
}

// `sm` is 10 * major + minor; `element_bytes` is the size of a logit.
constexpr Policy SelectPolicy(int sm, std::int64_t vocab, int element_bytes, bool wants_gradient) {
  const std::int64_t row_bytes = vocab * element_bytes;
  // 33 MiB of rows in flight for 128,256 bf16 logits on 132 multiprocessors: the second read is
  // meant to hit the L2 cache of 50 MB.
  constexpr Policy kWideRow{Algorithm::kBlockPerRow, 1024, 1, 1, 0, 0};
  if (vocab <= kMaxWarpVocab) return {Algorithm::kWarpPerRow, 256, 8, 1, 0, 0};
  if (row_bytes < kMinRingRowBytes) return {Algorithm::kBlockPerRow, 256, 8, 1, 0, 0};
  if (sm < 90) return kWideRow;
  // Blocks out of phase cover one another's reductions. H200, 8192 x 128256 bf16, share of the copy
  // rate: loss alone 100 % with 4 blocks of 16 KiB chunks, 97 % with 3, 90 % with 3 of 8 KiB; with
  // the gradient in place 81 % with 3 blocks of 16 KiB, 76 % with 3 of 8 KiB. Clusters of 8 are the
  // last resort: 8192 x 151936 80 % with 2 blocks in clusters of 4, 69 % with 3 in clusters of 8.
  constexpr int kChunkBytes = 16 << 10;
  for (const int max_cluster : {4, kMaxCluster}) {
    const int fewest = max_cluster == kMaxCluster ? 1 : 2;
    for (int blocks = wants_gradient ? 3 : 4; blocks >= fewest; --blocks) {
      const int slots = SlotsPerBlock(sm, blocks, kChunkBytes);
      for (int cluster = 1; cluster <= max_cluster; cluster *= 2) {
        const Policy policy{Algorithm::kRing, 256, blocks, cluster, slots, kChunkBytes};
        // Without a gradient a chunk is free once summed, so any row streams through one block.
        if (!wants_gradient || RingHoldsSlice(policy, row_bytes)) return policy;
      }
    }
  }
  return kWideRow;
}

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_POLICY_H_
