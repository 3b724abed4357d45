// How rms_norm is cut for a device. Host-only and constexpr, so it is tested without a GPU.
//
// A row belongs to `threads_per_row` threads in each of `cluster` blocks, and each of these threads
// holds `packs` packs of 16 bytes of it. What does not fit that way takes the looping kernels
// (packs == 0), which read each row twice.

#ifndef KERNELS_RMS_NORM_RMS_NORM_POLICY_H_
#define KERNELS_RMS_NORM_RMS_NORM_POLICY_H_

#include <stdint.h>

#include <initializer_list>

namespace fuseboard::rms_norm {

struct Policy {
  int packs;            // Per thread: 1, 2, 4 or 8; 0: looping kernel.
  int threads_per_row;  // In one block. Up to 32 a power of two, beyond a multiple of 32.
  int rows_per_block;
  int cluster;            // Blocks that share a row; a power of two up to 8.
  int blocks_per_sm;      // Of a persistent grid; 0: one block per rows_per_block rows.
  int stages;             // Backward: rows in flight in shared memory per row of a block.
  bool shared_weight;     // Backward: the weight stays in shared memory; else it is read per row.
  bool wide = false;      // The kernels of wide_*.cuh, cut as wide_policy.h says.
  bool few_rows = false;  // The kernels of few_rows_*.cuh.

  friend constexpr bool operator==(const Policy&, const Policy&) = default;
};

// What kernels there are: packs, and whether for clusters. One with 4 packs has a form without, for
// rows of one block; fewer packs go to no cluster.
struct Form {
  int packs;
  bool cluster;
};
inline constexpr Form kForms[] = {{0, false}, {1, false}, {2, false},
                                  {4, false}, {4, true},  {8, true}};

inline constexpr int kWarp = 32;
inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxCluster = 8;
// Shared memory of a block that every device from sm_80 on has: 99 KiB on sm_86, 89 and 120, less
// 1 KiB for the system; 227 KiB on sm_90 and 100.
constexpr int64_t SharedBytesPerBlock(int sm) {
  return (sm >= 90 && sm < 120) ? 227 * 1024 : 98 * 1024;
}

// Blocks are counted in 31 bits. More groups of rows than this are for the looping kernels.
inline constexpr int64_t kMaxGroups = (int64_t{1} << 28) - 1;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int NextPowerOfTwo(int64_t value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

// Cuts a row of `row_packs` packs over the fewest blocks of at most `max_threads` threads with
// `packs` packs each, and fills blocks up to `block_threads` threads with rows; {} (packs == 0) if
// `max_cluster` blocks are not enough.
constexpr Policy CutRow(int64_t row_packs, int packs, int max_threads, int max_cluster,
                        int block_threads) {
  int cluster = 1;
  while (cluster <= max_cluster && row_packs > int64_t{cluster} * max_threads * packs) cluster *= 2;
  if (cluster > max_cluster) return {};
  const int64_t threads = CeilDiv(row_packs, int64_t{cluster} * packs);
  const int per_row = threads <= kWarp ? NextPowerOfTwo(threads)
                                       : static_cast<int>(CeilDiv(threads, kWarp) * kWarp);
  const int rows = block_threads / per_row;
  return {.packs = packs,
          .threads_per_row = per_row,
          .rows_per_block = rows > 1 && cluster == 1 ? rows : 1,
          .cluster = cluster,
          .blocks_per_sm = 0,
          .stages = 0,
          .shared_weight = false};
}

// Forward reads a row once, into registers. `row_packs` is hidden / elements per pack.
constexpr Policy SelectForward(int sm, int64_t row_packs) {
  const int max_cluster = sm >= 90 ? kMaxCluster : 1;
  // Short rows: 4 packs to a thread and blocks of one warp. H200, H 128 in bf16: 92 %; H 1024 92.3,
  // 4 rows to a block 90.9 %.
  if (row_packs <= 128) return CutRow(row_packs, 4, kWarp, 1, kWarp);
  // 4 packs keep the row and the weight within 64 registers. One row per block beyond a warp: rows
  // that share a block would wait for each other. H 2048 92.3 %, H 4096 91.9 % (8 packs 89.4 %), H
  // 8192 91.4 % (87.4 %), H 16384 89.6 % (86.9 %).
  if (row_packs <= 2048) return CutRow(row_packs, 4, 512, 1, kWarp);
  // Wide rows: the fewest blocks to a row, but small ones where there must be many: H 65536 78 %
  // with 2 of 512 threads, H 131072 75 % with 8 of 256 and 72 % with 4 of 512.
  if (row_packs <= 2 * 8 * 512 && row_packs <= 8 * 512 * int64_t{max_cluster}) {
    return CutRow(row_packs, 8, 512, max_cluster, kWarp);
  }
  for (const int threads : {256, 512, kMaxThreads}) {
    const Policy policy = CutRow(row_packs, 8, threads, max_cluster, kWarp);
    if (policy.packs != 0) return policy;
  }
  return {};
}

// With so few rows that each has a multiprocessor, what counts is how long one takes: a pack to a
// thread, as far as threads go.
inline constexpr int64_t kFewForwardRows = 128;

// Forward of at most kFewForwardRows rows. H200, bf16, us between events, 4 packs / 2 / 1: 64 x
// 1024 4.2 / 3.8 / 3.8, 64 x 2048 4.2 / 4.0 / 3.8, 64 x 4096 4.2 / 4.0 / 4.0, with a residual 4.7
// / 4.2 / 4.2; 64 x 8192 4.4 / 4.4.
constexpr Policy SelectForwardOfFewRows(int sm, int64_t row_packs) {
  if (row_packs < kWarp || row_packs > 512) return SelectForward(sm, row_packs);
  return CutRow(row_packs, 1, 512, 1, kWarp);
}

// Shared memory of a backward block: `stages` rows of x and dy, and the weight in f32 or, at the
// end, the sums of a block's rows for dweight. `x_bytes` and `dy_bytes` are element sizes.
constexpr int64_t BackwardSharedBytes(const Policy& policy, int x_bytes, int dy_bytes) {
  const int64_t lanes =
      int64_t{policy.rows_per_block} * policy.threads_per_row * policy.packs * (16 / x_bytes);
  const int weight_bytes = policy.shared_weight ? 4 : 0;
  return lanes * (int64_t{policy.stages} * (x_bytes + dy_bytes) + weight_bytes);
}

constexpr bool FitsShared(const Policy& policy, int sm, int x_bytes, int dy_bytes) {
  // 2 KiB per block for the system and the static part.
  const int64_t block = BackwardSharedBytes(policy, x_bytes, dy_bytes) + 2048;
  return block * policy.blocks_per_sm <= SharedBytesPerBlock(sm);
}

// Backward is a persistent grid: the sums for dweight stay in registers from row to row. The number
// of blocks, and so the order of the sums, depends on sm_count alone.
constexpr Policy SelectBackward(int sm, int64_t row_packs, int x_bytes, int dy_bytes) {
  const int max_cluster = sm >= 90 ? kMaxCluster : 1;
  Policy policy = {};
  // Few packs per thread keep the f32 sums (8 per pack of 16-bit floats) in registers.
  if (row_packs <= 32) {
    policy = CutRow(row_packs, 1, kWarp, 1, 256);
  } else if (row_packs <= 512) {
    policy = CutRow(row_packs, 2, 256, 1, 256);
  } else if (row_packs <= 2048) {
    policy = CutRow(row_packs, 4, 512, 1, 512);
  } else if (row_packs <= 4 * 256 * int64_t{max_cluster}) {
    policy = CutRow(row_packs, 4, 256, max_cluster, 256);
  } else if (row_packs <= 4 * 512 * int64_t{max_cluster}) {
    policy = CutRow(row_packs, 4, 512, max_cluster, 256);
  } else {
    policy = CutRow(row_packs, 8, 512, max_cluster, 256);
  }
  if (policy.packs == 0) return policy;
  const int threads = policy.threads_per_row * policy.rows_per_block;
  // Threads hold the row while they sum, and the next one is on its way. H200, bf16, share of the
  // copy rate with two stages of 2 packs / one of 4: H 1024 91.9 / 90.5 %, H 2048 91.4 / 90.6 %, H
  // 4096 90.1 / 88.9 %; with 4 packs H 5120 88.3 %, H 8192 86.6 %, one row to a block 82 %. H 65536
  // 75 % with two blocks to a multiprocessor, 55 % with three, of which not all are resident.
  policy.blocks_per_sm = threads > 256 ? 1 : policy.packs == 2 || policy.cluster > 1 ? 2 : 3;
  policy.stages = policy.packs == 2 ? 2 : policy.packs == 4 ? 1 : 3;
  policy.shared_weight = true;
  const auto fits = [&] { return FitsShared(policy, sm, x_bytes, dy_bytes); };
  while (policy.stages > 2 && !fits()) --policy.stages;
  while (policy.blocks_per_sm > 1 && !fits()) --policy.blocks_per_sm;
  if (!fits()) policy.stages = 1;
  if (!fits() && policy.rows_per_block == 1) policy.shared_weight = false;
  return fits() ? policy : Policy{};
}

// Groups of rows that a persistent grid works on at once. Clusters are scheduled within a group of
// multiprocessors, and groups are not alike: an H200 of 132 runs 15 clusters of 8, 30 of 4 and 7 of
// 16 with a block to a multiprocessor. One cluster too many would run alone after all the others:
// rms_norm's backward at H 131072 43 % with 16 clusters, 75 % with 15.
constexpr int64_t ResidentGroups(const Policy& policy, int sm_count) {
  const int64_t usable = policy.cluster > 2 && sm_count >= 32 ? sm_count / 16 * 16 - 8 : sm_count;
  const int64_t resident = usable * policy.blocks_per_sm / policy.cluster;
  return resident < 1 ? 1 : resident;
}

// Blocks of a backward grid, all of them resident.
constexpr int64_t BackwardBlocks(const Policy& policy, int64_t rows, int sm_count) {
  const int64_t groups = CeilDiv(rows, policy.rows_per_block);
  const int64_t resident = ResidentGroups(policy, sm_count);
  return (groups < resident ? groups : resident) * policy.cluster;
}

// The looping kernels: a warp or a block of 512 threads per row.
constexpr Policy SelectLooping(int64_t hidden) {
  const bool warp = hidden <= 1024;
  return {.packs = 0,
          .threads_per_row = warp ? kWarp : 512,
          .rows_per_block = warp ? 8 : 1,
          .cluster = 1,
          .blocks_per_sm = warp ? 4 : 2,
          .stages = 0,
          .shared_weight = false};
}

// Blocks of the looping backward. It adds up dweight in memory, a row of f32 per row of the block,
// in 64 MiB at most unless one block needs more.
constexpr int64_t LoopingBackwardBlocks(const Policy& policy, int64_t rows, int64_t hidden,
                                        int sm_count) {
  const int64_t block_bytes = policy.rows_per_block * hidden * int64_t{sizeof(float)};
  const int64_t by_memory = (int64_t{64} << 20) / block_bytes;
  int64_t blocks = int64_t{sm_count} * policy.blocks_per_sm;
  if (blocks > by_memory) blocks = by_memory < 1 ? 1 : by_memory;
  const int64_t groups = CeilDiv(rows, policy.rows_per_block);
  return blocks < groups ? blocks : groups;
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_RMS_NORM_POLICY_H_
