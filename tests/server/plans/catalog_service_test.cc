#include "server/plans/catalog_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/common/error_reason.h"
#include "server/resolver/resolver.h"
#include "tests/testing/running_core.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::JobScope;
using ::fuseboard::testing::MakeKill;
using ::fuseboard::testing::MakeOverride;
using ::fuseboard::testing::NodeScope;
using ::fuseboard::testing::RunningCore;
using ::fuseboard::testing::SampleCatalog;
using ::fuseboard::testing::SampleKernel;
using ::fuseboard::testing::StatusIs;
using ::testing::ElementsAre;

class CatalogServiceTest : public ::testing::Test {
 protected:
  void Set(const v1::Kill& kill) {
    ASSERT_THAT(
        core_.store->Put(KillKey(kill.operation(), kill.scope()), kill.SerializeAsString(), {}),
        IsOk());
  }
  void Set(const v1::Override& record) {
    ASSERT_THAT(core_.store->Put(OverrideKey(record.operation(), record.scope()),
                                 record.SerializeAsString(), {}),
                IsOk());
  }
  void Remove(const std::string& library) {
    std::filesystem::remove(core_.folder.Path(absl::StrCat("kernels/", library, ".so")));
    std::filesystem::remove(core_.folder.Path(absl::StrCat("kernels/", library, ".textpb")));
    core_.snapshots->Refresh();
  }
  // Makes the library's file another one than its manifest says.
  void Break(const std::string& library) {
    core_.folder.Write(absl::StrCat("kernels/", library, ".so"), "");
    core_.snapshots->Refresh();
  }
  void SetCatalog(const v1::CatalogFile& file) {
    core_.snapshots->Reconfigure(*Catalog::Create(file), {core_.folder.Path("kernels")});
  }

  // The only status of `operation`.
  v1::KernelStatus Status(const std::string& operation) {
    const v1::ListKernelsResponse response = service_.ListKernels();
    std::vector<v1::KernelStatus> found;
    for (const v1::KernelStatus& status : response.kernels()) {
      if (status.operation() == operation) found.push_back(status);
    }
    EXPECT_EQ(found.size(), 1U) << operation;
    return found.empty() ? v1::KernelStatus() : found.front();
  }
  void Expect(const std::string& operation, bool enabled, v1::Rule rule,
              const std::string& reason) {
    const v1::KernelStatus status = Status(operation);
    EXPECT_EQ(status.enabled(), enabled) << operation;
    EXPECT_EQ(v1::Rule_Name(status.rule()), v1::Rule_Name(rule)) << operation;
    EXPECT_EQ(status.reason(), reason);
  }

  RunningCore core_;
  CatalogService service_{core_.snapshots.get(), &core_.processes};
};

// ---- Models and entries ----

TEST_F(CatalogServiceTest, ModelsAreListedSortedByTheirType) {
  v1::CatalogFile file = SampleCatalog();
  file.add_models()->set_model_type("gemma");
  SetCatalog(file);
  const v1::ListModelsResponse response = service_.ListModels();
  ASSERT_EQ(response.models_size(), 2);
  EXPECT_EQ(response.models(0).model_type(), "gemma");
  EXPECT_EQ(response.models(1).model_type(), "llama");
  EXPECT_EQ(response.models(1).entries_size(), 3);
}

TEST_F(CatalogServiceTest, DescribedModelComesWithItsEntriesInItsOrder) {
  v1::DescribeModelRequest request;
  request.set_model_type("llama");
  const auto response = service_.DescribeModel(request);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->model().model_type(), "llama");
  ASSERT_EQ(response->entries_size(), 3);
  EXPECT_EQ(response->entries(0).id(), "rms_norm/llama");
  EXPECT_EQ(response->entries(2).id(), "head/llama");
  EXPECT_EQ(response->entries(2).operation(), "fused_linear_cross_entropy");
}

TEST_F(CatalogServiceTest, UnknownModelIsNotFoundAndTheKnownOnesAreNamed) {
  v1::DescribeModelRequest request;
  request.set_model_type("lama");
  const auto response = service_.DescribeModel(request);
  EXPECT_THAT(response, StatusIs(absl::StatusCode::kNotFound,
                                 R"(unknown model "lama", the catalogue names llama)"));
  EXPECT_EQ(ReasonOf(response.status()), "UNKNOWN_MODEL");
  const auto error = ErrorInfoOf(response.status());
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->metadata().at("model_type"), "lama");
}

TEST_F(CatalogServiceTest, CatalogueWithoutModelsSaysSo) {
  SetCatalog(v1::CatalogFile());
  v1::DescribeModelRequest request;
  request.set_model_type("llama");
  EXPECT_THAT(
      service_.DescribeModel(request),
      StatusIs(absl::StatusCode::kNotFound, R"(unknown model "llama", the catalogue names none)"));
  EXPECT_EQ(service_.ListModels().models_size(), 0);
}

TEST_F(CatalogServiceTest, ModelMustBeNamed) {
  const auto response = service_.DescribeModel(v1::DescribeModelRequest());
  EXPECT_THAT(response,
              StatusIs(absl::StatusCode::kInvalidArgument, "model_type: empty, want a model type"));
  EXPECT_EQ(ReasonOf(response.status()), "BAD_REQUEST");
}

TEST_F(CatalogServiceTest, EntriesAreListedInOrderOfPrecedence) {
  const v1::ListEntriesResponse response = service_.ListEntries();
  std::vector<std::string> ids;
  for (const v1::CatalogEntry& entry : response.entries()) ids.push_back(entry.id());
  EXPECT_THAT(ids, ElementsAre("rms_norm/llama", "swiglu/llama", "head/llama"));
}

TEST_F(CatalogServiceTest, ReconfiguredCatalogueIsTheOneThatIsTold) {
  v1::CatalogFile file = SampleCatalog();
  file.mutable_entries()->DeleteSubrange(1, 2);
  file.mutable_models(0)->mutable_entries()->DeleteSubrange(1, 2);
  SetCatalog(file);
  EXPECT_EQ(service_.ListEntries().entries_size(), 1);
}

// ---- Kernels ----

TEST_F(CatalogServiceTest, KernelsAreListedByOperationWithTheirDefaults) {
  const v1::ListKernelsResponse response = service_.ListKernels();
  std::vector<std::string> operations;
  for (const v1::KernelStatus& status : response.kernels()) {
    operations.push_back(status.operation());
    EXPECT_EQ(status.error(), "");
    EXPECT_EQ(status.active_sites(), 0);
  }
  EXPECT_THAT(operations,
              ElementsAre("cross_entropy", "fused_linear_cross_entropy", "rms_norm", "swiglu"));
  Expect("rms_norm", true, v1::RULE_CATALOGUE, "on by default");
  Expect("swiglu", false, v1::RULE_NATIVE, "off by default");
  Expect("fused_linear_cross_entropy", true, v1::RULE_CATALOGUE, "on by default");
  // Only the composite is in the catalogue; its kernel is on with it.
  Expect("cross_entropy", true, v1::RULE_CATALOGUE, "on by default");
  EXPECT_EQ(Status("rms_norm").manifest().version(), "0.1.0");
  EXPECT_FALSE(Status("fused_linear_cross_entropy").has_manifest());
}

TEST_F(CatalogServiceTest, EveryVersionHasItsOwnStatusNewestFirst) {
  v1::Manifest manifest = SampleKernel("rms_norm").manifest;
  manifest.set_version("0.10.0");
  core_.folder.WriteLibrary("kernels/newer", manifest, "newer");
  core_.snapshots->Reconfigure(*Catalog::Create(SampleCatalog()),
                               {core_.folder.Path("kernels"), core_.folder.Path("kernels/newer")});
  Break("newer/rms_norm");
  const v1::ListKernelsResponse response = service_.ListKernels();
  ASSERT_EQ(response.kernels_size(), 5);
  EXPECT_EQ(response.kernels(2).manifest().version(), "0.10.0");
  EXPECT_FALSE(response.kernels(2).enabled());
  EXPECT_EQ(response.kernels(3).manifest().version(), "0.1.0");
  EXPECT_TRUE(response.kernels(3).enabled());
}

TEST_F(CatalogServiceTest, KillAndOverrideOfTheNodeAreTold) {
  Set(MakeOverride("swiglu", NodeScope(), true));
  Set(MakeOverride("rms_norm", NodeScope(), true));
  Set(MakeKill("rms_norm", NodeScope()));
  Expect("swiglu", true, v1::RULE_OVERRIDE, "switched on at node, by alice: a test");
  Expect("rms_norm", false, v1::RULE_KILL, "kernel rms_norm is killed at node, by alice: a test");
}

TEST_F(CatalogServiceTest, KillOfAKernelReachesTheCompositeThatUsesIt) {
  Set(MakeKill("cross_entropy", NodeScope()));
  Expect("fused_linear_cross_entropy", false, v1::RULE_KILL,
         "fused_linear_cross_entropy uses cross_entropy, and kernel cross_entropy is killed at "
         "node, by alice: a test");
}

TEST_F(CatalogServiceTest, SwitchesOfOneJobSayNothingOfTheNode) {
  Set(MakeOverride("swiglu", JobScope("train"), true));
  Set(MakeKill("rms_norm", JobScope("train")));
  Expect("swiglu", false, v1::RULE_NATIVE, "off by default");
  Expect("rms_norm", true, v1::RULE_CATALOGUE, "on by default");
}

TEST_F(CatalogServiceTest, BrokenLibraryIsOffWhateverIsSwitchedAndSaysWhy) {
  Set(MakeOverride("rms_norm", NodeScope(), true));
  Break("rms_norm");
  const std::string error =
      absl::StrCat(core_.folder.Path("kernels/rms_norm.so"), " has 0 bytes, want 8");
  EXPECT_EQ(Status("rms_norm").error(), error);
  Expect("rms_norm", false, v1::RULE_INCOMPATIBLE, error);
  Set(MakeKill("*", NodeScope()));
  Expect("rms_norm", false, v1::RULE_KILL, "every kernel is killed at node, by alice: a test");
  EXPECT_EQ(Status("rms_norm").error(), error);
}

TEST_F(CatalogServiceTest, OperationWithoutALibraryIsListedWithWhatIsMissing) {
  Remove("swiglu");
  const std::string error = "there is no library of kernel swiglu on this node";
  EXPECT_EQ(Status("swiglu").error(), error);
  EXPECT_FALSE(Status("swiglu").has_manifest());
  Expect("swiglu", false, v1::RULE_INCOMPATIBLE, error);
}

TEST_F(CatalogServiceTest, CompositeWhoseKernelIsBrokenOrMissingCannotBeHandedOut) {
  const std::string error =
      "fused_linear_cross_entropy uses cross_entropy, which cannot be handed out";
  Break("cross_entropy");
  Expect("fused_linear_cross_entropy", false, v1::RULE_INCOMPATIBLE, error);
  Remove("cross_entropy");
  Expect("fused_linear_cross_entropy", false, v1::RULE_INCOMPATIBLE, error);
}

TEST_F(CatalogServiceTest, CompositeWhoseBindingIsBrokenOrMissingCannotBeHandedOut) {
  Break("fuseboard_torch");
  EXPECT_EQ(Status("fused_linear_cross_entropy").error(),
            "no binding that has fused_linear_cross_entropy can be handed out");
  EXPECT_FALSE(Status("fused_linear_cross_entropy").enabled());
  Remove("fuseboard_torch");
  EXPECT_EQ(Status("fused_linear_cross_entropy").error(),
            "there is no library of kernel fused_linear_cross_entropy on this node");
}

TEST_F(CatalogServiceTest, ActiveSitesAreThoseOfLiveProcessesThatRunIt) {
  const v1::ResolveRequest request = core_.AddProcess(1, "train");
  EXPECT_EQ(Status("rms_norm").active_sites(), 0);  // Nothing was sent yet.
  core_.processes.Register(
      std::make_shared<const v1::ResolveRequest>(request),
      std::make_shared<const v1::Plan>(ResolvePlan(request, core_.snapshots->Current())));
  EXPECT_EQ(Status("rms_norm").active_sites(), 65);
  EXPECT_EQ(Status("swiglu").active_sites(), 0);
  EXPECT_EQ(Status("fused_linear_cross_entropy").active_sites(), 1);
  core_.clock.Advance(absl::Minutes(1));
  EXPECT_EQ(Status("rms_norm").active_sites(), 0);
}

}  // namespace
}  // namespace fuseboard
