#include "kernels/qk_norm_rope/qk_norm_rope_policy.h"

#include <gtest/gtest.h>

namespace fuseboard::qk_norm_rope {
namespace {

// Qwen3 in bf16: 8 pairs of runs to a head, 32 and 8 heads; 40 heads in five turns of 4 lanes.
static_assert(SelectPolicy<Cut<256, 4, 2>>(8, 32, 4096, false) ==
              Policy{.width = 8, .head_lanes = 8, .token_lanes = 4});
static_assert(SelectPolicy<Cut<256, 4, 2>>(8, 8, 4096, false) ==
              Policy{.width = 8, .head_lanes = 2, .token_lanes = 16});
static_assert(SelectPolicy<Cut<128, 2, 3>>(8, 40, 4096, false) ==
              Policy{.width = 8, .head_lanes = 4, .token_lanes = 4});
// A turn is a tile of its own where two floats are worked on at a time: 32 heads in two.
static_assert(CutHeads<Cut<64, 2, 5>>(8, 32, 4096).turns == 2);
static_assert(CutHeads<Cut<128, 4, 4>>(8, 32, 4096).turns == 1);
// Heads of 80 elements: 5 of 8 threads have work.
static_assert(SelectPolicy<Cut<256, 4, 2>>(5, 32, 4096, false).width == 8);
// One token.
static_assert(SelectPolicy<Cut<256, 4, 2>>(8, 8, 1, false).token_lanes == 1);
// OLMo2: all heads in one turn; 40 heads are 20 groups of 8 threads, 5 warps.
static_assert(SelectPolicy<Cut<128, 2, 3>>(8, 32, 4096, true) ==
              Policy{.width = 8, .head_lanes = 16, .token_lanes = 1});
static_assert(SelectPolicy<Cut<128, 2, 3>>(8, 40, 4096, true) == Policy{});
static_assert(SelectPolicy<Cut<256, 2, 1>>(8, 40, 4096, true) ==
              Policy{.width = 8, .head_lanes = 20, .token_lanes = 1});
// More than a warp to a head: looping.
static_assert(SelectPolicy<Cut<256, 4, 2>>(33, 1, 4096, false) == Policy{});

template <typename C>
void ExpectGoodPolicies() {
  // A multiprocessor of sm_86, 89 and 120 holds 1,536 threads and 16 blocks.
  static_assert(C::kThreads * C::kBlocksPerSm <= 1536 && C::kBlocksPerSm <= 16);
  for (int64_t slots = 1; slots <= kWarp; ++slots) {
    for (int64_t heads = 1; heads <= 1500; heads += heads < 130 ? 1 : 137) {
      for (const int64_t positions : {1, 2, 63, 4096}) {
        for (const bool all_heads : {false, true}) {
          const Policy p = SelectPolicy<C>(slots, heads, positions, all_heads);
          if (p.width == 0) {
            // All heads do not fit one turn.
            EXPECT_TRUE(all_heads);
            EXPECT_GT(CeilDiv(heads, C::kUnroll) * NextPowerOfTwo(slots), C::kThreads);
            continue;
          }
          EXPECT_LE(p.width * p.head_lanes * p.token_lanes, C::kThreads);
          EXPECT_GE(p.width, slots);
          EXPECT_EQ(kWarp % p.width, 0);
          EXPECT_GE(p.head_lanes, 1);
          EXPECT_GE(p.token_lanes, 1);
          EXPECT_LE(p.token_lanes, positions);
          if (!all_heads) continue;
          EXPECT_GE(p.head_lanes * C::kUnroll, heads);
          const int threads = p.width * p.head_lanes;
          EXPECT_TRUE(threads <= kWarp ? kWarp % threads == 0 : threads % kWarp == 0);
        }
      }
    }
  }
}

TEST(QkNormRopePolicyTest, EveryHeadAndPositionIsCoveredWithinTheBlock) {
  ExpectGoodPolicies<ForwardCut>();
  ExpectGoodPolicies<ForwardAllHeadsCut>();
  ExpectGoodPolicies<BackwardCut>();
  ExpectGoodPolicies<BackwardInterleavedCut>();
  ExpectGoodPolicies<BackwardAllHeadsCut>();
  ExpectGoodPolicies<BackwardManyHeadsCut>();
  ExpectGoodPolicies<PackedForwardCut>();
  ExpectGoodPolicies<PackedBackwardCut>();
  ExpectGoodPolicies<RowForwardCut>();
  ExpectGoodPolicies<RowBackwardCut>();
}

TEST(QkNormRopePolicyTest, BlocksAreSharedInProportionAndNoneIsWithout) {
  const auto expect = [](int64_t resident, int64_t q_tiles, int64_t k_tiles, int64_t q_work,
                         int64_t k_work, int64_t q, int64_t k) {
    const Blocks blocks = SplitBlocks(resident, {q_tiles, k_tiles}, {q_work, k_work});
    EXPECT_EQ(blocks.side[0], q);
    EXPECT_EQ(blocks.side[1], k);
  };
  expect(396, 8192, 2048, 32, 8, 317, 79);
  expect(396, 8192, 0, 32, 0, 396, 0);
  expect(396, 5, 5, 32, 8, 5, 5);
  expect(396, 8192, 1, 100000, 1, 395, 1);
  expect(1, 10, 10, 1, 1, 1, 1);
  expect(396, 0, 0, 0, 0, 0, 0);
}

TEST(QkNormRopePolicyTest, ALoopingBackwardKeepsItsSumsSmall) {
  EXPECT_EQ(LoopingBlocks(SelectLooping(72), 72, 528), 528);
  EXPECT_EQ(LoopingBlocks(SelectLooping(1 << 20), 1 << 20, 528), 16);
  EXPECT_EQ(LoopingBlocks(SelectLooping(1 << 28), 1 << 28, 528), 1);
  EXPECT_EQ(LoopingBlocks(SelectLooping(0), 0, 528), 528);
}

}  // namespace
}  // namespace fuseboard::qk_norm_rope
