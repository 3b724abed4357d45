#include "kernels/cross_entropy/cross_entropy_policy.h"

#include <gtest/gtest.h>

namespace fuseboard::cross_entropy {
namespace {

constexpr int kSlots = 4;  // Of 16 KiB in a third of 228 KiB.

static_assert(SelectPolicy(90, 32, 2, true).algorithm == Algorithm::kWarpPerRow);
static_assert(SelectPolicy(90, 1025, 2, true).algorithm == Algorithm::kBlockPerRow);
static_assert(SelectPolicy(90, 32000, 2, true) ==
              Policy{Algorithm::kRing, 256, 3, 1, kSlots, 16384});
static_assert(SelectPolicy(90, 128256, 2, true) ==
              Policy{Algorithm::kRing, 256, 3, 4, kSlots, 16384});
static_assert(SelectPolicy(90, 151936, 2, true) == Policy{Algorithm::kRing, 256, 2, 4, 6, 16384});
static_assert(SelectPolicy(90, 128256, 4, true).cluster == 8);
static_assert(SelectPolicy(90, 262144, 2, true).cluster == 8);
static_assert(SelectPolicy(90, 262144, 4, true) == Policy{Algorithm::kRing, 256, 1, 8, 14, 16384});
static_assert(SelectPolicy(80, 128256, 2, true).algorithm == Algorithm::kBlockPerRow);

TEST(CrossEntropyPolicyTest, ARingHoldsItsSliceWheneverTheGradientIsTakenFromIt) {
  for (const int sm : {90, 100, 120}) {
    for (int64_t vocab = 1; vocab < int64_t{1} << 21; vocab += 1 + vocab / 7) {
      for (const int bytes : {2, 4}) {
        const Policy policy = SelectPolicy(sm, vocab, bytes, true);
        if (policy.algorithm != Algorithm::kRing) continue;
        EXPECT_TRUE(RingHoldsSlice(policy, vocab * bytes)) << sm << " " << vocab;
        const int shared = policy.slots * policy.chunk_bytes + kRingReservedBytes;
        EXPECT_LE(shared * policy.blocks_per_sm, SharedBytesPerSm(sm)) << sm << " " << vocab;
        EXPECT_LE(policy.cluster, kMaxCluster);
        EXPECT_LE(policy.slots, kMaxSlots);
      }
    }
  }
}

TEST(CrossEntropyPolicyTest, WithoutAGradientOneBlockStreamsAnyRow) {
  const Policy policy = SelectPolicy(90, int64_t{1} << 29, 4, false);
  EXPECT_EQ(policy.algorithm, Algorithm::kRing);
  EXPECT_EQ(policy.cluster, 1);
}

TEST(CrossEntropyPolicyTest, RowsThatNoClusterHoldsAreReadTwice) {
  EXPECT_EQ(SelectPolicy(90, int64_t{1} << 20, 4, true).algorithm, Algorithm::kBlockPerRow);
}

TEST(CrossEntropyPolicyTest, AnUnknownNewerDeviceIsTakenForTheSmallerKind) {
  EXPECT_EQ(SelectPolicy(999, 32000, 2, true), SelectPolicy(120, 32000, 2, true));
}

}  // namespace
}  // namespace fuseboard::cross_entropy
