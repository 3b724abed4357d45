#include "kernels/rms_norm/wide_policy.h"

#include <gtest/gtest.h>

namespace fuseboard::rms_norm {
namespace {

TEST(WidePolicyTest, RowsAreCoveredWithinTheBoundsOfTheirKernels) {
  const auto expect_fit = [](int sm, int64_t row_packs, const WideForm& form) {
    const Policy policy = CutWide(sm, row_packs, form);
    if (policy.packs == 0) return;
    EXPECT_TRUE(sm == 90 || sm == 100);
    EXPECT_TRUE(policy.wide);
    EXPECT_LE(policy.cluster, kWideCluster);
    EXPECT_TRUE(policy.packs == 1 || policy.packs == form.pieces);
    const WideCut cut = CutWideRow(policy, row_packs);
    const int64_t units = int64_t{cut.quotient} * policy.cluster + cut.rest;
    EXPECT_EQ(units, CeilDiv(row_packs, kWideUnit));
    EXPECT_LE(cut.slot_packs,
              policy.packs == 1 ? kWidePiecePacks : 2 * kWidePiecePacks / form.pieces);
    // The last piece of the shortest slice, of which the last unit may be one pack.
    EXPECT_GT(cut.quotient * kWideUnit - 3, (policy.packs - 1) * cut.slot_packs);
    // A row must fit, and the sums of the rows in flight.
    EXPECT_GT(cut.slots, policy.packs + 1);
    EXPECT_LE(cut.slots, kWideSlots);
    EXPECT_LE(WideSharedBytes(policy, row_packs, form) + kWideStatic, 227 * 1024);
  };
  for (int64_t row_packs = 1025; row_packs <= 40000; row_packs += row_packs < 5000 ? 61 : 97) {
    for (const int sm : {80, 86, 90, 100, 120}) {
      for (const WideForm& form :
           {kWideForward<false, false>, kWideForward<false, true>, kWideForward<true, false>,
            kWideBackward<false, false>, kWideBackward<false, true>, kWideBackward<true, false>}) {
        expect_fit(sm, row_packs, form);
      }
    }
  }
  EXPECT_EQ(SelectWideForward(90, 4096, 1).cluster, 8);    // 32,768 bf16, 512 packs to a block.
  EXPECT_EQ(SelectWideForward(90, 32768, 1).cluster, 16);  // 262,144 bf16, in pieces.
  EXPECT_EQ(SelectWideForward(90, 32768, 1).packs, kWideForwardPieces);
  EXPECT_EQ(SelectWideBackward(90, 32769, 2).packs, 0);
}

TEST(WidePolicyTest, ClustersAreAskedForWhereADeviceMayNotRunThem) {
  EXPECT_FALSE(MayNotRun(SelectWideBackward(90, 8192, 2), 132));
  EXPECT_TRUE(MayNotRun(SelectWideBackward(90, 16384, 2), 132));
  EXPECT_TRUE(MayNotRun(SelectWideBackward(90, 8192, 2), 16));
  EXPECT_FALSE(MayNotRun(SelectBackward(90, 512, 2, 2), 16));
}

}  // namespace
}  // namespace fuseboard::rms_norm
