#include "kernels/common/row_loss_policy.h"

#include <gtest/gtest.h>

namespace fuseboard::row_loss {
namespace {

using C = DefaultCut;

// 128,256 columns of f32.
static_assert(SelectPolicy<C>(32064) == Policy{.threads_per_row = 256,
                                               .rows_per_block = 1,
                                               .tiles_per_row = 8,
                                               .tile_units = 4096});
static_assert(SelectPolicy<C>(16) == Policy{.threads_per_row = 8,
                                            .rows_per_block = 32,
                                            .tiles_per_row = 1,
                                            .tile_units = 4096});
static_assert(SelectPolicy<C>(0).tiles_per_row == 1);
static_assert(TilesOf(SelectPolicy<C>(32064), 4096) == 32768);

// As many threads and blocks as the smallest multiprocessors hold.
static_assert(C::kThreads * C::kBlocksPerSm <= 1536 && C::kBlocksPerSm <= 16);

TEST(RowLossPolicyTest, TilesCoverTheRowsAndNoMore) {
  for (int64_t units = 0; units <= 40000; units += units < 600 ? 1 : 173) {
    const Policy policy = SelectPolicy<C>(units);
    EXPECT_EQ(policy.threads_per_row * policy.rows_per_block, C::kThreads);
    EXPECT_GE(int64_t{policy.tiles_per_row} * policy.tile_units, units);
    EXPECT_TRUE(policy.tiles_per_row == 1 ||
                int64_t{policy.tiles_per_row - 1} * policy.tile_units < units);
    // Rows in tiles have a block's threads to each.
    EXPECT_TRUE(policy.tiles_per_row == 1 || policy.rows_per_block == 1);
    for (const int64_t rows : {1, 2, 255, 256, 257, 100000}) {
      EXPECT_GE(TilesOf(policy, rows) / policy.tiles_per_row * policy.rows_per_block, rows);
    }
  }
}

}  // namespace
}  // namespace fuseboard::row_loss
