#include "server/command_line/near_name.h"

#include <gtest/gtest.h>

namespace fuseboard {
namespace {

TEST(EditDistanceTest, CountsEachKindOfSlipOnce) {
  EXPECT_EQ(EditDistance("rms_norm", "rms_norm"), 0);
  EXPECT_EQ(EditDistance("rms_nrom", "rms_norm"), 1);  // Swap.
  EXPECT_EQ(EditDistance("rms_nor", "rms_norm"), 1);
  EXPECT_EQ(EditDistance("rms_norms", "rms_norm"), 1);
  EXPECT_EQ(EditDistance("rms-norm", "rms_norm"), 1);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("abc", ""), 3);
}

TEST(NearNameTest, SuggestsTheNearestWithinAThirdOfItsLength) {
  const std::vector<std::string> kernels = {"cross_entropy", "rms_norm", "swiglu"};
  EXPECT_EQ(NearName("rms_nrom", kernels), "rms_norm");
  EXPECT_EQ(NearName("swigul", kernels), "swiglu");
  EXPECT_EQ(NearName("attention", kernels), "");
  EXPECT_EQ(NearName("x", kernels), "");
  EXPECT_EQ(NearName("anything", {}), "");
}

TEST(NearNameTest, TiesGoToTheFirst) { EXPECT_EQ(NearName("aaab", {"aaac", "aaad"}), "aaac"); }

}  // namespace
}  // namespace fuseboard
