#include "server/plans/plan_hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "absl/synchronization/notification.h"
#include "tests/testing/running_core.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::MakeKill;
using ::fuseboard::testing::NodeScope;
using ::fuseboard::testing::RunningCore;
using ::fuseboard::testing::SampleRequest;

class PlanHubTest : public ::testing::Test {
 protected:
  std::unique_ptr<PlanWatch> Watch(int64_t known_revision = 0) {
    v1::WatchPlanRequest request;
    *request.mutable_request() = SampleRequest();
    request.set_known_revision(known_revision);
    request.set_known_store_id(core_.store->store_id());
    return hub_.Watch(request, [this] { ++ready_; });
  }
  void Kill(const std::string& operation) {
    const v1::Kill kill = MakeKill(operation, NodeScope());
    ASSERT_THAT(core_.store->Put(KillKey(operation, NodeScope()), kill.SerializeAsString(), {}),
                IsOk());
  }
  void Deny(const std::string& operation) {
    chmod(core_.folder.Write("deny", operation).c_str(), 0644);
  }

  RunningCore core_;
  int ready_ = 0;
  PlanHub hub_{{&core_.clock, core_.snapshots.get(), &core_.processes}};
};

TEST_F(PlanHubTest, FirstPlanIsThereAtOnceAndIsTakenOnce) {
  const auto watch = Watch();
  const auto plan = watch->TakePlan();
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->decisions(0).kind(), v1::DECISION_KIND_KERNEL);
  EXPECT_EQ(watch->TakePlan(), nullptr);
  EXPECT_EQ(ready_, 0);
}

TEST_F(PlanHubTest, PlanThatTheCallerKnowsIsLeftOut) {
  const auto watch = Watch(core_.Revision());
  EXPECT_EQ(watch->TakePlan(), nullptr);
  const auto other = Watch(core_.Revision() - 1);
  EXPECT_NE(other->TakePlan(), nullptr);
}

TEST_F(PlanHubTest, SlowWatcherGetsTheNewestPlanAndNeverAQueue) {
  const auto watch = Watch();
  watch->TakePlan();
  for (const char* operation : {"swiglu", "rms_norm", "*"}) {
    Kill(operation);
    hub_.PublishNow();
  }
  EXPECT_EQ(ready_, 1);
  const auto plan = watch->TakePlan();
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->revision(), core_.Revision());
  EXPECT_EQ(plan->decisions(0).reason(), "every kernel is killed at node, by alice: a test");
  EXPECT_EQ(watch->TakePlan(), nullptr);
  hub_.PublishNow();
  EXPECT_EQ(ready_, 1);
}

TEST_F(PlanHubTest, DenyFileMakesANewRevision) {
  const auto watch = Watch();
  const auto before = watch->TakePlan();
  Deny("rms_norm");
  hub_.PublishNow();
  const auto after = watch->TakePlan();
  ASSERT_NE(after, nullptr);
  EXPECT_GT(after->revision(), before->revision());
  EXPECT_EQ(after->decisions(0).rule(), v1::RULE_KILL);
  EXPECT_TRUE(core_.snapshots->revision_stands());
}

TEST_F(PlanHubTest, ExpiryGivesTheKernelBack) {
  v1::Kill kill = MakeKill("rms_norm", NodeScope());
  kill.set_expires_at_us(absl::ToUnixMicros(core_.clock.Now() + absl::Seconds(10)));
  ASSERT_THAT(core_.store->Put(KillKey("rms_norm", NodeScope()), kill.SerializeAsString(), {}),
              IsOk());
  const auto watch = Watch();
  EXPECT_EQ(watch->TakePlan()->decisions(0).kind(), v1::DECISION_KIND_NATIVE);
  core_.clock.Advance(absl::Seconds(10));
  hub_.PublishNow();
  const auto plan = watch->TakePlan();
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->decisions(0).kind(), v1::DECISION_KIND_KERNEL);
}

TEST_F(PlanHubTest, EndedWatchIsNotCalled) {
  auto watch = Watch();
  EXPECT_EQ(hub_.WatchCount(), 1);
  watch.reset();
  Kill("*");
  hub_.PublishNow();
  EXPECT_EQ(ready_, 0);
  EXPECT_EQ(hub_.WatchCount(), 0);
}

TEST_F(PlanHubTest, ThreadPublishesAMutationByItself) {
  absl::Notification published;
  v1::WatchPlanRequest request;
  *request.mutable_request() = SampleRequest();
  const auto watch = hub_.Watch(request, [&] { published.Notify(); });
  watch->TakePlan();
  hub_.Start();
  Kill("*");
  EXPECT_TRUE(published.WaitForNotificationWithTimeout(absl::Minutes(1)));
  hub_.Stop();
}

}  // namespace
}  // namespace fuseboard
