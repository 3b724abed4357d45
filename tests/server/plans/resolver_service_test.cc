#include "server/plans/resolver_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "server/common/error_reason.h"
#include "server/resolver/request_check.h"
#include "tests/testing/running_core.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::FromText;
using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::MakeKill;
using ::fuseboard::testing::NodeScope;
using ::fuseboard::testing::RunningCore;
using ::fuseboard::testing::SampleInstance;
using ::fuseboard::testing::SampleRequest;
using ::fuseboard::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

class ResolverServiceTest : public ::testing::Test {
 protected:
  void Kill(const std::string& operation) {
    const v1::Kill kill = MakeKill(operation, NodeScope());
    ASSERT_THAT(core_.store->Put(KillKey(operation, NodeScope()), kill.SerializeAsString(), {}),
                IsOk());
  }
  // The only process, gone or not.
  v1::ProcessStatus Process() {
    const std::vector<v1::ProcessStatus> processes = core_.processes.ListProcesses(true);
    EXPECT_EQ(processes.size(), 1U);
    return processes.at(0);
  }

  RunningCore core_;
  ResolverService service_{
      {core_.snapshots.get(), &core_.processes, /*liveness=*/absl::Milliseconds(1500)}};
};

// ---- Resolve ----

TEST_F(ResolverServiceTest, ResolveAnswersAPlanOfTheCurrentRevisionAndTheLivenessWindow) {
  const auto response = service_.Resolve(SampleRequest());
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->plan().revision(), core_.Revision());
  EXPECT_EQ(response->plan().store_id(), core_.store->store_id());
  ASSERT_EQ(response->plan().decisions_size(), 3);
  EXPECT_EQ(response->plan().decisions(0).site_id(), "norm");
  EXPECT_EQ(response->plan().decisions(0).kind(), v1::DECISION_KIND_KERNEL);
  EXPECT_EQ(response->plan().decisions(1).kind(), v1::DECISION_KIND_NATIVE);
  EXPECT_EQ(response->liveness_seconds(), 1.5);
}

TEST_F(ResolverServiceTest, ResolvedProcessIsRegisteredWithThePlanItWasSent) {
  ASSERT_THAT(service_.Resolve(SampleRequest()), IsOk());
  EXPECT_EQ(Process().job().instance_id(), SampleInstance(0));
  EXPECT_EQ(Process().sent_revision(), core_.Revision());
  EXPECT_EQ(Process().decisions_size(), 3);
  EXPECT_EQ(core_.processes.ActiveSites("rms_norm"), 65);
}

TEST_F(ResolverServiceTest, SecondResolveOfAProcessReplacesItsRequest) {
  v1::ResolveRequest request = SampleRequest();
  ASSERT_THAT(service_.Resolve(request), IsOk());
  request.mutable_sites(0)->set_count(7);
  ASSERT_THAT(service_.Resolve(request), IsOk());
  EXPECT_EQ(Process().site_counts().at("norm"), 7);
}

TEST_F(ResolverServiceTest, MalformedRequestIsRefusedAndRegistersNothing) {
  v1::ResolveRequest request = SampleRequest();
  request.mutable_job()->set_rank(-1);
  const auto response = service_.Resolve(request);
  EXPECT_THAT(response, StatusIs(kInvalid, "job.rank: -1, want 0 to less than 1"));
  EXPECT_EQ(ReasonOf(response.status()), "BAD_REQUEST");
  EXPECT_THAT(core_.processes.ListProcesses(true), IsEmpty());
}

TEST_F(ResolverServiceTest, ProcessWithoutSitesGetsAnEmptyPlan) {
  v1::ResolveRequest request = SampleRequest();
  request.clear_sites();
  const auto response = service_.Resolve(request);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->plan().decisions_size(), 0);
  EXPECT_EQ(core_.processes.LiveCount(), 1);
}

TEST_F(ResolverServiceTest, ChangeIsInTheNextAnswer) {
  Kill("rms_norm");
  const auto response = service_.Resolve(SampleRequest());
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->plan().decisions(0).kind(), v1::DECISION_KIND_NATIVE);
  EXPECT_EQ(response->plan().decisions(0).rule(), v1::RULE_KILL);
}

TEST_F(ResolverServiceTest, LibraryIsLookedAtBeforeItIsHandedOut) {
  ASSERT_EQ(service_.Resolve(SampleRequest())->plan().decisions(0).kind(),
            v1::DECISION_KIND_KERNEL);
  const std::string path = core_.folder.Write("kernels/rms_norm.so", "other code");
  const auto response = service_.Resolve(SampleRequest());
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->plan().decisions(0).kind(), v1::DECISION_KIND_NATIVE);
  EXPECT_EQ(response->plan().decisions(0).rule(), v1::RULE_INCOMPATIBLE);
  EXPECT_THAT(response->plan().decisions(0).reason(), HasSubstr(path + " has 10 bytes, want 8"));
  for (const v1::Artifact& artifact : response->plan().artifacts()) {
    EXPECT_NE(artifact.name(), "rms_norm");
  }
}

// ---- Explain ----

TEST_F(ResolverServiceTest, ExplainedRequestIsAnsweredWithCandidatesAndNotRegistered) {
  v1::ExplainRequest request;
  *request.mutable_request() = SampleRequest();
  const auto response = service_.Explain(request);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->plan().SerializeAsString(),
            service_.Resolve(SampleRequest())->plan().SerializeAsString());
  ASSERT_EQ(response->sites_size(), 3);
  EXPECT_EQ(response->sites(0).site_id(), "norm");
  ASSERT_GE(response->sites(0).candidates_size(), 1);
  EXPECT_EQ(response->request().model_type(), "llama");
  for (const v1::SiteExplanation& site : response->sites()) {
    for (const v1::Candidate& candidate : site.candidates()) EXPECT_NE(candidate.reason(), "");
  }
}

TEST_F(ResolverServiceTest, ExplainRegistersNothing) {
  v1::ExplainRequest request;
  *request.mutable_request() = SampleRequest();
  ASSERT_THAT(service_.Explain(request), IsOk());
  EXPECT_THAT(core_.processes.ListProcesses(true), IsEmpty());
}

TEST_F(ResolverServiceTest, RunningProcessIsExplainedByItsInstanceOrItsJob) {
  core_.AddProcess(1, "train");
  core_.AddProcess(2, "other");
  Kill("*");
  v1::ExplainRequest request;
  request.set_instance_id(SampleInstance(2));
  auto response = service_.Explain(request);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->request().job().name(), "other");
  // As it is now, not as it was when the process asked.
  EXPECT_EQ(response->plan().decisions(0).rule(), v1::RULE_KILL);
  request.Clear();
  request.set_job_name("train");
  response = service_.Explain(request);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->request().job().instance_id(), SampleInstance(1));
}

TEST_F(ResolverServiceTest, UnknownInstanceAndUnknownJobAreNotFound) {
  core_.AddProcess(1, "train");
  v1::ExplainRequest request;
  request.set_instance_id(SampleInstance(2));
  auto response = service_.Explain(request);
  EXPECT_THAT(response, StatusIs(absl::StatusCode::kNotFound,
                                 "no process has the instance id \"" + SampleInstance(2) + "\""));
  EXPECT_EQ(ReasonOf(response.status()), "UNKNOWN_INSTANCE");
  request.Clear();
  request.set_job_name("trian");
  response = service_.Explain(request);
  EXPECT_THAT(response, StatusIs(absl::StatusCode::kNotFound,
                                 R"(no running process belongs to a job "trian")"));
  EXPECT_EQ(ReasonOf(response.status()), "UNKNOWN_JOB");
}

TEST_F(ResolverServiceTest, ProcessThatIsGoneIsExplainedByItsInstanceOnly) {
  core_.AddProcess(1, "train");
  core_.clock.Advance(absl::Minutes(1));
  v1::ExplainRequest request;
  request.set_instance_id(SampleInstance(1));
  EXPECT_THAT(service_.Explain(request), IsOk());
  request.Clear();
  request.set_job_name("train");
  EXPECT_THAT(service_.Explain(request), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ResolverServiceTest, ExplainWantsExactlyOneThingToExplain) {
  core_.AddProcess(1, "train");
  v1::ExplainRequest request;
  EXPECT_THAT(service_.Explain(request),
              StatusIs(kInvalid,
                       "request: 0 of request, instance_id and job_name are set, "
                       "want one"));
  *request.mutable_request() = SampleRequest();
  request.set_job_name("train");
  EXPECT_THAT(service_.Explain(request),
              StatusIs(kInvalid,
                       "request: 2 of request, instance_id and job_name are set, "
                       "want one"));
  request.set_instance_id(SampleInstance(1));
  const auto response = service_.Explain(request);
  EXPECT_THAT(response, StatusIs(kInvalid, HasSubstr("3 of request")));
  EXPECT_EQ(ReasonOf(response.status()), "BAD_REQUEST");
}

TEST_F(ResolverServiceTest, ExplainedRequestIsCheckedLikeOneToResolve) {
  v1::ExplainRequest request;
  *request.mutable_request() = SampleRequest();
  request.mutable_request()->mutable_job()->clear_name();
  EXPECT_THAT(service_.Explain(request),
              StatusIs(kInvalid, R"(job.name: "", want 1 to 128 characters of [A-Za-z0-9._:/-])"));
  request.mutable_request()->Clear();
  EXPECT_THAT(service_.Explain(request), StatusIs(kInvalid, HasSubstr("environment.device_type")));
}

// ---- AckPlan ----

TEST_F(ResolverServiceTest, AckedPlanIsTheOneInForce) {
  core_.AddProcess(1, "train");
  auto ack = FromText<v1::AckPlanRequest>(
      R"(revision: 3 applied_step: 12 refusals { site_id: "norm" count: 2 reason: "compiled" })");
  ack.set_instance_id(SampleInstance(1));
  ASSERT_THAT(service_.AckPlan(ack), IsOk());
  EXPECT_EQ(Process().applied_revision(), 3);
  EXPECT_EQ(Process().applied_step(), 12);
  ASSERT_EQ(Process().refusals_size(), 1);
  EXPECT_EQ(Process().refusals(0).reason(), "compiled");
}

TEST_F(ResolverServiceTest, PlanThatCouldNotBeAppliedLeavesTheOneBeforeInForce) {
  core_.AddProcess(1, "train");
  v1::AckPlanRequest ack;
  ack.set_instance_id(SampleInstance(1));
  ack.set_revision(3);
  ASSERT_THAT(service_.AckPlan(ack), IsOk());
  ack.set_revision(4);
  ack.set_error("no such library");
  ASSERT_THAT(service_.AckPlan(ack), IsOk());
  EXPECT_EQ(Process().applied_revision(), 3);
  EXPECT_EQ(Process().plan_error(), "no such library");
}

TEST_F(ResolverServiceTest, AckOfAnUnknownProcessIsNotFound) {
  v1::AckPlanRequest ack;
  ack.set_instance_id(SampleInstance(1));
  const auto response = service_.AckPlan(ack);
  EXPECT_THAT(response, StatusIs(absl::StatusCode::kNotFound,
                                 "no process has the instance id \"" + SampleInstance(1) + "\""));
  EXPECT_EQ(ReasonOf(response.status()), "UNKNOWN_INSTANCE");
}

TEST_F(ResolverServiceTest, WrongAckIsRefusedAndChangesNothing) {
  core_.AddProcess(1, "train");
  using Edit = std::function<void(v1::AckPlanRequest&)>;
  const std::vector<std::pair<Edit, std::string>> cases = {
      {[](auto& ack) { ack.set_revision(-1); }, "revision: -1, want at least 0"},
      {[](auto& ack) { ack.set_applied_step(std::numeric_limits<int64_t>::min()); },
       "applied_step: -9223372036854775808, want at least 0"},
      {[](auto& ack) { ack.add_refusals()->set_count(-1); },
       "refusals[0].count: -1, want at least 0"},
      {[](auto& ack) {
         for (int i = 0; i <= kMaxSites; ++i) ack.add_refusals();
       },
       "refusals: 4097, want at most 4096"},
  };
  for (const auto& [edit, message] : cases) {
    v1::AckPlanRequest ack;
    ack.set_instance_id(SampleInstance(1));
    ack.set_revision(5);
    edit(ack);
    const auto response = service_.AckPlan(ack);
    EXPECT_THAT(response, StatusIs(kInvalid, message));
    EXPECT_EQ(ReasonOf(response.status()), "BAD_REQUEST");
  }
  EXPECT_EQ(Process().applied_revision(), 0);
  EXPECT_EQ(Process().refusals_size(), 0);
}

// ---- ReportProgress ----

TEST_F(ResolverServiceTest, ProgressIsRecordedAndIsASignOfLife) {
  core_.AddProcess(1, "train");
  core_.clock.Advance(absl::Minutes(1));
  ASSERT_TRUE(Process().gone());
  auto progress = FromText<v1::ReportProgressRequest>(
      R"(step: 40 counters {
           operation: "rms_norm" fused_calls: 9 fallback_calls { key: "dtype" value: 0 }
         })");
  progress.set_instance_id(SampleInstance(1));
  const auto response = service_.ReportProgress(progress);
  ASSERT_THAT(response, IsOk());
  EXPECT_FALSE(response->unknown_instance());
  EXPECT_FALSE(Process().gone());
  EXPECT_EQ(Process().step(), 40);
  EXPECT_EQ(Process().counters(0).fused_calls(), 9);
}

TEST_F(ResolverServiceTest, UnknownProcessIsAskedToIntroduceItselfAgain) {
  v1::ReportProgressRequest progress;
  progress.set_instance_id(SampleInstance(1));
  const auto response = service_.ReportProgress(progress);
  ASSERT_THAT(response, IsOk());
  EXPECT_TRUE(response->unknown_instance());
  EXPECT_THAT(core_.processes.ListProcesses(true), IsEmpty());
}

TEST_F(ResolverServiceTest, LeavingProcessIsGoneAtOnce) {
  core_.AddProcess(1, "train");
  v1::ReportProgressRequest progress;
  progress.set_instance_id(SampleInstance(1));
  progress.set_leaving(true);
  ASSERT_THAT(service_.ReportProgress(progress), IsOk());
  EXPECT_TRUE(Process().gone());
  EXPECT_EQ(core_.processes.LiveCount(), 0);
}

TEST_F(ResolverServiceTest, NegativeProgressIsRefusedAndChangesNothing) {
  core_.AddProcess(1, "train");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"step: -1", "step: -1, want at least 0"},
      {R"(step: 1 counters { operation: "rms_norm" fused_calls: -2 })",
       "counters.fused_calls: -2 for rms_norm, want at least 0"},
      {R"(step: 1 counters { operation: "a" fused_calls: 1 }
          counters { operation: "swiglu" fallback_calls { key: "dtype" value: -3 } })",
       "counters.fallback_calls: -3 for swiglu, want at least 0"},
  };
  for (const auto& [text, message] : cases) {
    auto progress = FromText<v1::ReportProgressRequest>(text);
    progress.set_instance_id(SampleInstance(1));
    const auto response = service_.ReportProgress(progress);
    EXPECT_THAT(response, StatusIs(kInvalid, message));
    EXPECT_EQ(ReasonOf(response.status()), "BAD_REQUEST");
  }
  EXPECT_EQ(Process().step(), 0);
  EXPECT_EQ(Process().counters_size(), 0);
}

}  // namespace
}  // namespace fuseboard
