#include "profiler/window_session.h"

#include <gmock/gmock.h>

#include "tests/testing/fake_cupti.h"

namespace fuseboard::profiler {
namespace {

using ::fuseboard::testing::Copy;
using ::fuseboard::testing::FakeCupti;
using ::fuseboard::testing::Kernel;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::string Message(const Status& status) { return std::string(status.message()); }

class WindowSessionTest : public ::testing::Test {
 protected:
  FakeCupti cupti_;
  WindowSession session_{&cupti_};
};

TEST_F(WindowSessionTest, MakingASessionTouchesNothing) { EXPECT_THAT(cupti_.Calls(), IsEmpty()); }

TEST_F(WindowSessionTest, CountsWhatRanBetweenStartAndStop) {
  ASSERT_TRUE(session_.Start().ok());
  cupti_.Run(Kernel("gemm", 10, 20));
  cupti_.Run(Copy(20, 21, 8));
  const auto finished = session_.Stop();
  ASSERT_TRUE(finished.ok()) << finished.status().message();
  EXPECT_TRUE(finished->completeness.ok());
  EXPECT_EQ(finished->report.totals.launches, 1);
  EXPECT_EQ(finished->report.totals.copies, 1);
}

TEST_F(WindowSessionTest, WhatRanBeforeOrAfterIsNotCounted) {
  cupti_.Run(Kernel("before", 1, 2));
  ASSERT_TRUE(session_.Start().ok());
  cupti_.Run(Kernel("inside", 3, 4));
  EXPECT_EQ(session_.Stop()->report.totals.launches, 1);
  cupti_.Run(Kernel("after", 5, 6));
  ASSERT_TRUE(session_.Start().ok());
  EXPECT_EQ(session_.Stop().status().code(), StatusCode::kNotFound);
}

TEST_F(WindowSessionTest, EnablesKernelsCopiesAndMemsetsOnlyWhileOpen) {
  ASSERT_TRUE(session_.Start().ok());
  EXPECT_THAT(cupti_.Enabled(), UnorderedElementsAre(ActivityKind::kKernel, ActivityKind::kCopy,
                                                     ActivityKind::kMemset));
  cupti_.Run(Kernel("a", 1, 2));
  ASSERT_TRUE(session_.Stop().ok());
  EXPECT_THAT(cupti_.Enabled(), IsEmpty());
  EXPECT_FALSE(cupti_.HasSink());
}

TEST_F(WindowSessionTest, DoesNotHoldTheSubscriptionWhileStepsRunNorAfter) {
  ASSERT_TRUE(session_.Start().ok());
  EXPECT_FALSE(cupti_.Subscribed());
  cupti_.Run(Kernel("a", 1, 2));
  ASSERT_TRUE(session_.Stop().ok());
  EXPECT_FALSE(cupti_.Subscribed());
}

TEST_F(WindowSessionTest, AnotherClientMakesStartBusyUntilItReleases) {
  cupti_.OtherSubscribes();
  EXPECT_EQ(session_.Check().code(), StatusCode::kUnavailable);
  const Status busy = session_.Start();
  EXPECT_EQ(busy.code(), StatusCode::kUnavailable);
  EXPECT_EQ(Message(busy), "another profiler holds CUPTI: nsys");
  EXPECT_THAT(cupti_.Enabled(), IsEmpty());

  cupti_.OtherUnsubscribes();
  EXPECT_TRUE(session_.Check().ok());
  ASSERT_TRUE(session_.Start().ok());
  cupti_.Run(Kernel("a", 1, 2));
  EXPECT_TRUE(session_.Stop().ok());
}

TEST_F(WindowSessionTest, AClientThatComesDuringTheWindowKeepsItsSettings) {
  ASSERT_TRUE(session_.Start().ok());
  cupti_.Run(Kernel("a", 1, 2));
  cupti_.OtherSubscribes();
  EXPECT_EQ(session_.Stop().status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(cupti_.Enabled().empty()) << "switching kinds off would silence the other client";
  EXPECT_FALSE(cupti_.HasSink());
  // The window is closed all the same.
  cupti_.OtherUnsubscribes();
  EXPECT_TRUE(session_.Start().ok());
}

TEST_F(WindowSessionTest, AWindowWithoutKernelsIsAnErrorNotAZero) {
  ASSERT_TRUE(session_.Start().ok());
  cupti_.Run(Copy(1, 2, 8));
  const auto finished = session_.Stop();
  EXPECT_EQ(finished.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Message(finished.status()),
            "window holds no kernel record (1 copies, 0 dropped records)");
}

TEST_F(WindowSessionTest, DropsMakeAWindowIncompleteButReported) {
  ASSERT_TRUE(session_.Start().ok());
  cupti_.Run(Kernel("a", 1, 2));
  cupti_.Run(Kernel("unfinished", 3, 0));
  cupti_.Drop(5);
  const auto finished = session_.Stop();
  ASSERT_TRUE(finished.ok());
  EXPECT_EQ(finished->completeness.code(), StatusCode::kDataLoss);
  EXPECT_EQ(Message(finished->completeness),
            "window is incomplete: 5 records dropped, 1 unfinished");
  EXPECT_EQ(finished->report.dropped_records, 5);
}

TEST_F(WindowSessionTest, ADropCounterThatCannotBeReadIsAnErrorNotZeroDrops) {
  ASSERT_TRUE(session_.Start().ok());
  cupti_.Run(Kernel("a", 1, 2));
  cupti_.FailNext("TakeDropped", InternalError("cannot read"));
  EXPECT_EQ(session_.Stop().status().code(), StatusCode::kInternal);
  EXPECT_THAT(cupti_.Enabled(), IsEmpty());
  EXPECT_FALSE(cupti_.Subscribed());
}

TEST_F(WindowSessionTest, AFailedStartLeavesNothingEnabledAndCanBeRepeated) {
  cupti_.FailNext("Enable", FailedPreconditionError("no permission"));
  EXPECT_EQ(session_.Start().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(cupti_.Enabled(), IsEmpty());
  EXPECT_FALSE(cupti_.HasSink());
  EXPECT_TRUE(session_.Start().ok());
}

TEST_F(WindowSessionTest, CallsThatDoNotFitTheStateSaySo) {
  EXPECT_EQ(session_.Mark("step 0").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session_.Stop().status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session_.Abandon(false).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(session_.Start().ok());
  EXPECT_EQ(session_.Start().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session_.Check().code(), StatusCode::kInvalidArgument);
}

TEST_F(WindowSessionTest, MarksCutTheWindowIntoPhases) {
  ASSERT_TRUE(session_.Start().ok());
  cupti_.SetNow(100);
  ASSERT_TRUE(session_.Mark("step 7").ok());
  cupti_.SetNow(200);
  ASSERT_TRUE(session_.Mark("step 8").ok());
  cupti_.Run(Kernel("a", 100, 150));
  cupti_.Run(Kernel("a", 201, 202));
  cupti_.Run(Kernel("a", 203, 204));
  const auto finished = session_.Stop();
  ASSERT_EQ(finished->report.phases.size(), 2U);
  EXPECT_EQ(finished->report.phases[0].totals.launches, 1);
  EXPECT_EQ(finished->report.phases[1].totals.launches, 2);
}

TEST_F(WindowSessionTest, AbandonSwitchesOffUnlessAnotherClientOwnsTheSettings) {
  ASSERT_TRUE(session_.Start().ok());
  ASSERT_TRUE(session_.Abandon(/*leave_enabled=*/true).ok());
  EXPECT_FALSE(cupti_.Enabled().empty());
  ASSERT_TRUE(session_.Start().ok());
  ASSERT_TRUE(session_.Abandon(/*leave_enabled=*/false).ok());
  EXPECT_THAT(cupti_.Enabled(), IsEmpty());
}

TEST(WindowSessionLifetimeTest, AnOpenWindowIsSwitchedOffWithItsSession) {
  FakeCupti cupti;
  {
    WindowSession session(&cupti);
    ASSERT_TRUE(session.Start().ok());
  }
  EXPECT_THAT(cupti.Enabled(), IsEmpty());
  EXPECT_FALSE(cupti.HasSink());
}

}  // namespace
}  // namespace fuseboard::profiler
