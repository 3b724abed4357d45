#include "server/rpc/call_stats.h"

#include <gtest/gtest.h>

namespace fuseboard {
namespace {

TEST(CallStatsTest, CountsByMethodAndCode) {
  CallStats stats;
  stats.Record("B/Y", absl::StatusCode::kOk, absl::Milliseconds(1));
  stats.Record("A/X", absl::StatusCode::kNotFound, absl::Milliseconds(2));
  stats.Record("A/X", absl::StatusCode::kNotFound, absl::Milliseconds(3));
  const auto rows = stats.Read();
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0].method, "A/X");
  EXPECT_EQ(rows[0].code, "NOT_FOUND");
  EXPECT_DOUBLE_EQ(rows[0].sum_seconds, 0.005);
  EXPECT_EQ(rows[1].code, "OK");
}

TEST(CallStatsTest, BoundBelongsToItsBucketAndTheSlowestToTheLast) {
  CallStats stats;
  stats.Record("A/X", absl::StatusCode::kOk, absl::Seconds(CallStats::Bounds()[1]));
  stats.Record("A/X", absl::StatusCode::kOk, absl::Hours(1));
  const auto rows = stats.Read();
  EXPECT_EQ(rows[0].buckets[1], 1);
  EXPECT_EQ(rows[0].buckets.back(), 1);
  EXPECT_EQ(rows[0].buckets.size(), CallStats::Bounds().size() + 1);
}

}  // namespace
}  // namespace fuseboard
