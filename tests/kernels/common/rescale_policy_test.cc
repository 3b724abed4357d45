#include "kernels/common/rescale_policy.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace fuseboard::rescale {
namespace {

// 8192 x 128256 of bf16 on an H200.
static_assert(RoundsOf(int64_t{8192} * 128256 / 8, 132, Cut<128, 2>()).count == 5);

TEST(RescalePolicyTest, RoundsTakeAllTilesOneAfterTheOther) {
  for (const int64_t resident : {1, 16, 108 * 16, 132 * 16}) {
    for (const int64_t tiles : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{2112}, int64_t{2113},
                                int64_t{513'024}, (int64_t{1} << 31) + 1, int64_t{1} << 50}) {
      const Rounds rounds = RoundsOf(tiles, resident);
      EXPECT_EQ(rounds.FirstTileOf(0), 0);
      EXPECT_EQ(rounds.FirstTileOf(rounds.count), tiles);
      for (uint32_t round = 0; round < rounds.count; ++round) {
        EXPECT_LE(rounds.FirstTileOf(round), rounds.FirstTileOf(round + 1)) << tiles;
      }
      EXPECT_GE(rounds.blocks, 1u);
      EXPECT_LE(rounds.blocks, resident);
      EXPECT_LE(tiles - rounds.FirstTileOf(rounds.count - 1), rounds.blocks) << tiles;
      EXPECT_LE(rounds.count, 27u) << tiles;
    }
  }
}

}  // namespace
}  // namespace fuseboard::rescale
