#include "server/daemon/daemon_core.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::SampleCatalog;
using ::fuseboard::testing::SampleKernel;
using ::fuseboard::testing::SampleLibraries;
using ::fuseboard::testing::SampleRequest;
using ::fuseboard::testing::StatusIs;
using ::fuseboard::testing::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DaemonCoreTest : public ::testing::Test {
 protected:
  DaemonCoreTest() {
    std::string text;
    google::protobuf::TextFormat::PrintToString(SampleCatalog(), &text);
    home_.Write(catalog_file_, text);
    for (const Library& library : SampleLibraries()) {
      home_.WriteLibrary("lib/fuseboard/kernels", library.manifest, library.manifest.name());
    }
    config_.set_home(home_.path());
    config_.set_state_dir(state_.path());
    config_.set_deny_file(state_.Path("deny"));
    config_.set_liveness_seconds(7);
  }

  const std::string catalog_file_ = "share/fuseboard/catalog/all.textpb";
  const TemporaryFolder home_;
  const TemporaryFolder state_;
  v1::DaemonConfig config_;
};

TEST_F(DaemonCoreTest, ServicesShareWhatTheConfigurationNames) {
  const auto core = DaemonCore::Open(config_);
  ASSERT_THAT(core, IsOk());
  const auto response = (*core)->resolver_service()->Resolve(SampleRequest());
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->liveness_seconds(), 7);
  EXPECT_EQ(response->plan().store_id(), (*core)->store()->store_id());
  EXPECT_EQ(response->plan().decisions(0).kind(), v1::DECISION_KIND_KERNEL);
  EXPECT_EQ((*core)->processes()->LiveCount(), 1);
  EXPECT_EQ((*core)->catalog_service()->ListEntries().entries_size(), 3);
  EXPECT_EQ((*core)->control_service()->ListKills()->revision(), response->plan().revision());
  EXPECT_THAT((*core)->snapshots()->Problems(), IsEmpty());
}

TEST_F(DaemonCoreTest, ReopenedCoreHasTheSameStoreAndRevision) {
  auto core = DaemonCore::Open(config_);
  ASSERT_THAT(core, IsOk());
  const Snapshot before = (*core)->snapshots()->Current();
  core->reset();
  core = DaemonCore::Open(config_);
  ASSERT_THAT(core, IsOk());
  EXPECT_EQ((*core)->snapshots()->Current().store_id, before.store_id);
  EXPECT_EQ((*core)->snapshots()->Current().revision(), before.revision());
}

TEST_F(DaemonCoreTest, BrokenCatalogueIsAnErrorThatNamesItsFile) {
  const std::string path = home_.Write(catalog_file_, "entries {");
  EXPECT_THAT(DaemonCore::Open(config_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path + ":1:")));
}

TEST_F(DaemonCoreTest, BrokenStoreIsAnErrorThatNamesItsFile) {
  const std::string path = state_.Write("store.sqlite", "this is no database, but it is a file");
  EXPECT_THAT(DaemonCore::Open(config_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(path)));
}

TEST_F(DaemonCoreTest, ReconfigureTakesOverCatalogueAndLibraries) {
  const auto core = DaemonCore::Open(config_);
  ASSERT_THAT(core, IsOk());
  const int64_t revision = (*core)->snapshots()->Current().revision();
  home_.WriteLibrary("more", SampleKernel("geglu").manifest, "code");
  home_.Write(catalog_file_, "");
  v1::DaemonConfig next = config_;
  next.add_kernel_dirs(home_.Path("more"));
  ASSERT_THAT((*core)->Reconfigure(next), IsOk());
  const Snapshot snapshot = (*core)->snapshots()->Current();
  EXPECT_EQ(snapshot.revision(), revision + 1);
  EXPECT_EQ(snapshot.catalog->entries().size(), 0);
  EXPECT_EQ(snapshot.libraries->Kernels("geglu").size(), 1U);
}

TEST_F(DaemonCoreTest, ReconfigureWithABrokenCatalogueChangesNothing) {
  const auto core = DaemonCore::Open(config_);
  ASSERT_THAT(core, IsOk());
  const int64_t revision = (*core)->snapshots()->Current().revision();
  const std::string path = home_.Write("more/bad.textpb", "no such field: 1");
  home_.WriteLibrary("kernels", SampleKernel("geglu").manifest, "code");
  v1::DaemonConfig next = config_;
  next.add_catalog_dirs(home_.Path("more"));
  next.add_kernel_dirs(home_.Path("kernels"));
  EXPECT_THAT((*core)->Reconfigure(next),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path + ":1:")));
  const Snapshot snapshot = (*core)->snapshots()->Refresh();
  EXPECT_EQ(snapshot.revision(), revision);
  EXPECT_EQ(snapshot.catalog->entries().size(), 3);
  EXPECT_TRUE(snapshot.libraries->Kernels("geglu").empty());
}

}  // namespace
}  // namespace fuseboard
