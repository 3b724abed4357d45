#include "kernels/elementwise/elementwise_policy.h"

#include <gtest/gtest.h>

namespace fuseboard::elementwise {
namespace {

using Wide = Cut<256, 1, 6>;

static_assert(SelectPolicy<Wide>(1792) == Policy{.threads_per_row = 256, .rows_per_block = 1});
static_assert(SelectPolicy<Wide>(16) == Policy{.threads_per_row = 16, .rows_per_block = 16});
static_assert(TilesOf<Wide>(SelectPolicy<Wide>(1792), 8192, 1792).count == 7L * 8192);

static_assert(FewElementsBlocks(1) == 1);
static_assert(FewElementsBlocks(257) == 2);
static_assert(kFewElementsRuns * 8 < INT32_MAX);  // Elements are counted in 32 bits.

TEST(ElementwisePolicyTest, TilesCoverTheMatrixAndNoMoreThanOneTileOfSlack) {
  for (int64_t runs = 1; runs <= 5000; runs += 7) {
    for (const int64_t rows : {1, 2, 255, 256, 257, 100000}) {
      const Policy policy = SelectPolicy<Wide>(runs);
      const Tiles tiles = TilesOf<Wide>(policy, rows, runs);
      const int64_t width = int64_t{policy.threads_per_row} * Wide::kUnroll;
      EXPECT_EQ(policy.threads_per_row * policy.rows_per_block, Wide::kThreads);
      EXPECT_GE(tiles.per_row * width, runs);
      EXPECT_LT((tiles.per_row - 1) * width, runs);
      EXPECT_GE(tiles.count / tiles.per_row * policy.rows_per_block, rows);
    }
  }
}

}  // namespace
}  // namespace fuseboard::elementwise
