// How `rescale` is cut for a device. Host-only and constexpr, so it is tested without a GPU.

#ifndef KERNELS_COMMON_RESCALE_POLICY_H_
#define KERNELS_COMMON_RESCALE_POLICY_H_

#include <stdint.h>

namespace fuseboard::rescale {

// What a kernel is compiled for. A tile is what a block multiplies at a time.
template <int kThreads_, int kUnroll_>
struct Cut {
  static constexpr int kThreads = kThreads_;
  static constexpr int kUnroll = kUnroll_;  // Runs of 16 bytes of one thread, under way at once.
  static constexpr int kTileRuns = kThreads * kUnroll;
};

// H200, 2.1 GB bf16, tiles drawn: 95.8 % of the copy rate; 256 threads 94.5 %, and 128, whose
// half a million draws of one counter take longer than the tiles, 83 %.
using DefaultCut = Cut<1024, 2>;
inline constexpr int kThreadsPerSm = 2048;  // What sm_90 holds.

// A block for every tile would be fastest, but takes long to find that the factor is 1 (2.1 GB in
// tiles of 4 KiB: 99 % of the copy rate, and 312 us). So blocks are few, and they take their tiles
//  - in rounds: a round is of as many blocks as the device holds, each of which takes kRoundTiles;
//  - or, where that would be more than kMaxRounds, from a counter, so that what the device reads
//    and writes at a time lies close together: 2.1 GB 1,025 us, where each block takes the same
//    number of tiles 1,049.
inline constexpr int kRoundTiles = 4;
inline constexpr int kMaxRounds = 8;

struct Plan {
  int64_t tiles;
  uint32_t blocks;  // Of each round, or that draw.
  uint32_t rounds;  // 0: tiles are drawn.

  constexpr int64_t Grid() const { return rounds == 0 ? blocks : int64_t{blocks} * rounds; }
};

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// There is always a block. Tiles may be one more than `bytes` from an unaligned base need.
template <typename C>
constexpr Plan PlanOf(int64_t bytes, int32_t sm_count, C /*cut*/) {
  const int64_t resident = int64_t{sm_count} * (kThreadsPerSm / C::kThreads);
  const int64_t tiles = CeilDiv(bytes, int64_t{C::kTileRuns} * 16);
  const int64_t blocks = tiles == 0 ? 1 : tiles < resident ? tiles : resident;
  const int64_t rounds = CeilDiv(tiles == 0 ? 1 : tiles, blocks * kRoundTiles);
  return {tiles, static_cast<uint32_t>(blocks),
          rounds > kMaxRounds ? 0 : static_cast<uint32_t>(rounds)};
}

}  // namespace fuseboard::rescale

#endif  // KERNELS_COMMON_RESCALE_POLICY_H_
