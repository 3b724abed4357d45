#include "kernels/rope/rope_policy.h"

#include <gtest/gtest.h>

namespace fuseboard::rope {
namespace {

// Llama 3 8B in bf16: 8 pairs of runs to a head, 32 + 8 heads.
static_assert(SelectPolicy<Cut<256, 4, 2>>(8, 40, 4096) ==
              Policy{.slots = 8, .head_lanes = 10, .token_lanes = 3});
static_assert(TilesOf({.slots = 8, .head_lanes = 10, .token_lanes = 3}, 4, 4096).count ==
              4 * int64_t{1366});
// One token.
static_assert(SelectPolicy<Cut<256, 4, 2>>(8, 40, 1) ==
              Policy{.slots = 8, .head_lanes = 10, .token_lanes = 1});

template <typename C>
void ExpectGoodPolicies() {
  // A multiprocessor of sm_86, 89 and 120 holds 1,536 threads and 16 blocks, of sm_80 2,048 and 32.
  static_assert(C::kThreads * C::kBlocksPerSm <= 1536 && C::kBlocksPerSm <= 16);
  for (const int64_t slots : {1, 2, 3, 5, 8, 9, 16, 64, 128, 255, 256, 257, 5000}) {
    for (int64_t heads = 1; heads <= 1500; heads += heads < 130 ? 1 : 137) {
      for (const int64_t positions : {1, 2, 63, 64, 65, 4096}) {
        const Policy p = SelectPolicy<C>(slots, heads, positions);
        EXPECT_LE(p.slots * p.head_lanes * p.token_lanes, C::kThreads);
        EXPECT_GE(p.token_lanes, 1);
        EXPECT_LE(p.token_lanes, positions);
        // Either may be blockDim.z.
        EXPECT_LE(p.head_lanes, kMaxOuterThreads);
        EXPECT_LE(p.token_lanes, kMaxOuterThreads);
        // No group of threads without a head.
        EXPECT_LE(p.head_lanes, heads);
        const Tiles tiles = TilesOf(p, 3, positions);
        EXPECT_GE(tiles.per_batch * p.token_lanes, positions);
        EXPECT_LT((tiles.per_batch - 1) * p.token_lanes, positions);
        EXPECT_EQ(tiles.count, 3 * tiles.per_batch);
      }
    }
  }
}

TEST(RopePolicyTest, EveryHeadAndPositionIsCoveredWithinTheBlock) {
  ExpectGoodPolicies<AcrossCut>();
  ExpectGoodPolicies<WithinCut>();
}

}  // namespace
}  // namespace fuseboard::rope
