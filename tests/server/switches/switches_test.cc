#include "server/switches/switches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/sqlite_store.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/faulty_store.h"
#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::FakeClock;
using ::fuseboard::testing::FaultyStore;
using ::fuseboard::testing::FleetScope;
using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::JobScope;
using ::fuseboard::testing::MakeKill;
using ::fuseboard::testing::MakeOverride;
using ::fuseboard::testing::NodeScope;
using ::fuseboard::testing::StatusIs;
using ::fuseboard::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SwitchesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = SqliteStore::Open({.path = folder_.Path("store.db"), .busy_timeout_ms = 0});
    ASSERT_THAT(store, IsOk());
    disk_ = *std::move(store);
    store_ = std::make_unique<FaultyStore>(disk_.get());
  }

  // Sets what expires `ttl` from now; zero: never.
  void Override(const std::string& operation, const v1::Scope& scope, absl::Duration ttl) {
    v1::Override record = MakeOverride(operation, scope, false);
    record.set_expires_at_us(ExpiryOf(ttl));
    Put(OverrideKey(operation, scope), record.SerializeAsString());
  }
  void Kill(const std::string& operation, const v1::Scope& scope, absl::Duration ttl) {
    v1::Kill kill = MakeKill(operation, scope);
    kill.set_expires_at_us(ExpiryOf(ttl));
    Put(KillKey(operation, scope), kill.SerializeAsString());
  }
  void Put(const std::string& key, const std::string& value) {
    ASSERT_THAT(disk_->Put(key, value, {0, "a record of somebody"}), IsOk());
  }

  Switches Load() {
    auto switches = LoadSwitches(*store_, "node1");
    EXPECT_THAT(switches, IsOk());
    return *std::move(switches);
  }
  absl::StatusOr<int> Sweep(const Switches& switches) {
    return SweepExpired(*store_, switches, clock_.Now());
  }
  std::vector<std::string> Keys() {
    const StoreListing listing = *disk_->List("");
    std::vector<std::string> keys;
    keys.reserve(listing.entries.size());
    for (const StoreEntry& entry : listing.entries) keys.push_back(entry.key);
    return keys;
  }
  v1::AuditRecord NewestAudit() {
    v1::AuditRecord record;
    EXPECT_TRUE(record.ParseFromString(disk_->ListAudit(0, 1)->at(0).record));
    return record;
  }
  int64_t Revision() { return disk_->List("")->revision; }

  int64_t ExpiryOf(absl::Duration ttl) {
    return ttl == absl::ZeroDuration() ? 0 : absl::ToUnixMicros(clock_.Now() + ttl);
  }

  FakeClock clock_;
  const TemporaryFolder folder_;
  std::unique_ptr<SqliteStore> disk_;
  std::unique_ptr<FaultyStore> store_;
};

TEST_F(SwitchesTest, KeysDifferByKindOperationAndScopeAndByNothingElse) {
  EXPECT_EQ(OverrideKey("rms_norm", NodeScope()), "override/rms_norm/node");
  EXPECT_EQ(OverrideKey("rms_norm", FleetScope()), "override/rms_norm/fleet");
  EXPECT_EQ(KillKey("*", JobScope("node")), "kill/*/job/node");
  EXPECT_EQ(NodeInputsKey("node1"), "node/node1/inputs");
}

TEST_F(SwitchesTest, EmptyStoreHasNoSwitches) {
  const Switches switches = Load();
  EXPECT_EQ(switches.revision, 1);
  EXPECT_THAT(switches.overrides, IsEmpty());
  EXPECT_THAT(switches.kills, IsEmpty());
  EXPECT_EQ(switches.node_inputs, "");
  EXPECT_EQ(NextExpiry(switches, clock_.Now()), absl::InfiniteFuture());
}

TEST_F(SwitchesTest, LoadedRecordsCarryTheirRevisionAndComeSorted) {
  Override("swiglu", NodeScope(), absl::ZeroDuration());
  Override("rms_norm", NodeScope(), absl::ZeroDuration());
  Kill("*", JobScope("train"), absl::ZeroDuration());
  Put(NodeInputsKey("node1"), "ours");
  Put(NodeInputsKey("node2"), "another's");
  const Switches switches = Load();
  EXPECT_EQ(switches.revision, 6);
  ASSERT_EQ(switches.overrides.size(), 2U);
  EXPECT_EQ(switches.overrides[0].operation(), "rms_norm");
  EXPECT_EQ(switches.overrides[0].revision(), 3);
  EXPECT_EQ(switches.overrides[1].operation(), "swiglu");
  ASSERT_EQ(switches.kills.size(), 1U);
  EXPECT_EQ(switches.kills[0].revision(), 4);
  EXPECT_EQ(switches.node_inputs, "ours");
}

TEST_F(SwitchesTest, ValueThatCannotBeDecodedRefusesTheWholeAndNamesItsKey) {
  Kill("rms_norm", NodeScope(), absl::ZeroDuration());
  Put("kill/swiglu/node", "\xff");
  EXPECT_THAT(
      LoadSwitches(*store_, "node1"),
      StatusIs(absl::StatusCode::kDataLoss, "store: the value of kill/swiglu/node is no Kill"));
}

TEST_F(SwitchesTest, StoreThatCannotBeReadIsToldAsItIs) {
  store_->list_error = absl::UnavailableError("the disk is gone");
  EXPECT_THAT(LoadSwitches(*store_, "node1"),
              StatusIs(absl::StatusCode::kUnavailable, "the disk is gone"));
}

TEST_F(SwitchesTest, ExpiryIsInclusiveAndZeroIsNever) {
  const absl::Time now = clock_.Now();
  const int64_t now_us = absl::ToUnixMicros(now);
  EXPECT_TRUE(IsExpired(now_us - 1, now));
  EXPECT_TRUE(IsExpired(now_us, now));
  EXPECT_FALSE(IsExpired(now_us + 1, now));
  EXPECT_FALSE(IsExpired(0, now));
  EXPECT_FALSE(IsExpired(0, absl::InfiniteFuture()));
}

TEST_F(SwitchesTest, NextExpiryIsTheSoonestThatIsStillToCome) {
  Override("rms_norm", NodeScope(), absl::Seconds(30));
  Kill("rms_norm", NodeScope(), absl::Seconds(20));
  Kill("swiglu", NodeScope(), absl::Seconds(10));
  Kill("*", NodeScope(), absl::ZeroDuration());
  const absl::Time begin = clock_.Now();
  const Switches switches = Load();
  EXPECT_EQ(NextExpiry(switches, begin), begin + absl::Seconds(10));
  EXPECT_EQ(NextExpiry(switches, begin + absl::Seconds(10)), begin + absl::Seconds(20));
  EXPECT_EQ(NextExpiry(switches, begin + absl::Seconds(29)), begin + absl::Seconds(30));
  EXPECT_EQ(NextExpiry(switches, begin + absl::Seconds(30)), absl::InfiniteFuture());
}

TEST_F(SwitchesTest, SweepDeletesWhatHasExpiredAndNothingElse) {
  Override("rms_norm", NodeScope(), absl::Seconds(10));
  Override("swiglu", NodeScope(), absl::Seconds(11));
  Kill("rms_norm", JobScope("train"), absl::Seconds(10));
  Kill("swiglu", FleetScope(), absl::ZeroDuration());
  const Switches switches = Load();
  EXPECT_EQ(*Sweep(switches), 0);
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(*Sweep(switches), 2);
  EXPECT_THAT(Keys(), ElementsAre("kill/swiglu/fleet", "override/swiglu/node"));
  EXPECT_EQ(*Sweep(switches), 0);
  EXPECT_EQ(*Sweep(Load()), 0);
}

TEST_F(SwitchesTest, EachSweptRecordIsOneRevisionWithOneAuditRecord) {
  Kill("rms_norm", JobScope("train"), absl::Seconds(10));
  const int64_t revision = Revision();
  clock_.Advance(absl::Seconds(60));
  ASSERT_EQ(*Sweep(Load()), 1);
  EXPECT_EQ(Revision(), revision + 1);
  const v1::AuditRecord record = NewestAudit();
  EXPECT_EQ(record.at_us(), absl::ToUnixMicros(clock_.Now()));
  EXPECT_EQ(record.action(), "Expire");
  EXPECT_EQ(record.operation(), "rms_norm");
  EXPECT_EQ(record.scope().name(), "train");
  EXPECT_EQ(record.author(), "fuseboardd");
  EXPECT_EQ(record.reason(), "it has expired");
  EXPECT_EQ(record.before(), "killed at job train until 2026-01-02T03:04:15Z, by alice: a test");
  EXPECT_EQ(record.after(), "");
}

TEST_F(SwitchesTest, RecordThatWasRenewedSinceItWasLoadedStays) {
  Override("rms_norm", NodeScope(), absl::Seconds(10));
  const Switches old = Load();
  clock_.Advance(absl::Seconds(10));
  Override("rms_norm", NodeScope(), absl::Seconds(10));
  const int64_t revision = Revision();
  EXPECT_EQ(*Sweep(old), 0);
  EXPECT_EQ(Revision(), revision);
  EXPECT_THAT(Keys(), ElementsAre("override/rms_norm/node"));
}

TEST_F(SwitchesTest, RecordThatIsRenewedWhileItIsSweptStays) {
  Override("rms_norm", NodeScope(), absl::Seconds(10));
  const Switches old = Load();
  clock_.Advance(absl::Seconds(10));
  store_->before_write = [this] { Override("rms_norm", NodeScope(), absl::Seconds(10)); };
  EXPECT_EQ(*Sweep(old), 0);
  EXPECT_THAT(Keys(), ElementsAre("override/rms_norm/node"));
  EXPECT_FALSE(IsExpired(Load().overrides.at(0).expires_at_us(), clock_.Now()));
}

TEST_F(SwitchesTest, ChangeOfSomethingElseMeanwhileOnlyPutsTheSweepOff) {
  Kill("rms_norm", NodeScope(), absl::Seconds(10));
  const Switches old = Load();
  clock_.Advance(absl::Seconds(10));
  store_->before_write = [this] { Override("swiglu", NodeScope(), absl::ZeroDuration()); };
  EXPECT_EQ(*Sweep(old), 0);
  store_->before_write = nullptr;
  EXPECT_EQ(*Sweep(old), 1);
  EXPECT_THAT(Keys(), ElementsAre("override/swiglu/node"));
}

TEST_F(SwitchesTest, KeyThatBeginsWithThatOfAnExpiredOneIsNotSwept) {
  Kill("rms_norm", JobScope("train"), absl::Seconds(10));
  Kill("rms_norm", JobScope("train2"), absl::ZeroDuration());
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(*Sweep(Load()), 1);
  EXPECT_THAT(Keys(), ElementsAre("kill/rms_norm/job/train2"));
}

TEST_F(SwitchesTest, StoreThatCannotBeWrittenEndsTheSweepAndTheNextOneGoesOn) {
  Override("rms_norm", NodeScope(), absl::Seconds(10));
  Kill("rms_norm", NodeScope(), absl::Seconds(10));
  const Switches switches = Load();
  clock_.Advance(absl::Seconds(10));
  store_->before_write = [this] { store_->write_error = absl::UnavailableError("disk full"); };
  EXPECT_THAT(Sweep(switches), StatusIs(absl::StatusCode::kUnavailable, "disk full"));
  EXPECT_THAT(Keys(), ElementsAre("kill/rms_norm/node"));
  store_->write_error = absl::OkStatus();
  store_->before_write = nullptr;
  EXPECT_EQ(*Sweep(switches), 1);
  EXPECT_THAT(Keys(), IsEmpty());
}

TEST_F(SwitchesTest, TextsSayWhereUntilWhenByWhomAndWhy) {
  v1::Override record = MakeOverride("rms_norm", JobScope("train"), true);
  EXPECT_EQ(OverrideText(record), "on at job train, by alice: a test");
  record.set_expires_at_us(absl::ToUnixMicros(clock_.Now()));
  record.set_enabled(false);
  EXPECT_EQ(OverrideText(record), "off at job train until 2026-01-02T03:04:05Z, by alice: a test");
  EXPECT_EQ(KillText(MakeKill("*", FleetScope())), "killed at fleet, by alice: a test");
}

}  // namespace
}  // namespace fuseboard
