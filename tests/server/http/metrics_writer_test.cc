#include "server/http/metrics_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fuseboard {
namespace {

TEST(MetricsWriterTest, WritesHelpAndTypeOncePerFamily) {
  MetricsWriter writer;
  writer.Family("fuseboard_a", MetricType::kGauge, "About a.");
  writer.Sample({}, 1);
  writer.Sample({{"x", "y"}, {"z", ""}}, 2.5);
  EXPECT_EQ(writer.Text(),
            "# HELP fuseboard_a About a.\n# TYPE fuseboard_a gauge\nfuseboard_a 1\n"
            "fuseboard_a{x=\"y\",z=\"\"} 2.5\n");
}

TEST(MetricsWriterTest, FamilyWithoutSampleLeavesNoTrace) {
  MetricsWriter writer;
  writer.Family("fuseboard_a", MetricType::kCounter, "About a.");
  writer.Family("fuseboard_b", MetricType::kCounter, "About b.");
  writer.Sample({}, 0);
  EXPECT_EQ(writer.Text(),
            "# HELP fuseboard_b About b.\n# TYPE fuseboard_b counter\nfuseboard_b 0\n");
}

TEST(MetricsWriterTest, EscapesWhatWouldBreakALine) {
  MetricsWriter writer;
  writer.Family("a", MetricType::kGauge, "one\\two\nthree \"four\"");
  writer.Sample({{"l", "one\\two\nthree \"four\""}}, 1);
  EXPECT_EQ(writer.Text(),
            "# HELP a one\\\\two\\nthree \"four\"\n# TYPE a gauge\n"
            "a{l=\"one\\\\two\\nthree \\\"four\\\"\"} 1\n");
}

TEST(MetricsWriterTest, HistogramIsCumulativeAndEndsAtInfinity) {
  MetricsWriter writer;
  writer.Family("a", MetricType::kHistogram, "About a.");
  writer.Histogram({{"m", "x"}}, {0.5, 2}, {3, 0, 4}, 17.25);
  EXPECT_EQ(writer.Text(),
            "# HELP a About a.\n# TYPE a histogram\na_bucket{m=\"x\",le=\"0.5\"} 3\n"
            "a_bucket{m=\"x\",le=\"2\"} 3\na_bucket{m=\"x\",le=\"+Inf\"} 7\n"
            "a_sum{m=\"x\"} 17.25\na_count{m=\"x\"} 7\n");
}

TEST(FormatMetricValueTest, ReadsBackTheSame) {
  EXPECT_EQ(FormatMetricValue(0), "0");
  EXPECT_EQ(FormatMetricValue(-3), "-3");
  EXPECT_EQ(FormatMetricValue(1234567890123), "1234567890123");
  EXPECT_EQ(FormatMetricValue(0.1), "0.1");
  EXPECT_EQ(FormatMetricValue(1e300), "1e+300");
  EXPECT_EQ(FormatMetricValue(std::numeric_limits<double>::infinity()), "+Inf");
  EXPECT_EQ(FormatMetricValue(-std::numeric_limits<double>::infinity()), "-Inf");
  EXPECT_EQ(FormatMetricValue(std::nan("")), "NaN");
}

}  // namespace
}  // namespace fuseboard
