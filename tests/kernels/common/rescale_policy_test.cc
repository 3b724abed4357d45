#include "kernels/common/rescale_policy.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace fuseboard::rescale {
namespace {

constexpr int32_t kSmCount = 132;

// 64 and 8192 x 128256 of bf16 on an H200.
static_assert(PlanOf(int64_t{64} * 128256 * 2, kSmCount, DefaultCut()).rounds == 1);
static_assert(PlanOf(int64_t{8192} * 128256 * 2, kSmCount, DefaultCut()).rounds == 0);
static_assert(PlanOf(int64_t{8192} * 128256 * 2, kSmCount, DefaultCut()).Grid() == 264);
static_assert(PlanOf(0, kSmCount, DefaultCut()).Grid() == 1);

TEST(RescalePolicyTest, RoundsHoldAllTilesAndTheGridStaysSmall) {
  constexpr int64_t kTileBytes = int64_t{DefaultCut::kTileRuns} * 16;
  for (const int32_t sm_count : {1, 4, 108, kSmCount}) {
    for (const int64_t bytes :
         {int64_t{2}, kTileBytes, kTileBytes + 2, int64_t{1} << 21, (int64_t{1} << 21) * sm_count,
          (int64_t{1} << 21) * sm_count + 2, int64_t{1} << 33, int64_t{1} << 50}) {
      const Plan plan = PlanOf(bytes, sm_count, DefaultCut());
      EXPECT_GE(plan.tiles * kTileBytes, bytes);
      EXPECT_LT((plan.tiles - 1) * kTileBytes, bytes);
      EXPECT_GE(plan.blocks, 1u);
      EXPECT_LE(plan.Grid(), int64_t{sm_count} * 2 * kMaxRounds) << bytes;
      if (plan.rounds > 0) {
        EXPECT_GE(plan.Grid() * kRoundTiles, plan.tiles) << bytes;
      }
      EXPECT_EQ(plan.rounds == 0, bytes > (int64_t{1} << 21) * sm_count) << bytes;
    }
  }
}

}  // namespace
}  // namespace fuseboard::rescale
