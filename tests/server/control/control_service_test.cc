#include "server/control/control_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "server/common/error_reason.h"
#include "tests/testing/running_core.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::FromText;
using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::JobScope;
using ::fuseboard::testing::NodeScope;
using ::fuseboard::testing::RunningCore;
using ::fuseboard::testing::StatusIs;

v1::Mutation Why() { return FromText<v1::Mutation>(R"(author: "alice" reason: "a test")"); }

v1::SetOverrideRequest Override(const std::string& operation, bool enabled) {
  v1::SetOverrideRequest request;
  request.set_operation(operation);
  *request.mutable_scope() = NodeScope();
  request.set_enabled(enabled);
  *request.mutable_mutation() = Why();
  return request;
}

v1::SetKillRequest Kill(const std::string& operation) {
  v1::SetKillRequest request;
  request.set_operation(operation);
  *request.mutable_scope() = NodeScope();
  *request.mutable_mutation() = Why();
  return request;
}

class ControlServiceTest : public ::testing::Test {
 protected:
  std::vector<v1::AuditRecord> Audit() {
    const auto response = control_.ListAudit({});
    EXPECT_THAT(response, IsOk());
    return {response->records().begin(), response->records().end()};
  }

  RunningCore core_;
  ControlService control_{
      {&core_.clock, core_.store.get(), core_.snapshots.get(), &core_.processes}};
};

TEST_F(ControlServiceTest, WrongFieldIsNamedWithItsValueAndNothingChanges) {
  using Edit = std::function<void(v1::SetOverrideRequest&)>;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<Edit, std::string>> cases = {
      {[](auto& r) { r.mutable_mutation()->clear_reason(); },
       R"(mutation.reason: "", want a text)"},
      {[](auto& r) { r.mutable_mutation()->set_reason(" \t"); },
       R"(mutation.reason: " \t", want a text)"},
      {[](auto& r) { r.mutable_mutation()->set_reason(std::string(1025, 'x')); },
       "mutation.reason: 1025 characters, want at most 1024"},
      {[](auto& r) { r.mutable_mutation()->set_reason("a\x1b[2J"); },
       R"(mutation.reason: "a\x1b[2J", want no control characters)"},
      {[](auto& r) { r.mutable_mutation()->clear_author(); },
       R"(mutation.author: "", want a text)"},
      {[](auto& r) { r.mutable_mutation()->set_author(std::string(129, 'x')); },
       "mutation.author: 129 characters, want at most 128"},
      {[](auto& r) { r.mutable_mutation()->set_expected_revision(-1); },
       "mutation.expected_revision: -1, want at least 0"},
      {[](auto& r) { r.clear_scope(); }, "scope.kind: 0, want job, node or fleet"},
      {[](auto& r) { r.mutable_scope()->set_name("n1"); },
       R"(scope.name: "n1", want none with this scope)"},
      {[](auto& r) { *r.mutable_scope() = JobScope("a b"); },
       R"(scope.name: "a b", want a job: 1 to 128 characters of [A-Za-z0-9._:/-])"},
      {[](auto& r) { r.set_ttl_seconds(-1); }, "ttl_seconds: -1, want 0 to 315576000"},
      {[](auto& r) { r.set_ttl_seconds(4e8); }, "ttl_seconds: 4e+08, want 0 to 315576000"},
      {[nan](auto& r) { r.set_ttl_seconds(nan); }, "ttl_seconds: nan, want 0 to 315576000"},
      {[](auto& r) { r.set_operation("*"); },
       R"(operation: "*", want one kernel (a kill may name all))"},
  };
  const int64_t revision = core_.Revision();
  for (const auto& [edit, message] : cases) {
    v1::SetOverrideRequest request = Override("rms_norm", false);
    edit(request);
    const auto response = control_.SetOverride(request);
    EXPECT_THAT(response, StatusIs(absl::StatusCode::kInvalidArgument, message));
    EXPECT_EQ(ReasonOf(response.status()), "BAD_REQUEST");
  }
  EXPECT_EQ(core_.Revision(), revision);
}

TEST_F(ControlServiceTest, LengthIsCountedInCharactersNotBytes) {
  std::string reason;
  for (int i = 0; i < kMaxReasonCharacters; ++i) reason += "ü";
  v1::SetKillRequest request = Kill("rms_norm");
  request.mutable_mutation()->set_reason(reason);
  EXPECT_THAT(control_.SetKill(request), IsOk());
}

TEST_F(ControlServiceTest, GroupIsReserved) {
  v1::SetKillRequest request = Kill("rms_norm");
  request.mutable_scope()->set_kind(v1::SCOPE_KIND_GROUP);
  const auto response = control_.SetKill(request);
  EXPECT_THAT(response, StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_EQ(ReasonOf(response.status()), "RESERVED");
}

TEST_F(ControlServiceTest, UnknownKernelNamesTheKnownOnes) {
  for (const absl::Status& status : {control_.SetKill(Kill("rmsnorm")).status(),
                                     control_.SetOverride(Override("rmsnorm", true)).status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound,
                                 R"(unknown kernel "rmsnorm", this node knows cross_entropy, )"
                                 "fused_linear_cross_entropy, rms_norm, swiglu"));
    EXPECT_EQ(ReasonOf(status), "UNKNOWN_KERNEL");
  }
}

TEST_F(ControlServiceTest, MutationIsDurableAndHasOneAuditRecord) {
  const int64_t before = core_.Revision();
  v1::SetOverrideRequest request = Override("rms_norm", false);
  request.set_ttl_seconds(60);
  const auto response = control_.SetOverride(request);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->revision(), before + 1);
  EXPECT_EQ(core_.Revision(), before + 1);
  const auto listed = control_.ListOverrides();
  ASSERT_EQ(listed->overrides_size(), 1);
  EXPECT_EQ(listed->overrides(0).revision(), before + 1);
  EXPECT_EQ(listed->overrides(0).expires_at_us() - listed->overrides(0).created_at_us(), 60000000);
  const v1::AuditRecord audit = Audit().at(0);
  EXPECT_EQ(audit.revision(), before + 1);
  EXPECT_EQ(audit.action(), "SetOverride");
  EXPECT_EQ(audit.operation(), "rms_norm");
  EXPECT_EQ(audit.author(), "alice");
  EXPECT_EQ(audit.reason(), "a test");
  EXPECT_EQ(audit.before(), "");
  EXPECT_EQ(audit.after(), "off at node until 2026-01-02T03:05:05Z, by alice: a test");
}

TEST_F(ControlServiceTest, SecondSetReplacesTheFirstAndTheAuditSaysWhatWasThere) {
  ASSERT_THAT(control_.SetOverride(Override("rms_norm", false)), IsOk());
  ASSERT_THAT(control_.SetOverride(Override("rms_norm", true)), IsOk());
  EXPECT_EQ(control_.ListOverrides()->overrides_size(), 1);
  EXPECT_EQ(Audit().at(0).before(), "off at node, by alice: a test");
  EXPECT_EQ(Audit().at(0).after(), "on at node, by alice: a test");
}

TEST_F(ControlServiceTest, DryRunTellsTheEffectsAndChangesNothing) {
  core_.AddProcess(1, "train");
  const int64_t revision = core_.Revision();
  v1::SetKillRequest request = Kill("*");
  request.mutable_mutation()->set_dry_run(true);
  const auto response = control_.SetKill(request);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->revision(), revision);
  EXPECT_EQ(response->effects_size(), 2);
  EXPECT_EQ(core_.Revision(), revision);
  EXPECT_EQ(control_.ListKills()->kills_size(), 0);
  EXPECT_EQ(static_cast<int64_t>(Audit().size()), revision - 1);
}

TEST_F(ControlServiceTest, DryRunMakesTheSameChecks) {
  v1::SetKillRequest request = Kill("rmsnorm");
  request.mutable_mutation()->set_dry_run(true);
  EXPECT_THAT(control_.SetKill(request), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ControlServiceTest, EffectsAreTheDecisionsThatChangeAndNoOthers) {
  core_.AddProcess(1, "train");
  core_.AddProcess(2, "other");
  v1::SetOverrideRequest request = Override("fused_linear_cross_entropy", false);
  *request.mutable_scope() = JobScope("train");
  const auto response = control_.SetOverride(request);
  ASSERT_THAT(response, IsOk());
  ASSERT_EQ(response->effects_size(), 1);
  const v1::Effect& effect = response->effects(0);
  EXPECT_EQ(effect.job_name(), "train");
  EXPECT_EQ(effect.instance_id(), ::fuseboard::testing::SampleInstance(1));
  EXPECT_EQ(effect.site_id(), "head");
  EXPECT_EQ(effect.count(), 1);
  EXPECT_EQ(effect.before(), v1::DECISION_KIND_KERNEL);
  EXPECT_EQ(effect.after(), v1::DECISION_KIND_COMPOSITE);
  EXPECT_EQ(effect.operation(), "fused_linear_cross_entropy");
  EXPECT_EQ(control_.SetOverride(request)->effects_size(), 0);
}

TEST_F(ControlServiceTest, ExpectedRevisionThatDiffersIsAbortedAndChangesNothing) {
  const int64_t revision = core_.Revision();
  v1::SetKillRequest request = Kill("rms_norm");
  request.mutable_mutation()->set_expected_revision(revision + 5);
  const auto response = control_.SetKill(request);
  EXPECT_THAT(response, StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(ReasonOf(response.status()), "REVISION_MISMATCH");
  EXPECT_EQ(core_.Revision(), revision);
  request.mutable_mutation()->set_expected_revision(revision);
  EXPECT_THAT(control_.SetKill(request), IsOk());
}

TEST_F(ControlServiceTest, DeletingWhatIsNotSetIsNotFound) {
  v1::DeleteKillRequest kill;
  kill.set_operation("rms_norm");
  *kill.mutable_scope() = NodeScope();
  *kill.mutable_mutation() = Why();
  const auto no_kill = control_.DeleteKill(kill);
  EXPECT_THAT(no_kill,
              StatusIs(absl::StatusCode::kNotFound, "nothing is set for rms_norm at node"));
  EXPECT_EQ(ReasonOf(no_kill.status()), "NO_SUCH_KILL");
  v1::DeleteOverrideRequest record;
  record.set_operation("rms_norm");
  *record.mutable_scope() = JobScope("train");
  *record.mutable_mutation() = Why();
  const auto no_override = control_.DeleteOverride(record);
  EXPECT_EQ(ReasonOf(no_override.status()), "NO_SUCH_OVERRIDE");
}

TEST_F(ControlServiceTest, DeletedKillIsGoneWithItsAuditRecord) {
  ASSERT_THAT(control_.SetKill(Kill("*")), IsOk());
  v1::DeleteKillRequest request;
  request.set_operation("*");
  *request.mutable_scope() = NodeScope();
  *request.mutable_mutation() = Why();
  ASSERT_THAT(control_.DeleteKill(request), IsOk());
  EXPECT_EQ(control_.ListKills()->kills_size(), 0);
  EXPECT_EQ(Audit().at(0).action(), "DeleteKill");
  EXPECT_EQ(Audit().at(0).before(), "killed at node, by alice: a test");
  EXPECT_EQ(Audit().at(0).after(), "");
}

TEST_F(ControlServiceTest, ExpiredRecordIsNotListedAndCannotBeDeleted) {
  v1::SetKillRequest request = Kill("rms_norm");
  request.set_ttl_seconds(10);
  ASSERT_THAT(control_.SetKill(request), IsOk());
  core_.clock.Advance(absl::Seconds(10));
  EXPECT_EQ(control_.ListKills()->kills_size(), 0);
  v1::DeleteKillRequest gone;
  gone.set_operation("rms_norm");
  *gone.mutable_scope() = NodeScope();
  *gone.mutable_mutation() = Why();
  EXPECT_EQ(ReasonOf(control_.DeleteKill(gone).status()), "NO_SUCH_KILL");
  core_.snapshots->Refresh();
  EXPECT_EQ(Audit().at(0).action(), "Expire");
  EXPECT_EQ(Audit().at(0).author(), "fuseboardd");
}

TEST_F(ControlServiceTest, AuditLimitIsChecked) {
  v1::ListAuditRequest request;
  request.set_limit(1001);
  EXPECT_THAT(control_.ListAudit(request),
              StatusIs(absl::StatusCode::kInvalidArgument, "limit: 1001, want 0 to 1000"));
}

}  // namespace
}  // namespace fuseboard
