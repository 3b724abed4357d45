#include "kernels/cross_entropy/cross_entropy_policy.h"

#include <gtest/gtest.h>

namespace fuseboard::cross_entropy {
namespace {

constexpr Policy PlainPolicy(int sm, int64_t vocab, int bytes) {
  return SelectPolicy(sm, vocab, bytes, Pass::kPlainGradient);
}

static_assert(PlainPolicy(90, 32, 2).algorithm == Algorithm::kWarpPerRow);
static_assert(PlainPolicy(90, 1025, 2).algorithm == Algorithm::kBlockPerRow);
static_assert(PlainPolicy(80, 128256, 2).algorithm == Algorithm::kBlockPerRow);
static_assert(PlainPolicy(90, 10240, 2) == Policy{Algorithm::kRing, 192, 3, 1, 4, 16384, 64});
static_assert(PlainPolicy(90, 32000, 2) == Policy{Algorithm::kRing, 256, 2, 1, 6, 16384, 128});
static_assert(PlainPolicy(90, 50257, 2) == Policy{Algorithm::kRing, 256, 1, 1, 14, 16384, 128});
static_assert(PlainPolicy(90, 128256, 2) == Policy{Algorithm::kRing, 256, 1, 2, 14, 16384, 128});
static_assert(PlainPolicy(90, 151936, 2).cluster == 2);
static_assert(PlainPolicy(90, 128256, 4) == Policy{Algorithm::kRing, 384, 1, 4, 14, 16384, 192});
static_assert(PlainPolicy(90, 262144, 4).cluster == 8);
static_assert(PlainPolicy(90, 440000, 4).cluster == 8);

constexpr Policy GeneralPolicy(int sm, int64_t vocab, int bytes) {
  return SelectPolicy(sm, vocab, bytes, Pass::kGradient);
}

static_assert(GeneralPolicy(90, 32000, 2) == Policy{Algorithm::kRing, 256, 3, 1, 4, 16384});
static_assert(GeneralPolicy(90, 128256, 2) == Policy{Algorithm::kRing, 256, 3, 4, 4, 16384});
static_assert(GeneralPolicy(90, 151936, 2) == Policy{Algorithm::kRing, 256, 2, 4, 6, 16384});
static_assert(GeneralPolicy(90, 128256, 4).cluster == 8);
static_assert(GeneralPolicy(90, 262144, 4) == Policy{Algorithm::kRing, 256, 1, 8, 14, 16384});

static_assert(SelectPolicy(90, 128256, 2, Pass::kCappedGradient).algorithm ==
              Algorithm::kBlockPerRow);

void ExpectToFit(const Policy& policy, int sm, int64_t row_bytes) {
  EXPECT_TRUE(RingHoldsSlice(policy, row_bytes)) << sm << " " << row_bytes;
  const int shared = policy.slots * policy.chunk_bytes + kRingReservedBytes;
  EXPECT_LE(shared * policy.blocks_per_sm, SharedBytesPerSm(sm)) << sm << " " << row_bytes;
  EXPECT_LE(policy.cluster, kMaxCluster);
  EXPECT_LE(policy.slots, kMaxSlots);
}

TEST(CrossEntropyPolicyTest, ARingHoldsItsSliceWheneverTheGradientIsTakenFromIt) {
  for (const int sm : {90, 100, 120}) {
    for (int64_t vocab = 1; vocab < int64_t{1} << 21; vocab += 1 + vocab / 7) {
      for (const int bytes : {2, 4}) {
        const Policy plain = PlainPolicy(sm, vocab, bytes);
        if (plain.algorithm != Algorithm::kRing) continue;
        ExpectToFit(plain, sm, vocab * bytes);
        const int threads = plain.blocks_per_sm * (plain.threads + 64);
        EXPECT_LE(threads, kMaxPipelineThreads) << sm << " " << vocab;
        EXPECT_LE(plain.sum_threads, kMaxRingThreads) << sm << " " << vocab;
        ExpectToFit(GeneralPolicy(sm, vocab, bytes), sm, vocab * bytes);
      }
    }
  }
}

TEST(CrossEntropyPolicyTest, WithoutAGradientOneBlockStreamsAnyRow) {
  const Policy policy = SelectPolicy(90, int64_t{1} << 29, 4, Pass::kLoss);
  EXPECT_EQ(policy.algorithm, Algorithm::kRing);
  EXPECT_EQ(policy.cluster, 1);
}

TEST(CrossEntropyPolicyTest, RowsThatNoClusterHoldsAreReadTwice) {
  EXPECT_EQ(PlainPolicy(90, int64_t{1} << 20, 4).algorithm, Algorithm::kBlockPerRow);
  EXPECT_EQ(GeneralPolicy(90, int64_t{1} << 20, 4).algorithm, Algorithm::kBlockPerRow);
}

TEST(CrossEntropyPolicyTest, AnUnknownNewerDeviceIsTakenForTheSmallerKind) {
  EXPECT_EQ(PlainPolicy(999, 32000, 2), PlainPolicy(120, 32000, 2));
}

}  // namespace
}  // namespace fuseboard::cross_entropy
