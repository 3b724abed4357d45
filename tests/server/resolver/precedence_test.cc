// The levels of precedence and what a site gets at each: one test for each line of the table in
// server/resolver/resolver.h.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/resolver/resolver.h"
#include "tests/testing/sample_node.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::FleetScope;
using ::fuseboard::testing::JobScope;
using ::fuseboard::testing::MakeKill;
using ::fuseboard::testing::MakeOverride;
using ::fuseboard::testing::NodeScope;
using ::fuseboard::testing::SampleBinding;
using ::fuseboard::testing::SampleFingerprint;
using ::fuseboard::testing::SampleKernel;
using ::fuseboard::testing::SampleRequest;
using ::fuseboard::testing::SampleSnapshot;

constexpr int kNorm = 0;
constexpr int kMlp = 1;
constexpr int kHead = 2;

class PrecedenceTest : public ::testing::Test {
 protected:
  [[nodiscard]] v1::Decision Decide(int site) const {
    return ResolvePlan(request_, snapshot_).decisions(site);
  }

  void Expect(int site, v1::DecisionKind kind, v1::Rule rule, const std::string& reason) const {
    const v1::Decision decision = Decide(site);
    EXPECT_EQ(v1::DecisionKind_Name(decision.kind()), v1::DecisionKind_Name(kind));
    EXPECT_EQ(v1::Rule_Name(decision.rule()), v1::Rule_Name(rule));
    EXPECT_EQ(decision.reason(), reason);
  }

  void Set(const v1::Override& record) {
    Switches switches = *snapshot_.switches;
    switches.overrides.push_back(record);
    snapshot_.switches = std::make_shared<const Switches>(std::move(switches));
  }
  void Set(const v1::Kill& kill) {
    Switches switches = *snapshot_.switches;
    switches.kills.push_back(kill);
    snapshot_.switches = std::make_shared<const Switches>(std::move(switches));
  }
  void Deny(const std::string& operation) {
    snapshot_.deny = std::make_shared<const DenyList>(DenyList{"/run/fuseboard/deny", {operation}});
  }
  void SetLibraries(std::vector<Library> libraries) {
    snapshot_.libraries = std::make_shared<const LibrarySet>(std::move(libraries));
  }
  [[nodiscard]] int64_t AtSecond(int64_t seconds_from_now) const {
    return absl::ToUnixMicros(snapshot_.now + absl::Seconds(seconds_from_now));
  }

  v1::ResolveRequest request_ = SampleRequest();
  Snapshot snapshot_ = SampleSnapshot();
};

TEST_F(PrecedenceTest, CatalogueDefaultRunsTheKernel) {
  Expect(kNorm, v1::DECISION_KIND_KERNEL, v1::RULE_CATALOGUE,
         "on by default; the code is that of transformers 5.17.0 LlamaRMSNorm");
  Expect(kHead, v1::DECISION_KIND_KERNEL, v1::RULE_CATALOGUE,
         "on by default; the code is that of transformers 5.17.0 LlamaForCausalLM");
}

TEST_F(PrecedenceTest, NothingSpeaksForAnOperationThatIsOffByDefault) {
  Expect(kMlp, v1::DECISION_KIND_NATIVE, v1::RULE_NATIVE, "off by default");
}

TEST_F(PrecedenceTest, OverrideBeatsTheCatalogueInBothDirections) {
  Set(MakeOverride("rms_norm", NodeScope(), false));
  Set(MakeOverride("swiglu", NodeScope(), true));
  Expect(kNorm, v1::DECISION_KIND_NATIVE, v1::RULE_OVERRIDE,
         "switched off at node, by alice: a test");
  Expect(kMlp, v1::DECISION_KIND_KERNEL, v1::RULE_OVERRIDE,
         "switched on at node, by alice: a test; the code is that of transformers 5.17.0 LlamaMLP");
}

TEST_F(PrecedenceTest, OverrideOfOneOperationLeavesTheOthersAlone) {
  Set(MakeOverride("rms_norm", NodeScope(), false));
  EXPECT_EQ(Decide(kHead).kind(), v1::DECISION_KIND_KERNEL);
}

TEST_F(PrecedenceTest, NarrowestScopeOfAnOverrideWinsWhateverTheOrder) {
  Set(MakeOverride("rms_norm", FleetScope(), false));
  EXPECT_EQ(Decide(kNorm).reason(), "switched off at fleet, by alice: a test");
  Set(MakeOverride("rms_norm", JobScope("train"), false));
  Set(MakeOverride("rms_norm", NodeScope(), true));
  Expect(kNorm, v1::DECISION_KIND_NATIVE, v1::RULE_OVERRIDE,
         "switched off at job train, by alice: a test");
}

TEST_F(PrecedenceTest, NodeBeatsFleet) {
  Set(MakeOverride("swiglu", FleetScope(), false));
  Set(MakeOverride("swiglu", NodeScope(), true));
  EXPECT_EQ(Decide(kMlp).kind(), v1::DECISION_KIND_KERNEL);
}

TEST_F(PrecedenceTest, OverrideOfAnotherJobDoesNotCount) {
  Set(MakeOverride("rms_norm", JobScope("other"), false));
  Expect(kNorm, v1::DECISION_KIND_KERNEL, v1::RULE_CATALOGUE,
         "on by default; the code is that of transformers 5.17.0 LlamaRMSNorm");
}

TEST_F(PrecedenceTest, ExpiredOverrideIsAsAbsentFromTheVeryMicrosecond) {
  v1::Override record = MakeOverride("rms_norm", JobScope("train"), false);
  record.set_expires_at_us(AtSecond(0));
  Set(record);
  EXPECT_EQ(Decide(kNorm).rule(), v1::RULE_CATALOGUE);
  snapshot_.now -= absl::Microseconds(1);
  Expect(kNorm, v1::DECISION_KIND_NATIVE, v1::RULE_OVERRIDE,
         "switched off at job train until 2026-01-02T03:04:05Z, by alice: a test");
}

TEST_F(PrecedenceTest, ExpiredOverrideUncoversTheWiderOne) {
  v1::Override expired = MakeOverride("rms_norm", JobScope("train"), true);
  expired.set_expires_at_us(AtSecond(-1));
  Set(expired);
  Set(MakeOverride("rms_norm", FleetScope(), false));
  Expect(kNorm, v1::DECISION_KIND_NATIVE, v1::RULE_OVERRIDE,
         "switched off at fleet, by alice: a test");
}

TEST_F(PrecedenceTest, IncompatibleBeatsAnOverride) {
  Set(MakeOverride("rms_norm", JobScope("train"), true));
  request_.mutable_environment()->set_sm(75);
  Expect(kNorm, v1::DECISION_KIND_NATIVE, v1::RULE_INCOMPATIBLE,
         "kernel rms_norm 0.1.0 has sm_80, sm_90, the GPU is sm_75");
}

TEST_F(PrecedenceTest, KillBeatsIncompatible) {
  Set(MakeKill("rms_norm", FleetScope()));
  request_.mutable_environment()->set_sm(75);
  Expect(kNorm, v1::DECISION_KIND_NATIVE, v1::RULE_KILL,
         "kernel rms_norm is killed at fleet, by alice: a test");
}

TEST_F(PrecedenceTest, KillAtAnyScopeBeatsAnOverrideOfANarrowerOne) {
  Set(MakeOverride("rms_norm", JobScope("train"), true));
  Set(MakeKill("rms_norm", FleetScope()));
  EXPECT_EQ(Decide(kNorm).rule(), v1::RULE_KILL);
}

TEST_F(PrecedenceTest, KillOfAnotherJobDoesNotCount) {
  Set(MakeKill("rms_norm", JobScope("other")));
  EXPECT_EQ(Decide(kNorm).rule(), v1::RULE_CATALOGUE);
}

TEST_F(PrecedenceTest, ExpiredKillIsAsAbsent) {
  v1::Kill kill = MakeKill("*", NodeScope());
  kill.set_expires_at_us(AtSecond(0));
  Set(kill);
  EXPECT_EQ(Decide(kNorm).rule(), v1::RULE_CATALOGUE);
  snapshot_.now -= absl::Microseconds(1);
  EXPECT_EQ(Decide(kNorm).rule(), v1::RULE_KILL);
}

TEST_F(PrecedenceTest, OptOutBeatsAKill) {
  Set(MakeKill("rms_norm", NodeScope()));
  request_.add_opt_out("rms_norm");
  Expect(kNorm, v1::DECISION_KIND_NATIVE, v1::RULE_OPT_OUT, "the process opted out of rms_norm");
}

TEST_F(PrecedenceTest, OptOutOfEverythingIsNativeWithoutAnyArtifact) {
  request_.add_opt_out("*");
  for (const int site : {kNorm, kMlp, kHead}) {
    Expect(site, v1::DECISION_KIND_NATIVE, v1::RULE_OPT_OUT,
           "the process opted out of every kernel");
  }
  EXPECT_EQ(ResolvePlan(request_, snapshot_).artifacts_size(), 0);
}

TEST_F(PrecedenceTest, KillOfEverythingIsNativeForEverySite) {
  Set(MakeKill("*", NodeScope()));
  for (const int site : {kNorm, kMlp, kHead}) {
    Expect(site, v1::DECISION_KIND_NATIVE, v1::RULE_KILL,
           "every kernel is killed at node, by alice: a test");
  }
  EXPECT_EQ(ResolvePlan(request_, snapshot_).artifacts_size(), 0);
}

TEST_F(PrecedenceTest, KillOfEverythingAlsoCoversUnknownCode) {
  Set(MakeKill("*", NodeScope()));
  request_.mutable_sites(kNorm)->set_fingerprint(SampleFingerprint('d'));
  EXPECT_EQ(Decide(kNorm).rule(), v1::RULE_KILL);
}

TEST_F(PrecedenceTest, KillingAKernelKillsTheCompositeThatUsesIt) {
  Set(MakeKill("cross_entropy", NodeScope()));
  Expect(kHead, v1::DECISION_KIND_COMPOSITE, v1::RULE_KILL,
         "fused_linear_cross_entropy uses cross_entropy, and kernel cross_entropy is killed at "
         "node, by alice: a test; the composite keeps the peak memory");
  EXPECT_EQ(Decide(kNorm).kind(), v1::DECISION_KIND_KERNEL);
}

TEST_F(PrecedenceTest, KillingAKernelOfAnotherCompositeDoesNotReachThisOne) {
  Library binding = SampleBinding();
  binding.manifest.add_composites("fused_linear_jsd");
  binding.manifest.clear_uses();
  binding.manifest.add_uses("fused_linear_jsd:jsd");
  binding.manifest.add_uses("fused_linear_cross_entropy:cross_entropy");
  SetLibraries({SampleKernel("cross_entropy"), SampleKernel("jsd"), binding});
  Set(MakeKill("jsd", NodeScope()));
  EXPECT_EQ(Decide(kHead).kind(), v1::DECISION_KIND_KERNEL);
  Set(MakeKill("cross_entropy", NodeScope()));
  EXPECT_EQ(Decide(kHead).kind(), v1::DECISION_KIND_COMPOSITE);
}

TEST_F(PrecedenceTest, OverrideOfAUsedKernelDoesNotReachTheComposite) {
  Set(MakeOverride("cross_entropy", NodeScope(), false));
  EXPECT_EQ(Decide(kHead).kind(), v1::DECISION_KIND_KERNEL);
}

TEST_F(PrecedenceTest, DenyFileIsAKill) {
  Deny("rms_norm");
  Set(MakeOverride("rms_norm", JobScope("train"), true));
  Expect(kNorm, v1::DECISION_KIND_NATIVE, v1::RULE_KILL,
         "kernel rms_norm is denied on this node by /run/fuseboard/deny");
}

TEST_F(PrecedenceTest, DenyFileReachesACompositeThroughItsKernel) {
  Deny("cross_entropy");
  Expect(kHead, v1::DECISION_KIND_COMPOSITE, v1::RULE_KILL,
         "fused_linear_cross_entropy uses cross_entropy, and kernel cross_entropy is denied on "
         "this node by /run/fuseboard/deny; the composite keeps the peak memory");
}

TEST_F(PrecedenceTest, DenyFileOfEverythingIsNativeForEverySite) {
  Deny("*");
  for (const int site : {kNorm, kMlp, kHead}) {
    Expect(site, v1::DECISION_KIND_NATIVE, v1::RULE_KILL,
           "every kernel is denied on this node by /run/fuseboard/deny");
  }
}

TEST_F(PrecedenceTest, SwitchedOffLinearAndLossRunsAsTheComposite) {
  Set(MakeOverride("fused_linear_cross_entropy", NodeScope(), false));
  Expect(kHead, v1::DECISION_KIND_COMPOSITE, v1::RULE_OVERRIDE,
         "switched off at node, by alice: a test; the composite keeps the peak memory");
  const v1::Decision decision = Decide(kHead);
  EXPECT_EQ(decision.adapter(), "head");
  EXPECT_EQ(decision.version(), "");
  EXPECT_EQ(decision.sha256(), "");
}

TEST_F(PrecedenceTest, LinearAndLossWithoutItsKernelLibraryRunsAsTheComposite) {
  SetLibraries({SampleKernel("rms_norm"), SampleBinding()});
  Expect(kHead, v1::DECISION_KIND_COMPOSITE, v1::RULE_INCOMPATIBLE,
         "there is no library of kernel cross_entropy on this node; the composite keeps the peak "
         "memory");
}

TEST_F(PrecedenceTest, LinearAndLossIsNativeWhenTheProcessOptedOutOfIt) {
  request_.add_opt_out("fused_linear_cross_entropy");
  Expect(kHead, v1::DECISION_KIND_NATIVE, v1::RULE_OPT_OUT,
         "the process opted out of fused_linear_cross_entropy");
}

TEST_F(PrecedenceTest, LinearAndLossOfUnknownCodeIsNative) {
  request_.mutable_sites(kHead)->set_fingerprint(SampleFingerprint('d'));
  Expect(kHead, v1::DECISION_KIND_NATIVE, v1::RULE_INCOMPATIBLE,
         "no catalogue entry for role lm_head has the fingerprint " + SampleFingerprint('d'));
  EXPECT_EQ(Decide(kHead).operation(), "");
}

TEST_F(PrecedenceTest, LinearAndLossWithoutABindingIsNative) {
  SetLibraries({SampleKernel("cross_entropy"), SampleKernel("rms_norm")});
  Set(MakeOverride("fused_linear_cross_entropy", NodeScope(), false));
  Expect(kHead, v1::DECISION_KIND_NATIVE, v1::RULE_INCOMPATIBLE,
         "there is no binding on this node, want one for torch 2.11.0+cu130 with CUDA 13.0");
}

TEST_F(PrecedenceTest, KilledLinearAndLossWithoutAFittingBindingIsNative) {
  request_.mutable_environment()->set_torch_version("2.10.0+cu130");
  Set(MakeKill("fused_linear_cross_entropy", NodeScope()));
  EXPECT_EQ(Decide(kHead).kind(), v1::DECISION_KIND_NATIVE);
  EXPECT_EQ(Decide(kHead).rule(), v1::RULE_KILL);
}

}  // namespace
}  // namespace fuseboard
