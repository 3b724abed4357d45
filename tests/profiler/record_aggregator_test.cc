#include "profiler/record_aggregator.h"

#include <gmock/gmock.h>

#include <thread>

#include "profiler/report_json.h"
#include "tests/testing/fake_cupti.h"

namespace fuseboard::profiler {
namespace {

using ::fuseboard::testing::Copy;
using ::fuseboard::testing::Kernel;
using ::fuseboard::testing::Memset;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RecordAggregatorTest, CountsByReadableNameMostFrequentFirst) {
  RecordAggregator aggregator;
  aggregator.Add(Kernel("gemm", 10, 50));
  aggregator.Add(Kernel("_Z3addPfS_i", 50, 60));
  aggregator.Add(Kernel("_Z3addPfS_i", 60, 65));
  aggregator.Add(Kernel("_Z3addPfS_f", 70, 71));  // Another signature, the same name to people.
  const WindowReport report = aggregator.Report();
  EXPECT_THAT(report.kernels, ElementsAre(KernelTotals{"add", 3, 16}, KernelTotals{"gemm", 1, 40}));
  EXPECT_EQ(report.totals.launches, 4);
  EXPECT_EQ(report.totals.device_ns, 56);
}

TEST(RecordAggregatorTest, BusyTimeIsTheUnionOfIntervalsPerDevice) {
  RecordAggregator aggregator;
  aggregator.Add(Kernel("a", 100, 200));
  aggregator.Add(Kernel("b", 150, 180));  // Inside a.
  aggregator.Add(Kernel("c", 190, 220));  // Overlaps a's end.
  aggregator.Add(Kernel("d", 300, 310));
  ActivityRecord other_device = Kernel("e", 100, 140);
  other_device.device_id = 1;
  aggregator.Add(other_device);
  EXPECT_EQ(aggregator.Report().totals.busy_ns, 120 + 10 + 40);
  EXPECT_EQ(aggregator.Report().totals.device_ns, 100 + 30 + 30 + 10 + 40);
}

TEST(RecordAggregatorTest, CopiesAndMemsetsAreNoLaunches) {
  RecordAggregator aggregator;
  aggregator.Add(Copy(1, 2, 4096));
  aggregator.Add(Copy(3, 4, 100));
  aggregator.Add(Memset(5, 6));
  const Totals totals = aggregator.Report().totals;
  EXPECT_EQ(totals.launches, 0);
  EXPECT_EQ(totals.copies, 2);
  EXPECT_EQ(totals.copied_bytes, 4196);
  EXPECT_EQ(totals.memsets, 1);
}

TEST(RecordAggregatorTest, AttributesToThePhaseThatHadBegun) {
  RecordAggregator aggregator;
  aggregator.Add(Kernel("before", 5, 6));
  ASSERT_TRUE(aggregator.Mark("step 3", 10).ok());
  ASSERT_TRUE(aggregator.Mark("step 4", 20).ok());
  // Records come later than marks, and in no order.
  aggregator.Add(Kernel("b", 20, 25));
  aggregator.Add(Kernel("a", 10, 19));
  aggregator.Add(Kernel("c", 99, 100));
  const WindowReport report = aggregator.Report();
  ASSERT_EQ(report.phases.size(), 2U);
  EXPECT_EQ(report.phases[0].name, "step 3");
  EXPECT_EQ(report.phases[0].totals.launches, 1);
  EXPECT_EQ(report.phases[0].totals.device_ns, 9);
  EXPECT_EQ(report.phases[1].totals.launches, 2);
  EXPECT_EQ(report.totals.launches, 4);
}

TEST(RecordAggregatorTest, UnfinishedRecordsCountAsLaunchesWithoutTime) {
  RecordAggregator aggregator;
  ASSERT_TRUE(aggregator.Mark("step 0", 1).ok());
  aggregator.Add(Kernel("a", 0, 0));
  const WindowReport report = aggregator.Report();
  EXPECT_EQ(report.unfinished_records, 1);
  EXPECT_EQ(report.totals.launches, 1);
  EXPECT_EQ(report.totals.busy_ns, 0);
  EXPECT_EQ(report.phases[0].totals.launches, 0);
}

TEST(RecordAggregatorTest, CountsGraphLaunches) {
  RecordAggregator aggregator;
  ActivityRecord record = Kernel("a", 1, 2);
  record.from_graph = true;
  aggregator.Add(record);
  aggregator.Add(Kernel("a", 3, 4));
  EXPECT_EQ(aggregator.Report().totals.graph_launches, 1);
}

TEST(RecordAggregatorTest, BeyondItsBoundRecordsCountAsDropped) {
  RecordAggregator aggregator;
  for (size_t i = 0; i < RecordAggregator::kMaxRecords + 3; ++i) aggregator.Add(Kernel("a", 1, 2));
  aggregator.AddDropped(4);
  const WindowReport report = aggregator.Report();
  EXPECT_EQ(report.totals.launches, static_cast<int64_t>(RecordAggregator::kMaxRecords));
  EXPECT_EQ(report.dropped_records, 7);
}

TEST(RecordAggregatorTest, RefusesMarksBeyondItsBound) {
  RecordAggregator aggregator;
  for (size_t i = 0; i < RecordAggregator::kMaxMarks; ++i) {
    ASSERT_TRUE(aggregator.Mark("step", i).ok());
  }
  EXPECT_EQ(aggregator.Mark("one more", 1).code(), StatusCode::kResourceExhausted);
}

TEST(RecordAggregatorTest, TakesRecordsFromSeveralThreads) {
  RecordAggregator aggregator;
  auto add = [&aggregator] {
    for (int i = 0; i < 1000; ++i) aggregator.Add(Kernel("a", 1, 2));
  };
  std::thread first(add);
  std::thread second(add);
  first.join();
  second.join();
  EXPECT_EQ(aggregator.Report().totals.launches, 2000);
}

TEST(ReportJsonTest, EscapesWhatANameMayHold) {
  WindowReport report;
  report.kernels.push_back({"say \"hi\"\\ \n\xff", 1, 2});
  EXPECT_THAT(ReportJson(report),
              HasSubstr(R"({"name":"say \"hi\"\\ ??","count":1,"device_ns":2})"));
}

TEST(ReportJsonTest, AnEmptyReportHasAllMembers) {
  EXPECT_EQ(
      ReportJson(WindowReport{}),
      R"({"launches":0,"device_ns":0,"busy_ns":0,"copies":0,"memsets":0,"graph_launches":0,)"
      R"("copied_bytes":0,"dropped_records":0,"unfinished_records":0,"kernels":[],"phases":[]})");
}

}  // namespace
}  // namespace fuseboard::profiler
