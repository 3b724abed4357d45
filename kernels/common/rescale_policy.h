// How `rescale` is cut for a device. Host-only and constexpr, so it is tested without a GPU; what a
// kernel asks of its cut is for both.

#ifndef KERNELS_COMMON_RESCALE_POLICY_H_
#define KERNELS_COMMON_RESCALE_POLICY_H_

#include <stdint.h>

#if defined(__CUDACC__)
#define FB_HOST_DEVICE __host__ __device__
#else
#define FB_HOST_DEVICE
#endif

namespace fuseboard::rescale {

// What a kernel is compiled for. A tile is what a block multiplies at a time.
template <int kThreads_, int kUnroll_>
struct Cut {
  static constexpr int kThreads = kThreads_;
  static constexpr int kUnroll = kUnroll_;  // Runs of 16 bytes of one thread, under way at once.
  static constexpr int kTileRuns = kThreads * kUnroll;
};

using DefaultCut = Cut<128, 2>;

// Blocks take tiles in rounds: those of a round share all but a quarter of what the rounds before
// left, each one tile after the other. A block for every tile would take long to find that there is
// nothing to do, and where all of them share all tiles, the slowest multiprocessor ends last.
inline constexpr int kRoundShift = 2;
inline constexpr int kThreadsPerSm = 2048;  // What sm_90 holds; elsewhere rounds overlap.

struct Rounds {
  int64_t tiles;
  uint32_t blocks;  // Of each round.
  uint32_t count;

  // The first tile of a round; `tiles` for what would follow the last.
  FB_HOST_DEVICE constexpr int64_t FirstTileOf(uint32_t round) const {
    return round == count ? tiles : tiles - (tiles >> (kRoundShift * round));
  }
};

// The last round has a tile for each block, or fewer. There is always a block.
constexpr Rounds RoundsOf(int64_t tiles, int64_t resident_blocks) {
  int64_t blocks = tiles < resident_blocks ? tiles : resident_blocks;
  if (blocks == 0) blocks = 1;
  uint32_t count = 1;
  while ((tiles >> (kRoundShift * (count - 1))) > blocks) ++count;
  return {tiles, static_cast<uint32_t>(blocks), count};
}

template <typename C>
constexpr Rounds RoundsOf(int64_t runs, int32_t sm_count, C /*cut*/) {
  return RoundsOf((runs + C::kTileRuns - 1) / C::kTileRuns,
                  int64_t{sm_count} * (kThreadsPerSm / C::kThreads));
}

}  // namespace fuseboard::rescale

#undef FB_HOST_DEVICE

#endif  // KERNELS_COMMON_RESCALE_POLICY_H_
