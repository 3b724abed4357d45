#include "kernels/modulated_rms_norm/modulated_rms_norm_policy.h"

#include <gtest/gtest.h>

#include "kernels/modulated_rms_norm/modulated_rms_norm_cpu.h"

namespace fuseboard::modulated_rms_norm {
namespace {

static_assert(SlicesOf(/*group_rows=*/0, 1) == Slices{1, 0});
static_assert(SlicesOf(/*group_rows=*/10, 4) == Slices{4, 3});
static_assert(SlicesOf(/*group_rows=*/3, 8) == Slices{3, 1});
// More groups than blocks, by far: none is cut.
static_assert(SelectSlices(100000, 16, 1, 264, true).per_group == 1);
// One group keeps all blocks busy.
static_assert(SelectSlices(1, /*group_rows=*/16896, 1, 264, true).per_group >= 264);

// Few rows are not worth a launch that adds up their slices, unless there is one anyway.
static_assert(SelectSlices(16, /*group_rows=*/4, 1, 264, /*has_dweight=*/true).per_group == 4);
static_assert(SelectSlices(16, /*group_rows=*/4, 1, 264, /*has_dweight=*/false).per_group == 1);

// Few rows have kernels of their own, up to where these are quicker.
static_assert(SelectFewForward(/*rows=*/64, /*row_packs=*/512).threads_per_row == 256);
static_assert(SelectFewForward(64, 100).threads_per_row == 128);  // A pack to each.
static_assert(!SelectFewForward(513, 512).few_rows && !SelectFewForward(1, 31).few_rows &&
              !SelectFewForward(1, 1025).few_rows);
static_assert(SelectFewBackward(64, 512).packs == 2 && SelectFewBackward(2048, 513).packs == 4);
static_assert(!SelectFewBackward(2049, 512).few_rows && !SelectFewBackward(1, 1025).few_rows);

// Lanes that share a group: as many as have a batch of its rows, while all groups have lanes.
static_assert(PartBits(/*groups=*/16, /*group_rows=*/4, /*lanes=*/32, /*batch=*/4) == 0);
static_assert(PartBits(1, 4, 32, 4) == 0 && PartBits(1, 5, 32, 4) == 1);
static_assert(PartBits(1, 1000, 32, 4) == 5 && PartBits(3, 1000, 32, 4) == 3);
static_assert(PartBits(33, 1000, 32, 4) == 0);

// A row of scale per row has no second row to share it.
static_assert(SelectRowsForm(/*row_packs=*/512, /*group_rows=*/1).rows == 1);
static_assert(SelectRowsForm(512, 1024) == kTwoRows && ThreadsOf(kTwoRows, 512) == 256);
static_assert(SelectRowsForm(513, 1024) == kTwoWideRows && ThreadsOf(kTwoWideRows, 513) == 160);
static_assert(SelectRowsForm(1025, 1024) == kTwoWidestRows && SelectRowsForm(1025, 1).rows == 0);
static_assert(SelectRowsForm(64, 1024).rows == 0 && SelectRowsForm(2049, 1024).rows == 0);

void ExpectCovered(const Slices& slices, int64_t group_rows) {
  EXPECT_GE(slices.per_group, 1);
  EXPECT_GE(slices.per_group * slices.rows, group_rows);
  // Each slice has rows, unless there are none.
  EXPECT_TRUE(group_rows == 0 || slices.per_group <= group_rows);
}

TEST(ModulatedRmsNormPolicyTest, SlicesCoverAGroupAndNoneIsEmpty) {
  for (const int64_t groups : {1, 2, 7, 300, 5000}) {
    for (const int64_t group_rows : {0, 1, 2, 31, 32, 33, 1000, 4097}) {
      for (const int rows_per_block : {1, 8, 256}) {
        for (const bool has_dweight : {true, false}) {
          ExpectCovered(SelectSlices(groups, group_rows, rows_per_block, 264, has_dweight),
                        group_rows);
        }
      }
      const CpuPlan plan = CpuPlanOf(groups, group_rows);
      ExpectCovered(plan.slices, group_rows);
      EXPECT_TRUE(group_rows == 0 || (plan.slices.per_group - 1) * plan.slices.rows < group_rows);
      EXPECT_GE(plan.parts * plan.part_slices, plan.slice_count);
      EXPECT_LT((plan.parts - 1) * plan.part_slices, plan.slice_count);
    }
  }
}

TEST(ModulatedRmsNormPolicyTest, FewRowsAreCoveredByWholeWarps) {
  for (int64_t row_packs = 1; row_packs < 1100; ++row_packs) {
    const rms_norm::Policy forward = SelectFewForward(kMostFewForwardRows, row_packs);
    if (forward.few_rows) {
      EXPECT_GE(forward.packs * forward.threads_per_row, row_packs);
      EXPECT_EQ(forward.threads_per_row % rms_norm::kWarp, 0);
      EXPECT_LE(forward.threads_per_row, rms_norm::kFewRowsMaxThreads);
    }
    const rms_norm::Policy backward = SelectFewBackward(1, row_packs);
    if (backward.few_rows) {
      EXPECT_GE(backward.packs * backward.threads_per_row, row_packs);
    }
  }
}

// A group that takes several warps is one of so few that a thread has one column of each.
TEST(ModulatedRmsNormPolicyTest, GroupsOfSeveralWarpsAllHaveLanes) {
  constexpr int kLanes = kFewRowsThreads / rms_norm::kFewRowsTile;
  for (const int64_t groups : {1, 2, 3, 4, 5, 8, 31, 32, 33, 2048}) {
    for (const int64_t group_rows : {1, 2, 5, 8, 9, 64, 2048}) {
      const int bits = PartBits(groups, group_rows, kLanes, kFewRowsBatch);
      EXPECT_TRUE(bits == 0 || groups << bits <= kLanes);
    }
  }
}

// What the kernel's launch bounds leave registers for.
TEST(ModulatedRmsNormPolicyTest, BlocksKeepTheKernelsBounds) {
  for (const int sm : {80, 86, 90, 120}) {
    for (int64_t row_packs = 1; row_packs < 20000; row_packs += row_packs < 100 ? 1 : 37) {
      const rms_norm::Policy policy = SelectBackward(sm, row_packs, 2, 4);
      if (policy.packs == 0) continue;
      EXPECT_LE(policy.packs, 4);
      const int threads = policy.threads_per_row * policy.rows_per_block;
      EXPECT_LE(threads, policy.packs == 4 ? 512 : 256);
      EXPECT_TRUE(policy.shared_weight || policy.rows_per_block == 1);
      EXPECT_GE(Resident(policy, 132), 1);
      const rms_norm::Policy of_slices = SelectSlicesBackward(sm, row_packs, 2, 4);
      EXPECT_LE(of_slices.threads_per_row * of_slices.rows_per_block, 512);
    }
  }
}

// The widest rows of 16-bit floats that a cluster takes, and where wide rows begin.
TEST(ModulatedRmsNormPolicyTest, WideRowsAndWhatIsKeptOfThemFitABlock) {
  for (const int bytes : {2, 4}) {
    for (int64_t row_packs = 1025; row_packs <= 32768; row_packs += 97) {
      for (const bool forward : {true, false}) {
        const rms_norm::WideForm form =
            forward ? WideForwardForm(bytes) : WideBackwardForm(bytes, row_packs);
        const rms_norm::Policy policy = rms_norm::CutWide(90, row_packs, form);
        ASSERT_NE(policy.packs, 0) << row_packs;
        EXPECT_EQ(policy.packs > 1, IsLongSlice(row_packs));
        EXPECT_GE(policy.stages, policy.packs + 2);
        EXPECT_LE(rms_norm::WideSharedBytes(policy, row_packs, form) + rms_norm::kWideStatic,
                  227 * 1024);
      }
    }
    EXPECT_EQ(SelectWideForward(90, 1024, bytes, 64).packs, 0);
    EXPECT_EQ(SelectWideBackward(90, 32769, bytes).packs, 0);
    EXPECT_EQ(SelectWideForward(90, 8192, bytes, 1).packs, 0);
    EXPECT_EQ(SelectWideForward(90, 2048, bytes, 8).packs, 0);  // Two rows to a block.
    EXPECT_EQ(SelectWideForward(90, 2048, bytes, 64).cluster, 2);
    EXPECT_EQ(SelectWideForward(90, 8192, bytes, 2).cluster, 8);
    EXPECT_EQ(SelectWideBackward(80, 8192, bytes).packs, 0);
  }
}

}  // namespace
}  // namespace fuseboard::modulated_rms_norm
