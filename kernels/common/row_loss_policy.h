// How the row losses are cut for a device. Host-only and constexpr, so it is tested without a GPU.
//
// Loss and gradient of an element need no other element, so a row may be taken in tiles by
// different blocks; the tiles depend on the row's width alone, so that a row's sum has the same
// bits whatever rows lie beside it.

#ifndef KERNELS_COMMON_ROW_LOSS_POLICY_H_
#define KERNELS_COMMON_ROW_LOSS_POLICY_H_

#include <stdint.h>

namespace fuseboard::row_loss {

// What a kernel is compiled for. A type, as nvcc 13.0 cannot name a kernel with a class as
// argument.
template <int kThreads_, int kUnroll_, int kBlocksPerSm_, int kTileUnits_>
struct Cut {
  static constexpr int kThreads = kThreads_;  // Of a block.
  static constexpr int kUnroll = kUnroll_;  // Runs of one thread, loaded before the first is used.
  static constexpr int kBlocksPerSm = kBlocksPerSm_;  // Resident, that registers are fitted to.
  static constexpr int kTileUnits = kTileUnits_;      // Vector accesses of a tile of a row.
};

// 4 blocks of 256 threads with 2 runs of each of two tensors have 64 KiB on their way to each
// multiprocessor, twice what covers the latency of memory at 4.3 TB/s on H200, and 64 registers.
// Tiles are of 64 KiB of each tensor: 8 rounds of a block, so that a row's sum costs little beside
// them, and rows of 128,256 f32 are 8 tiles, so that 1,024 of them fill the device to the end.
using DefaultCut = Cut<256, 2, 4, 4096>;

// Rows shorter than a block share one.
struct Policy {
  int threads_per_row;  // A power of two.
  int rows_per_block;
  int tiles_per_row;
  int tile_units;  // Vector accesses of a tile.

  friend constexpr bool operator==(const Policy&, const Policy&) = default;
};

// Blocks are counted in 31 bits; more tiles than this are looped over.
inline constexpr int64_t kMaxBlocks = INT32_MAX;

// `row_units` is the row's length in vector accesses, rounded down.
template <typename C>
constexpr Policy SelectPolicy(int64_t row_units) {
  int threads = 1;
  while (threads < C::kThreads && int64_t{threads} * C::kUnroll < row_units) threads *= 2;
  const auto tiles = static_cast<int>((row_units + C::kTileUnits - 1) / C::kTileUnits);
  return {.threads_per_row = threads,
          .rows_per_block = C::kThreads / threads,
          .tiles_per_row = tiles < 1 ? 1 : tiles,
          .tile_units = C::kTileUnits};
}

// How many blocks the tiles of `rows` rows are.
constexpr int64_t TilesOf(const Policy& policy, int64_t rows) {
  return (rows + policy.rows_per_block - 1) / policy.rows_per_block * policy.tiles_per_row;
}

// ---- On the CPU ----

inline constexpr int64_t kCpuTile = 16384;  // Columns.

constexpr int64_t CpuTilesPerRow(int64_t cols) {
  return cols <= kCpuTile ? 1 : (cols + kCpuTile - 1) / kCpuTile;
}

}  // namespace fuseboard::row_loss

#endif  // KERNELS_COMMON_ROW_LOSS_POLICY_H_
