#include "server/plans/snapshot_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/faulty_store.h"
#include "tests/testing/running_core.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::FaultyStore;
using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::MakeKill;
using ::fuseboard::testing::NodeScope;
using ::fuseboard::testing::RunningCore;
using ::fuseboard::testing::SampleCatalog;
using ::fuseboard::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SnapshotSourceTest : public ::testing::Test {
 protected:
  // Another source over the same files, as of a daemon that was started again.
  absl::StatusOr<std::unique_ptr<SnapshotSource>> Start() {
    return SnapshotSource::Create({&core_.clock, &store_, *Catalog::Create(SampleCatalog()),
                                   &core_.libraries, &core_.deny, /*node=*/"node1"});
  }
  void Kill(const std::string& operation, absl::Duration ttl) {
    v1::Kill kill = MakeKill(operation, NodeScope());
    kill.set_expires_at_us(absl::ToUnixMicros(core_.clock.Now() + ttl));
    ASSERT_THAT(core_.store->Put(KillKey(operation, NodeScope()), kill.SerializeAsString(), {}),
                IsOk());
  }
  void Deny(const std::string& operation) {
    chmod(core_.folder.Write("deny", operation).c_str(), 0644);
  }
  v1::AuditRecord NewestAudit() {
    v1::AuditRecord record;
    EXPECT_TRUE(record.ParseFromString(core_.store->ListAudit(0, 1)->at(0).record));
    return record;
  }

  RunningCore core_;
  FaultyStore store_{core_.store.get()};
  std::unique_ptr<SnapshotSource> source_ = *Start();
};

TEST_F(SnapshotSourceTest, MutationIsInTheNextSnapshotAndNotInAnEarlierOne) {
  const Snapshot before = source_->Current();
  Kill("rms_norm", absl::Minutes(1));
  EXPECT_THAT(before.switches->kills, IsEmpty());
  const Snapshot after = source_->Current();
  EXPECT_EQ(after.switches->kills.size(), 1U);
  EXPECT_EQ(after.revision(), before.revision() + 1);
  EXPECT_EQ(after.now, core_.clock.Now());
  EXPECT_EQ(after.store_id, core_.store->store_id());
}

TEST_F(SnapshotSourceTest, RefreshSweepsWhatHasExpiredAndCurrentDoesNot) {
  const absl::Time begin = core_.clock.Now();
  Kill("rms_norm", absl::Seconds(10));
  Kill("swiglu", absl::Seconds(20));
  const int64_t revision = source_->Current().revision();
  EXPECT_EQ(source_->NextExpiry(), begin + absl::Seconds(10));
  core_.clock.Advance(absl::Seconds(10));
  EXPECT_EQ(source_->Current().revision(), revision);
  EXPECT_EQ(source_->NextExpiry(), begin + absl::Seconds(20));
  const Snapshot swept = source_->Refresh();
  EXPECT_EQ(swept.revision(), revision + 1);
  ASSERT_EQ(swept.switches->kills.size(), 1U);
  EXPECT_EQ(swept.switches->kills[0].operation(), "swiglu");
  EXPECT_EQ(NewestAudit().action(), "Expire");
  EXPECT_TRUE(source_->revision_stands());
}

TEST_F(SnapshotSourceTest, StoreThatCannotBeReadAtTheStartIsAnError) {
  store_.list_error = absl::UnavailableError("the disk is gone");
  EXPECT_THAT(Start(), StatusIs(absl::StatusCode::kUnavailable, "the disk is gone"));
}

TEST_F(SnapshotSourceTest, StoreThatCannotBeReadLaterLeavesTheLastGoodConfigurationInForce) {
  Kill("rms_norm", absl::Minutes(1));
  ASSERT_EQ(source_->Current().switches->kills.size(), 1U);
  store_.list_error = absl::UnavailableError("the disk is gone");
  Kill("swiglu", absl::Minutes(1));
  EXPECT_EQ(source_->Current().switches->kills.size(), 1U);
  EXPECT_EQ(source_->Refresh().switches->kills.size(), 1U);
  EXPECT_THAT(source_->Problems(), ElementsAre("the disk is gone"));
  store_.list_error = absl::OkStatus();
  EXPECT_EQ(source_->Current().switches->kills.size(), 2U);
  EXPECT_THAT(source_->Problems(), IsEmpty());
}

TEST_F(SnapshotSourceTest, WhatCannotBeSweptHasExpiredAllTheSame) {
  Kill("rms_norm", absl::Seconds(10));
  core_.clock.Advance(absl::Seconds(10));
  store_.write_error = absl::UnavailableError("the disk is full");
  const Snapshot snapshot = source_->Refresh();
  ASSERT_EQ(snapshot.switches->kills.size(), 1U);
  EXPECT_TRUE(IsExpired(snapshot.switches->kills[0].expires_at_us(), snapshot.now));
  EXPECT_THAT(source_->Problems(), ElementsAre("the disk is full"));
  store_.write_error = absl::OkStatus();
  EXPECT_THAT(source_->Refresh().switches->kills, IsEmpty());
  EXPECT_THAT(source_->Problems(), IsEmpty());
}

TEST_F(SnapshotSourceTest, StartWithTheSameInputsIsNoNewRevision) {
  const int64_t revision = core_.Revision();
  const auto again = Start();
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ((*again)->Current().revision(), revision);
  EXPECT_TRUE((*again)->revision_stands());
}

TEST_F(SnapshotSourceTest, ChangedDenyFileIsOneRevisionWithAnAuditRecord) {
  const int64_t revision = core_.Revision();
  Deny("rms_norm");
  const Snapshot snapshot = source_->Refresh();
  EXPECT_TRUE(snapshot.deny->Contains("rms_norm"));
  EXPECT_EQ(snapshot.revision(), revision + 1);
  EXPECT_EQ(NewestAudit().action(), "NodeChange");
  EXPECT_EQ(NewestAudit().author(), "fuseboardd");
  EXPECT_EQ(source_->Refresh().revision(), revision + 1);
}

TEST_F(SnapshotSourceTest, ChangeThatCannotBeRecordedHoldsButTheRevisionDoesNotStand) {
  Deny("rms_norm");
  store_.write_error = absl::UnavailableError("the disk is full");
  EXPECT_TRUE(source_->Refresh().deny->Contains("rms_norm"));
  EXPECT_FALSE(source_->revision_stands());
  EXPECT_THAT(source_->Problems(), ElementsAre("the disk is full"));
  store_.write_error = absl::OkStatus();
  source_->Refresh();
  EXPECT_TRUE(source_->revision_stands());
}

TEST_F(SnapshotSourceTest, SomebodyWhoIsFasterPutsTheRecordOffAndLosesNothing) {
  Deny("rms_norm");
  store_.before_write = [this] { Kill("swiglu", absl::Minutes(1)); };
  source_->Refresh();
  EXPECT_FALSE(source_->revision_stands());
  store_.before_write = nullptr;
  const Snapshot snapshot = source_->Refresh();
  EXPECT_TRUE(source_->revision_stands());
  EXPECT_EQ(snapshot.switches->kills.size(), 1U);
  EXPECT_EQ(snapshot.revision(), core_.Revision());
}

TEST_F(SnapshotSourceTest, CatalogueAndLibrariesAreReplacedTogether) {
  const int64_t revision = core_.Revision();
  const Snapshot snapshot =
      source_->Reconfigure(*Catalog::Create(v1::CatalogFile()), {core_.folder.Path("none")});
  EXPECT_EQ(snapshot.catalog->entries().size(), 0);
  EXPECT_THAT(snapshot.libraries->libraries(), IsEmpty());
  EXPECT_EQ(snapshot.revision(), revision + 1);
}

TEST_F(SnapshotSourceTest, ListenerHearsOfEveryMutationUntilItIsRemoved) {
  int heard = 0;
  source_->SetListener([&heard] { ++heard; });
  Kill("rms_norm", absl::Minutes(1));
  Kill("swiglu", absl::Minutes(1));
  EXPECT_EQ(heard, 2);
  source_->SetListener(nullptr);
  Kill("*", absl::Minutes(1));
  EXPECT_EQ(heard, 2);
}

TEST_F(SnapshotSourceTest, ProblemsOfAllPartsAreToldAsUtf8) {
  Deny("Rms Norm");
  const std::string library = core_.folder.Write("kernels/swiglu.so", "");
  core_.folder.Write("kernels/a\xff.textpb", "");
  source_->Refresh();
  EXPECT_THAT(source_->Problems(),
              ElementsAre(core_.folder.Path(R"(kernels/a\xff.textpb: the name is not UTF-8)"),
                          core_.folder.Path("deny: line 1 is no operation: \"Rms Norm\""),
                          "swiglu: " + library + " has 0 bytes, want 6"));
}

}  // namespace
}  // namespace fuseboard
