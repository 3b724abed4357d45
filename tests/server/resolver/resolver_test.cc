#include "server/resolver/resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/sample_node.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::FromText;
using ::fuseboard::testing::JobScope;
using ::fuseboard::testing::MakeOverride;
using ::fuseboard::testing::NodeScope;
using ::fuseboard::testing::SampleBinding;
using ::fuseboard::testing::SampleCatalog;
using ::fuseboard::testing::SampleFingerprint;
using ::fuseboard::testing::SampleKernel;
using ::fuseboard::testing::SampleLibraries;
using ::fuseboard::testing::SampleRequest;
using ::fuseboard::testing::SampleSnapshot;
using ::testing::ElementsAre;

std::vector<std::string> ArtifactNames(const v1::Plan& plan) {
  std::vector<std::string> names;
  for (const v1::Artifact& artifact : plan.artifacts()) {
    names.push_back(artifact.name() + " " + artifact.version());
  }
  return names;
}

std::string Bytes(const v1::ExplainResponse& response) { return response.DebugString(); }

class ResolverTest : public ::testing::Test {
 protected:
  void SetLibraries(std::vector<Library> libraries) {
    snapshot_.libraries = std::make_shared<const LibrarySet>(std::move(libraries));
  }
  void SetOverrides(std::vector<v1::Override> overrides) {
    Switches switches = *snapshot_.switches;
    switches.overrides = std::move(overrides);
    snapshot_.switches = std::make_shared<const Switches>(std::move(switches));
  }
  [[nodiscard]] v1::Plan Plan() const { return ResolvePlan(request_, snapshot_); }

  v1::ResolveRequest request_ = SampleRequest();
  Snapshot snapshot_ = SampleSnapshot();
};

TEST_F(ResolverTest, PlanNamesRevisionStoreAndOneDecisionPerSiteInOrder) {
  const v1::Plan plan = Plan();
  EXPECT_EQ(plan.revision(), 7);
  EXPECT_EQ(plan.store_id(), "0123456789abcdef");
  ASSERT_EQ(plan.decisions_size(), 3);
  EXPECT_EQ(plan.decisions(0).site_id(), "norm");
  EXPECT_EQ(plan.decisions(1).site_id(), "mlp");
  EXPECT_EQ(plan.decisions(2).site_id(), "head");
}

TEST_F(ResolverTest, KernelDecisionSaysAllThatTheClientNeeds) {
  const v1::Decision decision = Plan().decisions(0);
  EXPECT_EQ(decision.operation(), "rms_norm");
  EXPECT_EQ(decision.version(), "0.1.0");
  EXPECT_EQ(decision.sha256(), SampleKernel("rms_norm").manifest.sha256());
  EXPECT_EQ(decision.adapter(), "rms_norm");
  EXPECT_EQ(decision.parameters().at("casting"), "llama");
  EXPECT_EQ(decision.catalog_entry(), "rms_norm/llama");
}

TEST_F(ResolverTest, NativeDecisionHasNoAdapterAndNoLibrary) {
  const v1::Decision decision = Plan().decisions(1);
  EXPECT_EQ(decision.kind(), v1::DECISION_KIND_NATIVE);
  EXPECT_EQ(decision.adapter(), "");
  EXPECT_EQ(decision.version(), "");
  EXPECT_EQ(decision.sha256(), "");
  EXPECT_EQ(decision.operation(), "swiglu");
}

TEST_F(ResolverTest, ArtifactsAreWhatTheDecisionsNeedEachOnce) {
  v1::Site again = request_.sites(0);
  again.set_site_id("norm again");
  *request_.add_sites() = again;
  EXPECT_THAT(ArtifactNames(Plan()),
              ElementsAre("cross_entropy 0.1.0", "rms_norm 0.1.0", "fuseboard_torch 0.1.0"));
}

TEST_F(ResolverTest, CompositeNeedsTheBindingOnly) {
  SetOverrides({MakeOverride("fused_linear_cross_entropy", NodeScope(), false),
                MakeOverride("rms_norm", NodeScope(), false)});
  EXPECT_THAT(ArtifactNames(Plan()), ElementsAre("fuseboard_torch 0.1.0"));
}

TEST_F(ResolverTest, ProfilerIsHandedOutToANativeModelToo) {
  Library profiler;
  profiler.manifest = FromText<v1::Manifest>(
      R"(kind: ARTIFACT_KIND_PROFILER name: "fuseboard_cupti" version: "0.1.0"
         device_types: "cuda")");
  SetLibraries({SampleBinding(), profiler});
  request_.clear_sites();
  EXPECT_THAT(ArtifactNames(Plan()), ElementsAre("fuseboard_cupti 0.1.0"));
  request_.mutable_environment()->set_device_type("cpu");
  EXPECT_THAT(ArtifactNames(Plan()), ElementsAre());
  request_.mutable_environment()->set_device_type("cuda");
  request_.add_opt_out("*");
  EXPECT_THAT(ArtifactNames(Plan()), ElementsAre());
}

TEST_F(ResolverTest, NewestCompatibleVersionIsChosenAndTheOthersAreExplained) {
  Library newest = SampleKernel("rms_norm");
  newest.manifest.set_version("0.10.0");
  newest.manifest.clear_cuda_archs();
  newest.manifest.add_cuda_archs(100);
  Library newer = SampleKernel("rms_norm");
  newer.manifest.set_version("0.9.0");
  SetLibraries({SampleKernel("rms_norm"), newest, newer, SampleBinding()});
  const v1::ExplainResponse explained = ExplainPlan(request_, snapshot_);
  EXPECT_EQ(explained.plan().decisions(0).version(), "0.9.0");
  const auto& candidates = explained.sites(0).candidates();
  std::vector<std::string> reasons;
  for (const v1::Candidate& candidate : candidates) {
    if (candidate.catalog_entry() != "rms_norm/llama") continue;
    reasons.push_back(candidate.version() + (candidate.accepted() ? " yes: " : " no: ") +
                      candidate.reason());
  }
  EXPECT_THAT(reasons,
              ElementsAre("0.10.0 no: kernel rms_norm 0.10.0 has sm_100, the GPU is sm_90",
                          "0.1.0 no: kernel rms_norm 0.9.0 is newer and fits",
                          "0.9.0 yes: on by default; the code is that of transformers 5.17.0 "
                          "LlamaRMSNorm"));
}

TEST_F(ResolverTest, UnmetConditionIsTheReasonOfKnownCode) {
  (*request_.mutable_sites(0)->mutable_attributes())["variance_epsilon"].set_number(2);
  EXPECT_EQ(Plan().decisions(0).reason(),
            "the code is that of rms_norm/llama, but attribute variance_epsilon is 2, want a "
            "number of at least 0 and of at most 1");
}

TEST_F(ResolverTest, MissingFingerprintIsTheReason) {
  request_.mutable_sites(0)->clear_fingerprint();
  request_.mutable_sites(0)->set_fingerprint_error("forward is built in");
  EXPECT_EQ(Plan().decisions(0).reason(), "the code has no fingerprint: forward is built in");
}

TEST_F(ResolverTest, RoleOfTheEntryMustBeTheSites) {
  request_.mutable_sites(0)->set_role("lm_head");
  EXPECT_EQ(Plan().decisions(0).reason(),
            "no catalogue entry for role lm_head has the fingerprint " + SampleFingerprint('a'));
}

TEST_F(ResolverTest, FirstEntryThatMatchesDecides) {
  v1::CatalogFile file = SampleCatalog();
  v1::CatalogEntry second = file.entries(0);
  second.set_id("rms_norm/second");
  second.set_adapter("other");
  *file.add_entries() = second;
  snapshot_.catalog = *Catalog::Create(file);
  const v1::ExplainResponse explained = ExplainPlan(request_, snapshot_);
  EXPECT_EQ(explained.plan().decisions(0).adapter(), "rms_norm");
  bool told = false;
  for (const v1::Candidate& candidate : explained.sites(0).candidates()) {
    told |= candidate.catalog_entry() == "rms_norm/second" && !candidate.accepted() &&
            candidate.reason() == "entry rms_norm/llama matches too and comes first";
  }
  EXPECT_TRUE(told) << Bytes(explained);
}

TEST_F(ResolverTest, ConflictTurnsTheWeakerSideNative) {
  Library norm = SampleKernel("rms_norm");
  norm.manifest.add_conflicts("swiglu");
  SetLibraries({norm, SampleKernel("swiglu"), SampleKernel("cross_entropy"), SampleBinding()});
  EXPECT_EQ(Plan().decisions(0).kind(), v1::DECISION_KIND_KERNEL);
  SetOverrides({MakeOverride("swiglu", NodeScope(), true)});
  const v1::Plan plan = Plan();
  EXPECT_EQ(plan.decisions(1).kind(), v1::DECISION_KIND_KERNEL);
  EXPECT_EQ(plan.decisions(0).kind(), v1::DECISION_KIND_NATIVE);
  EXPECT_EQ(plan.decisions(0).rule(), v1::RULE_INCOMPATIBLE);
  EXPECT_EQ(plan.decisions(0).reason(),
            "rms_norm conflicts with swiglu, which is on in the same process");
  EXPECT_EQ(plan.decisions(0).version(), "");
  EXPECT_THAT(ArtifactNames(plan),
              ElementsAre("cross_entropy 0.1.0", "swiglu 0.1.0", "fuseboard_torch 0.1.0"));
}

TEST_F(ResolverTest, ConflictOfEqualsKeepsTheFirstByNameWhateverTheSitesOrder) {
  Library norm = SampleKernel("rms_norm");
  norm.manifest.add_conflicts("swiglu");
  SetLibraries({norm, SampleKernel("swiglu"), SampleBinding()});
  SetOverrides({MakeOverride("rms_norm", NodeScope(), true),
                MakeOverride("swiglu", JobScope("train"), true)});
  request_.mutable_sites()->SwapElements(0, 1);
  EXPECT_EQ(Plan().decisions(1).kind(), v1::DECISION_KIND_KERNEL);
  EXPECT_EQ(Plan().decisions(0).kind(), v1::DECISION_KIND_NATIVE);
}

TEST_F(ResolverTest, CompositeOfNoBindingOfThisTorchIsNotRun) {
  Library old = SampleBinding();
  old.manifest.set_torch_version("2.10.0");
  Library bare = SampleBinding();
  bare.manifest.clear_composites();
  SetLibraries({SampleKernel("cross_entropy"), old, bare});
  EXPECT_EQ(Plan().decisions(2).kind(), v1::DECISION_KIND_NATIVE);
  EXPECT_EQ(Plan().decisions(2).reason(),
            "binding fuseboard_torch 0.1.0 does not have fused_linear_cross_entropy");
}

TEST_F(ResolverTest, SameInputsGiveTheSameBytes) {
  // Maps have no order of their own: the same content, inserted in another order.
  v1::ResolveRequest reversed = request_;
  for (const int site : {0, 1, 2}) {
    auto& forward = *request_.mutable_sites(site)->mutable_parameters();
    auto& backward = *reversed.mutable_sites(site)->mutable_parameters();
    for (int i = 0; i < 40; ++i) forward["p" + std::to_string(i)].set_dtype("complex64");
    for (int i = 39; i >= 0; --i) backward["p" + std::to_string(i)].set_dtype("complex64");
  }
  std::vector<Library> libraries = SampleLibraries();
  const std::string first = Bytes(ExplainPlan(request_, snapshot_));
  EXPECT_EQ(Bytes(ExplainPlan(request_, snapshot_)), first);
  std::ranges::reverse(libraries);
  SetLibraries(std::move(libraries));
  EXPECT_EQ(Bytes(ExplainPlan(request_, snapshot_)), first);
  EXPECT_EQ(ResolvePlan(reversed, snapshot_).SerializeAsString(),
            ResolvePlan(request_, snapshot_).SerializeAsString());
}

TEST_F(ResolverTest, ExplainAndResolveAgree) {
  const v1::ExplainResponse explained = ExplainPlan(request_, snapshot_);
  EXPECT_EQ(explained.plan().DebugString(), Plan().DebugString());
  EXPECT_EQ(explained.request().DebugString(), request_.DebugString());
  ASSERT_EQ(explained.sites_size(), 3);
  for (const v1::SiteExplanation& site : explained.sites()) {
    for (const v1::Candidate& candidate : site.candidates()) EXPECT_NE(candidate.reason(), "");
  }
}

TEST_F(ResolverTest, RequestWithoutSitesHasAnEmptyPlan) {
  request_.clear_sites();
  EXPECT_EQ(Plan().decisions_size(), 0);
  EXPECT_EQ(Plan().artifacts_size(), 0);
}

}  // namespace
}  // namespace fuseboard
