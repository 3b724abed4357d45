#include "server/jobs/process_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/common/error_reason.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::FakeClock;
using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::SampleInstance;
using ::fuseboard::testing::SampleRequest;
using ::fuseboard::testing::StatusIs;
using ::testing::ElementsAre;

class ProcessTableTest : public ::testing::Test {
 protected:
  void Register(int number, const std::string& job = "train", int rank = 0) {
    v1::ResolveRequest request = SampleRequest();
    request.mutable_job()->set_name(job);
    request.mutable_job()->set_rank(rank);
    request.mutable_job()->set_instance_id(SampleInstance(number));
    table_.Register(std::make_shared<const v1::ResolveRequest>(request), plan_);
  }
  bool Progress(int number, bool leaving = false) {
    v1::ReportProgressRequest progress;
    progress.set_instance_id(SampleInstance(number));
    progress.set_step(++step_);
    progress.set_leaving(leaving);
    return table_.RecordProgress(progress);
  }
  absl::Status Ack(int number, int64_t revision, const std::string& error) {
    v1::AckPlanRequest ack;
    ack.set_instance_id(SampleInstance(number));
    ack.set_revision(revision);
    ack.set_error(error);
    return table_.RecordAck(ack);
  }

  FakeClock clock_;
  ProcessTable table_{&clock_, {absl::Seconds(30), absl::Hours(1), /*max_processes=*/3}};
  std::shared_ptr<const v1::Plan> plan_ = std::make_shared<const v1::Plan>();
  int64_t step_ = 0;
};

TEST_F(ProcessTableTest, SilentProcessIsGoneJustAfterTheLivenessWindow) {
  Register(1);
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(table_.LiveCount(), 1);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(table_.LiveCount(), 0);
  EXPECT_TRUE(table_.ListProcesses(true).at(0).gone());
  EXPECT_TRUE(Progress(1));
  EXPECT_EQ(table_.LiveCount(), 1);
}

TEST_F(ProcessTableTest, ProgressAndAckAreSignsOfLifeAndASentPlanIsNone) {
  Register(1);
  clock_.Advance(absl::Seconds(29));
  ASSERT_TRUE(Progress(1));
  clock_.Advance(absl::Seconds(29));
  ASSERT_THAT(Ack(1, 1, ""), IsOk());
  clock_.Advance(absl::Seconds(29));
  EXPECT_EQ(table_.LiveCount(), 1);
  table_.RecordSent(SampleInstance(1), plan_);
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(table_.LiveCount(), 0);
}

TEST_F(ProcessTableTest, WallClockThatJumpsKillsNobody) {
  Register(1);
  clock_.SetWallClock(clock_.Now() + absl::Hours(24));
  EXPECT_EQ(table_.LiveCount(), 1);
}

TEST_F(ProcessTableTest, LeavingIsGoneAtOnceAndForgottenAfterAnHour) {
  Register(1);
  EXPECT_TRUE(Progress(1, /*leaving=*/true));
  EXPECT_EQ(table_.LiveCount(), 0);
  EXPECT_EQ(table_.ListProcesses(false).size(), 0U);
  EXPECT_EQ(table_.ListProcesses(true).size(), 1U);
  clock_.Advance(absl::Hours(1) + absl::Seconds(1));
  EXPECT_EQ(table_.ListProcesses(true).size(), 0U);
  Register(2);
  EXPECT_FALSE(table_.Knows(SampleInstance(1)));
}

TEST_F(ProcessTableTest, RefusedPlanLeavesTheOneBeforeApplied) {
  Register(1);
  ASSERT_THAT(Ack(1, 5, ""), IsOk());
  ASSERT_THAT(Ack(1, 6, "digest differs"), IsOk());
  const v1::ProcessStatus status = table_.ListProcesses(false).at(0);
  EXPECT_EQ(status.applied_revision(), 5);
  EXPECT_EQ(status.plan_error(), "digest differs");
}

TEST_F(ProcessTableTest, UnknownProcessesAreTold) {
  EXPECT_FALSE(Progress(1));
  EXPECT_EQ(ReasonOf(Ack(1, 1, "")), "UNKNOWN_INSTANCE");
  EXPECT_THAT(table_.FindByInstance("x"),
              StatusIs(absl::StatusCode::kNotFound, R"(no process has the instance id "x")"));
  const auto job = table_.FindByJob("none");
  EXPECT_THAT(
      job, StatusIs(absl::StatusCode::kNotFound, R"(no running process belongs to a job "none")"));
  EXPECT_EQ(ReasonOf(job.status()), "UNKNOWN_JOB");
}

TEST_F(ProcessTableTest, ListedByJobThenRank) {
  Register(1, "b", 0);
  Register(2, "a", 1);
  Register(3, "a", 0);
  std::vector<std::string> ids;
  for (const auto& request : table_.LiveRequests()) ids.push_back(request->job().instance_id());
  EXPECT_THAT(ids, ElementsAre(SampleInstance(3), SampleInstance(2), SampleInstance(1)));
  EXPECT_EQ((*table_.FindByJob("a"))->job().rank(), 0);
}

TEST_F(ProcessTableTest, BeyondTheLimitTheLongestSilentIsForgotten) {
  for (int number = 1; number <= 3; ++number) {
    Register(number);
    clock_.Advance(absl::Seconds(1));
  }
  ASSERT_TRUE(Progress(1));
  clock_.Advance(absl::Seconds(1));
  Register(4);
  EXPECT_TRUE(table_.Knows(SampleInstance(1)));
  EXPECT_FALSE(table_.Knows(SampleInstance(2)));
}

TEST_F(ProcessTableTest, IdleTimeBeginsWhenTheLastProcessEnds) {
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(table_.IdleTime(), absl::Seconds(5));
  Register(1);
  EXPECT_EQ(table_.IdleTime(), absl::ZeroDuration());
  clock_.Advance(absl::Seconds(40));
  EXPECT_EQ(table_.IdleTime(), absl::Seconds(10));
}

}  // namespace
}  // namespace fuseboard
