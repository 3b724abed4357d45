#include "kernels/rms_norm/few_rows_policy.h"

#include <gtest/gtest.h>

namespace fuseboard::rms_norm {
namespace {

TEST(FewRowsPolicyTest, RowsAreCoveredByWholeWarpsWithinTheKernelsBounds) {
  for (int64_t row_packs = 1; row_packs <= 3000; ++row_packs) {
    for (const int64_t rows : {0, 1, 64, 1024}) {
      const Policy policy = SelectFewRows(rows, row_packs);
      if (policy.packs == 0) continue;
      EXPECT_TRUE(policy.few_rows);
      EXPECT_TRUE(policy.packs == 1 || policy.packs == 2);
      EXPECT_GE(int64_t{policy.packs} * policy.threads_per_row, row_packs);
      EXPECT_EQ(policy.threads_per_row % kWarp, 0);
      EXPECT_LE(policy.threads_per_row, kFewRowsMaxThreads);
      // Each column of a tile has a thread that adds up the warps' sums.
      EXPECT_GE(policy.threads_per_row, kFewRowsTile * 8);
    }
  }
}

TEST(FewRowsPolicyTest, ManyRowsAndWideOnesAreLeftToTheOtherKernels) {
  EXPECT_NE(SelectFewRows(1024, 512).packs, 0);  // 1,024 x 4,096 bf16.
  EXPECT_EQ(SelectFewRows(1025, 512).packs, 0);
  EXPECT_NE(SelectFewRows(768, 128).packs, 0);
  EXPECT_EQ(SelectFewRows(769, 128).packs, 0);
  EXPECT_NE(SelectFewRows(512, 32).packs, 0);
  EXPECT_EQ(SelectFewRows(513, 32).packs, 0);
  EXPECT_NE(SelectFewRows(256, 16).packs, 0);
  EXPECT_EQ(SelectFewRows(257, 16).packs, 0);
  EXPECT_EQ(SelectFewRows(1, 1025).packs, 0);  // Clusters.
}

}  // namespace
}  // namespace fuseboard::rms_norm
