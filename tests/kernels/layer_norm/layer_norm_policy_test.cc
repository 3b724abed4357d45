#include "kernels/layer_norm/layer_norm_policy.h"

#include <gtest/gtest.h>

namespace fuseboard::layer_norm {
namespace {

using rms_norm::Policy;

static_assert(SelectBackward(/*sm=*/90, /*row_packs=*/512, /*x_bytes=*/2) ==
              Policy{.packs = 4,
                     .threads_per_row = 128,
                     .rows_per_block = 2,
                     .cluster = 1,
                     .blocks_per_sm = 2,
                     .stages = 2,
                     .shared_weight = true});
static_assert(SelectBackward(90, 8192, 2).cluster == 8);  // 65,536 bf16.
static_assert(SelectBackward(80, 8192, 2).packs == 0);    // No clusters: looping kernel.

TEST(LayerNormPolicyTest, EveryRowIsCoveredWithinTheBoundsOfItsKernelAndDevice) {
  for (int64_t row_packs = 1; row_packs <= 40000; row_packs += row_packs < 2100 ? 1 : 97) {
    for (const int sm : {80, 86, 90, 100, 120}) {
      for (const int x_bytes : {2, 4}) {
        const Policy policy = SelectBackward(sm, row_packs, x_bytes);
        if (policy.packs == 0) continue;
        EXPECT_GE(int64_t{policy.packs} * policy.threads_per_row * policy.cluster, row_packs);
        EXPECT_LE(policy.threads_per_row * policy.rows_per_block, 512);
        EXPECT_TRUE(rms_norm::FitsShared(policy, sm, x_bytes, x_bytes))
            << row_packs << " on " << sm;
        EXPECT_GE(policy.stages, 1);
        if (policy.rows_per_block > 1) {
          EXPECT_TRUE(policy.shared_weight);
          EXPECT_EQ(policy.cluster, 1);
        }
        if (sm < 90) {
          EXPECT_EQ(policy.cluster, 1);
        }
      }
    }
  }
}

TEST(LayerNormPolicyTest, WideRowsTakeTheKernelsForThem) {
  EXPECT_EQ(SelectWideForward(90, 2048).packs, 0);
  EXPECT_TRUE(SelectWideForward(90, 2049).wide);
  EXPECT_EQ(SelectWideBackward(90, 1024).packs, 0);
  EXPECT_EQ(SelectWideBackward(90, 2048).cluster, 2);  // 16,384 bf16.
  EXPECT_EQ(SelectWideBackward(90, 32768).packs, rms_norm::kWideBackwardPieces<true>);
  EXPECT_EQ(SelectWideBackward(90, 32769).packs, 0);
  EXPECT_EQ(SelectWideBackward(80, 8192).packs, 0);
}

}  // namespace
}  // namespace fuseboard::layer_norm
