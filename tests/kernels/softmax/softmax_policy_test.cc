#include "kernels/softmax/softmax_policy.h"

#include <gtest/gtest.h>

#include <tuple>

namespace fuseboard::softmax {
namespace {

constexpr RowShape Whole(int64_t packs) { return {.packs = packs, .has_edges = false}; }

static_assert(SelectForward(90, Whole(512)) == Policy{.packs = 8,
                                                      .threads_per_row = 64,
                                                      .rows_per_block = 4,
                                                      .cluster = 1,
                                                      .shared_dy = false});
// 128,256 columns of bf16.
static_assert(SelectForward(90, Whole(16032)) == Policy{.packs = 8,
                                                        .threads_per_row = 256,
                                                        .rows_per_block = 1,
                                                        .cluster = 8,
                                                        .shared_dy = false});
// 262,144 columns of f32, the widest.
static_assert(SelectForward(90, Whole(65536)).cluster == 8);
static_assert(SelectBackward(90, Whole(65536)) == Policy{.packs = 8,
                                                         .threads_per_row = 1024,
                                                         .rows_per_block = 1,
                                                         .cluster = 8,
                                                         .shared_dy = true});
static_assert(SelectForward(90, Whole(65537)).packs == 0);
static_assert(SelectForward(80, Whole(8192)).cluster == 1);
static_assert(SelectForward(80, Whole(8193)).packs == 0);
static_assert(SelectForward(999, Whole(4096)) == SelectForward(90, Whole(4096)));

// 4,096 columns of bf16: rows share blocks where there are many.
static_assert(SpreadRows(SelectForward(90, Whole(512)), 8192, 132).rows_per_block == 4);
static_assert(SpreadRows(SelectForward(90, Whole(512)), 300, 132).rows_per_block == 2);
static_assert(SpreadRows(SelectForward(90, Whole(512)), 64, 132).rows_per_block == 1);
// Blocks stay whole warps.
static_assert(SpreadRows(SelectForward(90, Whole(8)), 64, 132) == SelectForward(90, Whole(8)));

class SoftmaxPolicyTest : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  static void ExpectHolds(const Policy& policy, const RowShape& row) {
    if (policy.packs == 0) return;
    const int64_t threads = int64_t{policy.threads_per_row} * policy.cluster;
    const int block = policy.threads_per_row * policy.rows_per_block;
    EXPECT_GE(threads * policy.packs, row.packs) << row.packs;
    EXPECT_LE(block, kMaxThreads);
    EXPECT_EQ(block % kWarp, 0) << row.packs;
    EXPECT_TRUE(policy.threads_per_row % kWarp == 0 || kWarp % policy.threads_per_row == 0);
    EXPECT_TRUE(policy.rows_per_block == 1 || policy.cluster == 1);
    if (row.has_edges) {
      EXPECT_GE(threads, 14);
    }
  }
};

TEST_P(SoftmaxPolicyTest, EveryRowIsHeldOrLeftToTheLoopingKernels) {
  const auto [sm, has_edges] = GetParam();
  for (int64_t packs = 0; packs <= 70000; packs += packs < 5000 ? 1 : 997) {
    const RowShape row = {.packs = packs, .has_edges = has_edges};
    const Policy forward = SelectForward(sm, row);
    const Policy backward = SelectBackward(sm, row);
    ExpectHolds(forward, row);
    ExpectHolds(backward, row);
    // 64 registers: 512 threads in two blocks, or 1,024 in one.
    EXPECT_TRUE(forward.packs == 8 || forward.threads_per_row * forward.rows_per_block <= 512);
    EXPECT_LE(SharedBytes(backward), 128 * 1024);
    EXPECT_EQ(backward.shared_dy, backward.packs == 8);
    EXPECT_LE(forward.cluster, sm >= 90 ? kMaxCluster : 1);
    EXPECT_TRUE(!backward.shared_dy || (sm >= 90 && sm < 120));
    EXPECT_EQ(forward.packs != 0, packs <= (sm >= 90 ? 65536 : 8192)) << packs;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SoftmaxPolicyTest,
                         ::testing::Combine(::testing::Values(80, 86, 89, 90, 100, 120),
                                            ::testing::Bool()));

TEST(SoftmaxLoopingPolicyTest, BlocksAreOfWholeWarps) {
  for (const int64_t cols : {1, 1024, 1025, 1 << 30}) {
    const Policy policy = SelectLooping(cols);
    EXPECT_EQ(policy.packs, 0);
    EXPECT_LE(policy.threads_per_row * policy.rows_per_block, 512);
  }
}

}  // namespace
}  // namespace fuseboard::softmax
