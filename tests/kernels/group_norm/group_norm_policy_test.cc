#include "kernels/group_norm/group_norm_policy.h"

#include <gtest/gtest.h>

namespace fuseboard::group_norm {
namespace {

// 16 channels of 64 x 64 in bf16.
static_assert(SelectForward(90, 8192) ==
              Policy{.packs = 8, .threads = 1024, .groups_per_block = 1, .cluster = 1});
static_assert(SelectBackward(90, 8192) ==
              Policy{.packs = 4, .threads = 512, .groups_per_block = 1, .cluster = 4});
// One channel of 8 x 8 in bf16.
static_assert(SelectForward(90, 8) ==
              Policy{.packs = 4, .threads = 2, .groups_per_block = 16, .cluster = 1});
static_assert(SelectForward(90, 65536).cluster == 8);
static_assert(SelectForward(90, 65537).packs == 0);
static_assert(SelectBackward(90, 32768).cluster == 8);
static_assert(SelectBackward(90, 32769).packs == 0);
static_assert(SelectForward(80, 8193).packs == 0);
static_assert(SelectForward(999, 4096) == SelectForward(90, 4096));

class GroupNormPolicyTest : public ::testing::TestWithParam<int> {
 protected:
  static void ExpectHolds(const Policy& policy, int64_t packs) {
    if (policy.packs == 0) return;
    const int64_t threads = int64_t{policy.threads} * policy.cluster;
    const int block = policy.threads * policy.groups_per_block;
    EXPECT_GE(threads * policy.packs, packs);
    EXPECT_LE(block, kMaxThreads) << packs;
    EXPECT_EQ(block % kWarp, 0) << packs;
    EXPECT_TRUE(policy.threads % kWarp == 0 || kWarp % policy.threads == 0) << packs;
    EXPECT_TRUE(policy.groups_per_block == 1 || (block == kWarp && policy.cluster == 1)) << packs;
  }
};

TEST_P(GroupNormPolicyTest, EveryGroupIsHeldOrSplit) {
  const int sm = GetParam();
  for (int64_t packs = 1; packs <= 70000; packs += packs < 5000 ? 1 : 997) {
    const Policy forward = SelectForward(sm, packs);
    const Policy backward = SelectBackward(sm, packs);
    ExpectHolds(forward, packs);
    ExpectHolds(backward, packs);
    // 64 registers: 512 threads in two blocks, or 1,024 in one.
    EXPECT_TRUE(forward.packs != 4 || forward.threads <= 512) << packs;
    EXPECT_LE(forward.cluster, MaxClusterOf(sm));
    EXPECT_LE(backward.cluster, MaxClusterOf(sm));
    EXPECT_EQ(forward.packs != 0, packs <= (sm >= 90 ? 65536 : 8192)) << packs;
    EXPECT_EQ(backward.packs != 0, packs <= (sm >= 90 ? 32768 : 4096)) << packs;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GroupNormPolicyTest, ::testing::Values(80, 86, 89, 90, 100, 120));

TEST(GroupNormDivisorTest, QuotientsOfPacksAreExact) {
  for (uint32_t value = 1; value <= kMaxHeldPacks; value += value < 300 ? 1 : 251) {
    const Divisor divisor = DivisorOf(value);
    for (uint32_t dividend = 0; dividend < kMaxHeldPacks; dividend += value) {
      ASSERT_EQ(Divide(dividend, divisor), dividend / value) << dividend << " / " << value;
      if (dividend == 0) continue;
      ASSERT_EQ(Divide(dividend - 1, divisor), (dividend - 1) / value) << dividend;
    }
  }
}

TEST(GroupNormSplitTest, PartsCoverAChannelAndBeginInWholePacks) {
  for (const int64_t elements : {1LL, 2LL, 31LL, 49LL, 2048LL, 2049LL, 16384LL, 16385LL, 32769LL,
                                 262144LL, 1LL << 31, (1LL << 32) + 1}) {
    const Split split = SelectSplit(elements);
    EXPECT_GE(split.part * split.parts, elements);
    EXPECT_LT(split.part * (split.parts - 1), elements);
    EXPECT_LE(split.part, 16384);
    EXPECT_EQ(split.threads * split.parts_per_block, 256);
    EXPECT_TRUE(split.parts == 1 || split.part % 8 == 0) << elements;
  }
}

TEST(GroupNormSplitTest, AWarpsPartOrABlockAddsUpPieces) {
  EXPECT_EQ(SumThreads(1), 1);
  EXPECT_EQ(SumThreads(5), 8);
  EXPECT_EQ(SumThreads(64), 32);
  EXPECT_EQ(SumThreads(65), 256);
}

}  // namespace
}  // namespace fuseboard::group_norm
