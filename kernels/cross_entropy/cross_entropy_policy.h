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

// What is asked of it.
enum class Pass : std::uint8_t {
  kLoss,
  kGradient,        // And the loss.
  kCappedGradient,  // The same with a softcap.
  kPlainGradient,   // The same of an IsPlain problem.
};

struct Policy {
  Algorithm algorithm;
  int threads;          // That compute, per block. kRing adds one warp that loads.
  int blocks_per_sm;    // Resident blocks: bounds the grid of the first two, follows from shared
                        // memory for kRing.
  int cluster;          // kRing: blocks that share a row, at most 8 (the portable cluster size).
  int slots;            // kRing: chunks that the shared memory of a block holds.
  int chunk_bytes;      // kRing: what one bulk copy brings, a multiple of 16.
  int sum_threads = 0;  // kRing, kPlainGradient: those of `threads` that sum while the others
                        // store. Adds a warp that merges.

  friend constexpr bool operator==(const Policy&, const Policy&) = default;
};

inline constexpr int kMaxCluster = 8;
inline constexpr int kMaxSlots = 32;
inline constexpr int kMaxRingThreads = 256;
// Which registers are fitted to, for three blocks of 256 threads on a multiprocessor.
inline constexpr int kMaxPipelineThreads = 768;
// Below this a block's reduction costs more than its row's traffic.
inline constexpr std::int64_t kMaxWarpVocab = 1024;
inline constexpr std::int64_t kMinRingRowBytes = 16 << 10;
// Per block: 1 KiB that the system takes and the barriers and partial results of the kernel.
inline constexpr int kRingReservedBytes = 1024 + 3072;

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

// 33 MiB of rows in flight for 128,256 bf16 logits on 132 multiprocessors: the second read is
// meant to hit the L2 cache of 50 MB.
inline constexpr Policy kWideRow{Algorithm::kBlockPerRow, 1024, 1, 1, 0, 0};
inline constexpr int kChunkBytes = 16 << 10;

// H200, in place, milliseconds, as (blocks per multiprocessor; threads that sum, that store):
//   8192 x 128256 bf16   clusters of 2: (1; 128, 128) 1.062, (1; 192, 192) 1.065, (1; 256,
//   256) 1.066;
//                        clusters of 4: (2; 128, 128) 1.086, (3; 64, 128) 1.133
//   8192 x 151936 bf16   clusters of 2: (1; 128, 128) 1.263; of 4: (2; 128, 128) 1.307
//   4096 x 262144 bf16   clusters of 4: (1; 192, 192) 1.096, (1; 128, 128) 1.114, (1; 256,
//   256) 1.117 4096 x 128256 f32    clusters of 4: (1; 192, 192) 1.089, (1; 128, 128) 1.093, (1;
//   128, 384) 1.075 8192 x 50257 bf16    one block: (1; 128, 128) 0.457, (1; 256, 256) 0.465; two
//   (2; 128, 128) 0.459 8192 x 32000 bf16    one block: (2; 128, 128) 0.282, (1; 128, 128) 0.290,
//   (3; 64, 128) 0.290 16384 x 10240 bf16   one block: (3; 64, 128) 0.203, (2; 128, 128) 0.215
constexpr Policy SelectPipeline(int sm, std::int64_t row_bytes) {
  int blocks = row_bytes <= (32 << 10) ? 3 : row_bytes <= (64 << 10) ? 2 : 1;
  while (blocks > 1 && SlotsPerBlock(sm, blocks, kChunkBytes) < 4) --blocks;
  const int slots = SlotsPerBlock(sm, blocks, kChunkBytes);
  for (int cluster = 1; cluster <= kMaxCluster; cluster *= 2) {
    const int sum_threads = blocks == 3 ? 64 : cluster > 2 ? 192 : 128;
    const int store_threads = cluster > 2 ? 192 : 128;
    const Policy policy{
        Algorithm::kRing, sum_threads + store_threads, blocks, cluster, slots, kChunkBytes,
        sum_threads};
    // Room for the next row's logits while this one's gradient is stored.
    const std::int64_t roomy = std::int64_t{slots} * kChunkBytes / 4 * 3;
    if (SliceBytes(row_bytes, cluster) <= roomy) return policy;
    if (cluster == kMaxCluster && RingHoldsSlice(policy, row_bytes)) return policy;
  }
  return kWideRow;
}

// `sm` is 10 * major + minor; `element_bytes` is the size of a logit.
constexpr Policy SelectPolicy(int sm, std::int64_t vocab, int element_bytes, Pass pass) {
  const std::int64_t row_bytes = vocab * element_bytes;
  if (vocab <= kMaxWarpVocab) return {Algorithm::kWarpPerRow, 256, 8, 1, 0, 0};
  if (row_bytes < kMinRingRowBytes) return {Algorithm::kBlockPerRow, 256, 8, 1, 0, 0};
  if (sm < 90) return kWideRow;
  if (pass == Pass::kPlainGradient) return SelectPipeline(sm, row_bytes);
  // Bound by what it computes, which two reads do with more threads. H200, bf16, 8192 x 128256 and
  // 32000: 4.52 and 1.30 ms; with a ring 7.02 and 1.86, and more where half of its threads sum and
  // half store.
  if (pass == Pass::kCappedGradient) return kWideRow;
  // H200, 8192 x 128256 bf16, loss alone, share of the copy rate: 101 % with 4 blocks of 16 KiB
  // chunks; before its waits left the L1 cache alone 100 %, 97 % with 3 blocks, 90 % with 3 of 8
  // KiB. Clusters of 8 are the last resort.
  for (const int max_cluster : {4, kMaxCluster}) {
    const int fewest = max_cluster == kMaxCluster ? 1 : 2;
    for (int blocks = pass == Pass::kLoss ? 4 : 3; blocks >= fewest; --blocks) {
      const int slots = SlotsPerBlock(sm, blocks, kChunkBytes);
      for (int cluster = 1; cluster <= max_cluster; cluster *= 2) {
        const Policy policy{Algorithm::kRing, 256, blocks, cluster, slots, kChunkBytes};
        // Without a gradient a chunk is free once summed, so any row streams through one block.
        if (pass == Pass::kLoss || RingHoldsSlice(policy, row_bytes)) return policy;
      }
    }
  }
  return kWideRow;
}

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_POLICY_H_
