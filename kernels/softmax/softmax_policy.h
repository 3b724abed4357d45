// How softmax is cut for a device. Host-only and constexpr, so it is tested without a GPU.
//
// A row belongs to `threads_per_row` threads in each of `cluster` blocks, and each of these threads
// holds `packs` packs of 16 bytes of it, and one of the fewer than 16 bytes at each end of a row
// that no pack takes. What does not fit that way takes the looping kernels (packs == 0), which read
// each row twice.

#ifndef KERNELS_SOFTMAX_SOFTMAX_POLICY_H_
#define KERNELS_SOFTMAX_SOFTMAX_POLICY_H_

#include <stdint.h>

namespace fuseboard::softmax {

struct Policy {
  int packs;            // Per thread: 1, 2, 4 or 8; 0: looping kernel.
  int threads_per_row;  // In one block. Up to 32 a power of two, beyond a multiple of 32.
  int rows_per_block;
  int cluster;     // Blocks that share a row; a power of two up to 8.
  bool shared_dy;  // Backward: dy waits in shared memory instead of registers.

  friend constexpr bool operator==(const Policy&, const Policy&) = default;
};

inline constexpr int kWarp = 32;
inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxCluster = 8;
// Up to 14 elements of a row are in no pack, each of them with a thread of its own.
inline constexpr int kMinEdgeThreads = 16;
// Blocks are counted in 31 bits. More rows than that are for the looping kernels.
inline constexpr int64_t kMaxBlocks = INT32_MAX;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What a row is to the policies.
struct RowShape {
  int64_t packs;   // 16-byte packs in the row, rounded down.
  bool has_edges;  // Whether elements may be left over.
};

struct RowLimits {
  int packs;  // Per thread.
  int threads;
  int cluster;
  int block_threads;  // Blocks are filled up to this with rows.
};

// The fewest blocks within the limits that hold the row; {} (packs == 0) if there are none.
constexpr Policy FitRow(const RowShape& row, const RowLimits& limits) {
  int cluster = 1;
  while (cluster <= limits.cluster &&
         row.packs > int64_t{cluster} * limits.threads * limits.packs) {
    cluster *= 2;
  }
  if (cluster > limits.cluster) return {};
  const int64_t wanted = CeilDiv(row.packs, int64_t{cluster} * limits.packs);
  int threads = row.has_edges ? kMinEdgeThreads : 1;
  while (threads < kWarp && threads < wanted) threads *= 2;
  if (wanted > kWarp) threads = static_cast<int>(CeilDiv(wanted, kWarp) * kWarp);
  const int rows = limits.block_threads / threads;
  return {.packs = limits.packs,
          .threads_per_row = threads,
          .rows_per_block = rows > 1 && cluster == 1 ? rows : 1,
          .cluster = cluster,
          .shared_dy = false};
}

constexpr int64_t BlocksOf(const Policy& policy, int64_t rows) {
  return CeilDiv(rows, policy.rows_per_block) * policy.cluster;
}

// Few rows: a block has several of them only where each multiprocessor has a block.
constexpr Policy SpreadRows(Policy policy, int64_t rows, int sm_count) {
  while (policy.rows_per_block % 2 == 0 && policy.threads_per_row >= kWarp &&
         BlocksOf(policy, rows) < sm_count) {
    policy.rows_per_block /= 2;
  }
  return policy;
}

constexpr int MaxClusterOf(int sm) { return sm >= 90 ? kMaxCluster : 1; }

// H200, share of the copy rate, bf16 / f32 where both are given; 67 million elements.
constexpr Policy SelectForward(int sm, const RowShape& row) {
  const int cluster = MaxClusterOf(sm);
  // 4 packs, blocks of one warp while a warp has the row.
  if (row.packs <= 64) return FitRow(row, {4, kWarp, 1, kWarp});
  if (row.packs <= 128) return FitRow(row, {4, kWarp, 1, 128});
  // 8 packs, so that fewer warps meet at the barrier. 256 packs: 92.1 / 97.1 % (4 packs 89.5 /
  // 93.8 %); 1,024: 88.2 / 93.6 % (86.5 / 90.3 %); 2,048: 87.5 / 93.2 % (81.3 / 85.8 %).
  if (row.packs <= 256) return FitRow(row, {8, kWarp, 1, kWarp});
  if (row.packs <= 2048) return FitRow(row, {8, 256, 1, 256});
  if (row.packs <= 4096) return FitRow(row, {8, 512, 1, kWarp});
  // Wide rows: small blocks, so that one block's reads overlap another's writes. 16,384 packs in 8
  // blocks of 256 threads 79 / 84 %, in 4 of 512 73 / 77 %.
  if (row.packs <= int64_t{8} * 256 * cluster) return FitRow(row, {8, 256, cluster, kWarp});
  if (row.packs <= int64_t{8} * 512 * cluster) return FitRow(row, {8, 512, cluster, kWarp});
  return FitRow(row, {8, kMaxThreads, cluster, kWarp});
}

// Backward has two tensors to hold: half as many packs of each, until only shared memory (128 KiB
// of a block's 227 on sm_90 and sm_100) has room for one of them.
constexpr Policy SelectBackward(int sm, const RowShape& row) {
  const int cluster = MaxClusterOf(sm);
  if (row.packs <= 64) return FitRow(row, {2, kWarp, 1, kWarp});
  if (row.packs <= 128) return FitRow(row, {4, kWarp, 1, 128});
  if (row.packs <= 2048) return FitRow(row, {4, 512, 1, kWarp});
  if (row.packs <= int64_t{4} * 512 * cluster) return FitRow(row, {4, 512, cluster, kWarp});
  // 32,768 packs: 512 threads with dy in shared memory 88 / 94 %, 1,024 with all in registers 82 /
  // 90 %.
  const bool has_room = sm >= 90 && sm < 120;
  Policy policy = {};
  if (has_room) policy = FitRow(row, {8, 512, cluster, kWarp});
  if (has_room && policy.packs == 0) policy = FitRow(row, {8, kMaxThreads, cluster, kWarp});
  policy.shared_dy = policy.packs != 0;
  return policy.shared_dy ? policy : FitRow(row, {4, kMaxThreads, cluster, kWarp});
}

// Dynamic shared memory of a backward block.
constexpr int SharedBytes(const Policy& policy) {
  return policy.shared_dy ? policy.packs * policy.threads_per_row * 16 : 0;
}

// The looping kernels: a warp or a block of 512 threads per row.
constexpr Policy SelectLooping(int64_t cols) {
  const bool warp = cols <= 1024;
  return {.packs = 0,
          .threads_per_row = warp ? kWarp : 512,
          .rows_per_block = warp ? 8 : 1,
          .cluster = 1,
          .shared_dy = false};
}

}  // namespace fuseboard::softmax

#endif  // KERNELS_SOFTMAX_SOFTMAX_POLICY_H_
