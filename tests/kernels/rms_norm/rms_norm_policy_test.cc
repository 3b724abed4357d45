#include "kernels/rms_norm/rms_norm_policy.h"

#include <gtest/gtest.h>

namespace fuseboard::rms_norm {
namespace {

// 8 bf16 or 4 f32 per pack.
static_assert(SelectForward(/*sm=*/90, /*row_packs=*/512) == Policy{.packs = 4,
                                                                    .threads_per_row = 128,
                                                                    .rows_per_block = 1,
                                                                    .cluster = 1,
                                                                    .blocks_per_sm = 0,
                                                                    .stages = 0,
                                                                    .shared_weight = false});
static_assert(SelectForward(90, 16).rows_per_block == 8);         // qk norm: 16 threads per head.
static_assert(SelectForward(90, 32768).cluster == 8);             // 262,144 bf16.
static_assert(SelectForward(80, 32768).packs == 0);               // No clusters: looping kernel.
static_assert(SelectForward(90, 65536).threads_per_row == 1024);  // 262,144 f32.

TEST(RmsNormPolicyTest, AnUnknownNewerDeviceGetsTheNewestPolicy) {
  EXPECT_EQ(SelectForward(999, 4096), SelectForward(90, 4096));
}

TEST(RmsNormPolicyTest, EveryRowIsCoveredByItsThreads) {
  for (int64_t row_packs = 1; row_packs <= 70000; row_packs += row_packs < 2100 ? 1 : 97) {
    for (const int sm : {80, 90, 120}) {
      for (const Policy& policy :
           {SelectForward(sm, row_packs), SelectForwardOfFewRows(sm, row_packs),
            SelectBackward(sm, row_packs, 2, 2), SelectBackward(sm, row_packs, 2, 4),
            SelectBackward(sm, row_packs, 4, 4)}) {
        if (policy.packs == 0) continue;
        EXPECT_GE(int64_t{policy.packs} * policy.threads_per_row * policy.cluster, row_packs);
        EXPECT_LE(policy.threads_per_row * policy.rows_per_block, kMaxThreads);
        if (policy.threads_per_row > kWarp) {
          EXPECT_EQ(policy.threads_per_row % kWarp, 0);
        }
        if (policy.cluster > 1) {
          EXPECT_EQ(policy.rows_per_block, 1);
        }
        if (sm < 90) {
          EXPECT_EQ(policy.cluster, 1);
        }
      }
    }
  }
}

TEST(RmsNormPolicyTest, FewRowsHaveAPackToAThread) {
  EXPECT_EQ(SelectForwardOfFewRows(90, 512), (Policy{.packs = 1,
                                                     .threads_per_row = 512,
                                                     .rows_per_block = 1,
                                                     .cluster = 1,
                                                     .blocks_per_sm = 0,
                                                     .stages = 0,
                                                     .shared_weight = false}));
  EXPECT_EQ(SelectForwardOfFewRows(90, 513), SelectForward(90, 513));
  EXPECT_EQ(SelectForwardOfFewRows(90, 16), SelectForward(90, 16));  // Part of a warp.
}

TEST(RmsNormPolicyTest, BackwardFitsTheSharedMemoryOfItsDevice) {
  for (int64_t row_packs = 1; row_packs <= 70000; row_packs += row_packs < 2100 ? 1 : 97) {
    for (const int sm : {80, 86, 90, 100, 120}) {
      for (const int dy_bytes : {2, 4}) {
        const Policy policy = SelectBackward(sm, row_packs, 2, dy_bytes);
        if (policy.packs == 0) continue;
        EXPECT_TRUE(FitsShared(policy, sm, 2, dy_bytes)) << row_packs << " on " << sm;
        EXPECT_GE(policy.stages, 1);
        // The launch bounds of the kernels: 256 threads up to 2 packs, 512 beyond.
        EXPECT_LE(policy.threads_per_row * policy.rows_per_block, policy.packs <= 2 ? 256 : 512);
        if (policy.rows_per_block > 1) {
          EXPECT_TRUE(policy.shared_weight);
        }
      }
    }
  }
}

TEST(RmsNormPolicyTest, RowsThatBeginAnywhereHaveThreadsForTheirEdges) {
  for (int64_t row_packs = 8; row_packs <= 9000; row_packs += 3) {
    for (const int sm : {80, 86, 90, 100, 120}) {
      for (const int bytes : {2, 4}) {
        const Policy forward = WithEdges(SelectForward(sm, row_packs), bytes);
        const Policy backward = SelectBackward(sm, row_packs, bytes, bytes, /*unaligned=*/true);
        for (const Policy& policy : {forward, backward}) {
          if (policy.packs == 0) continue;
          EXPECT_EQ(policy.classes, 16 / bytes);
          EXPECT_GE(policy.threads_per_row, kWarp);
          EXPECT_LE(policy.rows_per_block, policy == forward ? 1 : 8);
          EXPECT_GE(int64_t{policy.packs} * policy.threads_per_row * policy.cluster, row_packs);
        }
        if (backward.packs == 0) continue;
        EXPECT_TRUE(FitsShared(backward, sm, bytes, bytes)) << row_packs << " on " << sm;
        EXPECT_LE(backward.threads_per_row * backward.rows_per_block,
                  backward.packs <= 2 ? 256 : 512);
      }
    }
  }
}

TEST(RmsNormPolicyTest, EachBlockHasRowsOfOneClass) {
  const Policy policy = SelectBackward(90, 512, 2, 2, /*unaligned=*/true);
  for (const int64_t rows : {1, 7, 8, 9, 250, 16384}) {
    const int64_t blocks = BackwardBlocks(policy, rows, 132);
    EXPECT_EQ(blocks % 8, 0);
    EXPECT_GE(blocks, 8);
    EXPECT_LE(blocks, 132 * policy.blocks_per_sm);
  }
  EXPECT_EQ(BackwardBlocks(policy, 0, 132), 0);
  EXPECT_EQ(BackwardBlocks(policy, 16384, 1), 8);
}

TEST(RmsNormPolicyTest, BackwardKeepsEveryUsualWidthOnTheFastPath) {
  for (const int64_t hidden :
       {64, 128, 1024, 2048, 4096, 5120, 8192, 16384, 65536, 131072, 262144}) {
    EXPECT_GT(SelectBackward(90, hidden / 8, 2, 2).packs, 0) << hidden;
  }
}

TEST(RmsNormPolicyTest, BackwardBlocksAreWholeClustersAndAtMostOnePerGroup) {
  const Policy wide = SelectBackward(90, 32768, 2, 2);
  EXPECT_EQ(BackwardBlocks(wide, 1000, 132), 120);  // 15 clusters of 8 on 132 multiprocessors.
  EXPECT_EQ(BackwardBlocks(wide, 3, 132), 24);
  const Policy narrow = SelectBackward(90, 512, 2, 2);
  EXPECT_EQ(BackwardBlocks(narrow, 100000, 132), 132 * narrow.blocks_per_sm);
  EXPECT_EQ(BackwardBlocks(narrow, 0, 132), 0);
}

TEST(RmsNormPolicyTest, TheLoopingBackwardBoundsItsWorkspace) {
  const Policy policy = SelectLooping(262143);
  const int64_t blocks = LoopingBackwardBlocks(policy, 100000, 262143, 132);
  EXPECT_LE(blocks * 262143 * 4, int64_t{64} << 20);
  EXPECT_GE(blocks, 1);
  EXPECT_EQ(LoopingBackwardBlocks(SelectLooping(int64_t{1} << 30), 10, int64_t{1} << 30, 132), 1);
}

}  // namespace
}  // namespace fuseboard::rms_norm
