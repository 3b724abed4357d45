// How qk_norm_rope is cut for a device. Host-only and constexpr, so it is tested without a GPU.
//
// A block works for q or for k, so that it holds one weight. It takes `token_lanes` neighbouring
// positions of one batch entry and all their heads: `width` threads, a part of a warp, share a
// head, `head_lanes` groups of them share the heads of a position, and each thread loads its
// factors once and goes through its heads, C::kUnroll at a time.
//
// With all_heads a row is a position, so all its heads must be in registers at once: one turn.
// What does not fit takes the looping kernels. Where two floats are worked on at a time a tile is
// one turn (rotary_packed.cuh).

#ifndef KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_POLICY_H_
#define KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_POLICY_H_

#include <stdint.h>

#include "kernels/common/rotary_cut.h"

namespace fuseboard::qk_norm_rope {

// What a kernel is compiled for. A type, as nvcc 13.0 cannot name a kernel with a class as
// argument.
template <int kThreads_, int kUnroll_, int kBlocksPerSm_>
struct Cut {
  static constexpr int kThreads = kThreads_;          // Of a block.
  static constexpr int kUnroll = kUnroll_;            // Heads of a thread that are under way.
  static constexpr int kBlocksPerSm = kBlocksPerSm_;  // Resident, that registers are fitted to.
};

// And of a kernel with a ring of tiles.
template <int kThreads_, int kUnroll_, int kBlocksPerSm_, int kStages_>
struct RingCut : Cut<kThreads_, kUnroll_, kBlocksPerSm_> {
  static constexpr int kStages = kStages_;
};

// Two floats at a time. H200, bf16, share of the copy rate of Qwen3's and Gemma 3's heads. Forward:
// 97 and 88 %, with two heads at a time 94 and 88 %, 8 heads 97 and 88 %, 256 threads 97 and 88 %.
using PackedForwardCut = Cut<128, 4, 4>;
// Backward: 97 and 90 %, with six blocks 90 and 87 %, three 83 and 80 %; with two of 128 threads 95
// and 89 %, one of 256 93 and 88 %; without a tile ahead and four of 128 threads 96 and 88 %; one
// head at a time 80 and 77 %, four 85 and 83 %.
using PackedBackwardCut = RingCut<64, 2, 5, 2>;
// Rows of all heads with tables of f32: OLMo2. Forward: 99 %, three blocks 94 %, five 78 %, two of
// 256 threads 74 %, three 93 %.
using RowForwardCut = Cut<128, 4, 4>;
// Backward: 84 %, two blocks 76 %, without a tile ahead 82 %, one of 256 threads 78 %.
using RowBackwardCut = RingCut<128, 2, 3, 2>;

// Floats, likewise. Forward: 76 and 70 %, with
// three blocks 67 and 62 %, of two heads at a time 62 and 59 %.
using ForwardCut = Cut<128, 4, 4>;
using ForwardAllHeadsCut = Cut<128, 4, 3>;  // OLMo2: 58 %, 256 threads 52 %.
// Backward: factors (32 registers), weight (16), its sums (16), and two heads of x and of the
// gradient as loaded (32). 69 and 65 %, of one head at a time 57 and 49 %.
using BackwardCut = Cut<128, 2, 3>;
using BackwardInterleavedCut = Cut<128, 2, 2>;
// All heads: the sums are of two heads. 128 threads take 32 heads of 128 elements of 16 bits, 256
// threads twice as many.
using BackwardAllHeadsCut = Cut<128, 2, 3>;  // OLMo2: 48 %, 2 blocks 45 %.
using BackwardManyHeadsCut = Cut<256, 2, 1>;

struct Policy {
  int width;       // A power of two up to 32. 0: looping kernel.
  int head_lanes;  // All heads: width * head_lanes is a power of two up to 32, or whole warps.
  int token_lanes;

  friend constexpr bool operator==(const Policy&, const Policy&) = default;
};

// `slots`: pairs of runs of a head. `heads`: at least 1.
template <typename C>
constexpr Policy SelectPolicy(int64_t slots, int64_t heads, int64_t positions, bool all_heads) {
  if (!all_heads) {
    const HeadCut cut = CutHeads<C>(slots, heads, positions);
    return {cut.width, cut.head_lanes, cut.token_lanes};
  }
  if (slots > kWarp) return {};
  const int width = NextPowerOfTwo(slots);
  const int64_t threads = CeilDiv(heads, C::kUnroll) * width;
  const int64_t whole =
      threads <= kWarp ? NextPowerOfTwo(threads) : CeilDiv(threads, kWarp) * kWarp;
  if (whole > C::kThreads) return {};
  return {width, static_cast<int>(whole / width), Tokens(C::kThreads / whole, positions)};
}

// A tile is what a block does at a time: token_lanes positions of one batch entry.
struct Tiles {
  int64_t per_batch;
  int64_t count;
};

constexpr Tiles TilesOf(int64_t token_lanes, int64_t batch, int64_t positions) {
  const int64_t per_batch = CeilDiv(positions, token_lanes);
  return {per_batch, per_batch * batch};
}

// Looping kernels: threads of a row, and rows of a block.
struct LoopingPolicy {
  int threads_per_row;
  int rows_per_block;
};

constexpr LoopingPolicy SelectLooping(int64_t features) {
  return features <= 1024 ? LoopingPolicy{kWarp, 8} : LoopingPolicy{256, 1};
}

inline constexpr int kLoopingBlocksPerSm = 4;

// Blocks of a looping backward, which adds up a weight's gradient in memory, a row of f32 per row
// of the block: in 64 MiB at most unless one block needs more.
constexpr int64_t LoopingBlocks(const LoopingPolicy& policy, int64_t features, int64_t resident) {
  const int64_t block_bytes = policy.rows_per_block * features * int64_t{sizeof(float)};
  const int64_t by_memory = block_bytes == 0 ? resident : (int64_t{64} << 20) / block_bytes;
  const int64_t blocks = by_memory < resident ? by_memory : resident;
  return blocks < 1 ? 1 : blocks;
}

// The blocks of q and of k out of `resident`, in proportion to their work; each side that has tiles
// has a block, and no side more blocks than tiles.
struct Blocks {
  int64_t side[2];
};

constexpr Blocks SplitBlocks(int64_t resident, const int64_t (&tiles)[2],
                             const int64_t (&work)[2]) {
  const int64_t total = work[0] + work[1];
  Blocks blocks = {};
  for (int i = 0; i < 2; ++i) {
    if (tiles[i] == 0) continue;
    int64_t share = total == 0 ? resident : (resident * work[i] + total / 2) / total;
    if (share >= resident && tiles[1 - i] > 0) share = resident - 1;
    if (share < 1) share = 1;
    blocks.side[i] = share < tiles[i] ? share : tiles[i];
  }
  return blocks;
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_POLICY_H_
