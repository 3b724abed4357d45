#include "server/jobs/report_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/fake_clock.h"
#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::FakeClock;
using ::fuseboard::testing::FromText;
using ::fuseboard::testing::SampleInstance;
using ::fuseboard::testing::StatusIs;

v1::ReportWindowRequest Report(const std::string& window) {
  auto report = FromText<v1::ReportWindowRequest>(
      R"(job_name: "train" device_name: "H100" window { steps: 5 } )");
  report.mutable_window()->MergeFrom(FromText<v1::Window>(window));
  report.set_instance_id(SampleInstance(1));
  return report;
}

constexpr char kNative[] = R"(variant: VARIANT_NATIVE
    launches_per_step { value: 900 method: METHOD_CUPTI samples: 5 }
    peak_bytes { value: 5000 method: METHOD_ALLOCATOR samples: 5 })";
constexpr char kPlan[] = R"(variant: VARIANT_PLAN
    launches_per_step { value: 600 method: METHOD_CUPTI samples: 5 }
    peak_bytes { value: 5600 method: METHOD_ALLOCATOR samples: 5 })";

TEST(ComputeSavingsTest, DifferenceOfWhatBothSidesMeasuredEvenIfItIsALoss) {
  const v1::Savings savings = ComputeSavings({Report(kPlan), Report(kNative)});
  EXPECT_EQ(savings.launches_per_step_saved(), 300);
  EXPECT_EQ(savings.peak_bytes_saved(), -600);
  EXPECT_FALSE(savings.has_step_ms_saved());
  EXPECT_EQ(savings.device_name(), "H100");
}

TEST(ComputeSavingsTest, QuantityThatOneSideLacksIsAbsentAndNotZero) {
  v1::ReportWindowRequest plan = Report(kPlan);
  plan.mutable_window()->clear_launches_per_step();
  const v1::Savings savings = ComputeSavings({plan, Report(kNative)});
  EXPECT_FALSE(savings.has_launches_per_step_saved());
  EXPECT_TRUE(savings.has_peak_bytes_saved());
}

TEST(ComputeSavingsTest, NumbersGotInTwoWaysOrWithoutSamplesAreNotCompared) {
  v1::ReportWindowRequest plan = Report(kPlan);
  plan.mutable_window()->mutable_launches_per_step()->set_method(v1::METHOD_OPERATOR_COUNT);
  plan.mutable_window()->mutable_peak_bytes()->set_samples(0);
  const v1::Savings savings = ComputeSavings({plan, Report(kNative)});
  EXPECT_FALSE(savings.has_launches_per_step_saved());
  EXPECT_FALSE(savings.has_peak_bytes_saved());
}

TEST(ComputeSavingsTest, WindowWithDropsOrAnErrorProvesNothing) {
  v1::ReportWindowRequest dropped = Report(kPlan);
  dropped.mutable_window()->set_dropped_records(1);
  v1::ReportWindowRequest failed = Report(kPlan);
  failed.mutable_window()->set_error("another profiler holds CUPTI");
  for (const auto& plan : {dropped, failed}) {
    const v1::Savings savings = ComputeSavings({plan, Report(kNative)});
    EXPECT_FALSE(savings.has_plan());
    EXPECT_FALSE(savings.has_launches_per_step_saved());
  }
}

TEST(ComputeSavingsTest, TwoDevicesOrRanksAreNotCompared) {
  v1::ReportWindowRequest plan = Report(kPlan);
  plan.set_device_name("A100");
  EXPECT_FALSE(ComputeSavings({plan, Report(kNative)}).has_launches_per_step_saved());
  plan = Report(kPlan);
  plan.set_rank(1);
  EXPECT_FALSE(ComputeSavings({plan, Report(kNative)}).has_launches_per_step_saved());
}

TEST(ReportStoreTest, MalformedOrUnknownReportsAreRefused) {
  const FakeClock clock;
  const ProcessTable processes(&clock, ProcessTable::Options{});
  ReportStore store(&processes, ReportStore::Options{});
  EXPECT_THAT(store.Report(Report(kPlan)), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store.Report(Report("")), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 "window.variant: 0, want native or plan"));
  v1::ReportWindowRequest report = Report(kPlan);
  report.mutable_window()->mutable_peak_bytes()->set_value(-1);
  EXPECT_THAT(store.Report(report), StatusIs(absl::StatusCode::kInvalidArgument,
                                             "window.peak_bytes.value: -1, want a number of at "
                                             "least 0"));
}

}  // namespace
}  // namespace fuseboard
