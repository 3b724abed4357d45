#include "server/control/effects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/sample_node.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::JobScope;
using ::fuseboard::testing::MakeKill;
using ::fuseboard::testing::MakeOverride;
using ::fuseboard::testing::NodeScope;
using ::fuseboard::testing::SampleFingerprint;
using ::fuseboard::testing::SampleInstance;
using ::fuseboard::testing::SampleLibraries;
using ::fuseboard::testing::SampleRequest;
using ::fuseboard::testing::SampleSnapshot;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class EffectsTest : public ::testing::Test {
 protected:
  // Adds a running process; the test may change what it asked.
  v1::ResolveRequest& AddProcess(const std::string& job, int rank) {
    auto request = std::make_shared<v1::ResolveRequest>(SampleRequest());
    request->mutable_job()->set_name(job);
    request->mutable_job()->set_world_size(8);
    request->mutable_job()->set_rank(rank);
    request->mutable_job()->set_instance_id(SampleInstance(rank));
    requests_.push_back(request);
    return *request;
  }

  static void Set(const v1::Override& record, Snapshot& snapshot) {
    Switches switches = *snapshot.switches;
    switches.overrides.push_back(record);
    snapshot.switches = std::make_shared<const Switches>(std::move(switches));
  }
  static void Set(const v1::Kill& kill, Snapshot& snapshot) {
    Switches switches = *snapshot.switches;
    switches.kills.push_back(kill);
    snapshot.switches = std::make_shared<const Switches>(std::move(switches));
  }

  // "train/0 norm x65 rms_norm: KERNEL to NATIVE".
  [[nodiscard]] std::vector<std::string> Effects() const {
    const auto kind = [](v1::DecisionKind value) {
      return v1::DecisionKind_Name(value).substr(std::string("DECISION_KIND_").size());
    };
    std::vector<std::string> texts;
    for (const v1::Effect& effect : ComputeEffects(requests_, before_, after_)) {
      texts.push_back(absl::StrCat(effect.job_name(), "/", effect.rank(), " ", effect.site_id(),
                                   " x", effect.count(), " ", effect.operation(), ": ",
                                   kind(effect.before()), " to ", kind(effect.after())));
    }
    return texts;
  }

  std::vector<std::shared_ptr<const v1::ResolveRequest>> requests_;
  Snapshot before_ = SampleSnapshot();
  Snapshot after_ = SampleSnapshot();
};

TEST_F(EffectsTest, NothingRunsOrNothingChangesIsNoEffect) {
  Set(MakeKill("*", NodeScope()), after_);
  EXPECT_THAT(Effects(), IsEmpty());
  AddProcess("train", 0);
  after_ = before_;
  EXPECT_THAT(Effects(), IsEmpty());
}

TEST_F(EffectsTest, KillOfEverythingTakesEachKernelThatRunsButNotTheComposite) {
  AddProcess("train", 0);
  Set(MakeKill("*", NodeScope()), after_);
  EXPECT_THAT(Effects(),
              ElementsAre("train/0 norm x65 rms_norm: KERNEL to NATIVE",
                          "train/0 head x1 fused_linear_cross_entropy: KERNEL to NATIVE"));
}

TEST_F(EffectsTest, KillOfOneKernelLeavesTheCompositeOfTheOperationThatUsesIt) {
  AddProcess("train", 0);
  Set(MakeKill("cross_entropy", NodeScope()), after_);
  EXPECT_THAT(Effects(), ElementsAre("train/0 head x1 fused_linear_cross_entropy: "
                                     "KERNEL to COMPOSITE"));
}

TEST_F(EffectsTest, LiftedKillGivesTheKernelBack) {
  AddProcess("train", 0);
  Set(MakeKill("rms_norm", NodeScope()), before_);
  EXPECT_THAT(Effects(), ElementsAre("train/0 norm x65 rms_norm: NATIVE to KERNEL"));
}

TEST_F(EffectsTest, OverrideThatSwitchesOnIsAnEffectToo) {
  AddProcess("train", 0);
  Set(MakeOverride("swiglu", NodeScope(), true), after_);
  EXPECT_THAT(Effects(), ElementsAre("train/0 mlp x32 swiglu: NATIVE to KERNEL"));
}

TEST_F(EffectsTest, EveryRankOfTheJobIsNamedInOrderAndNoOtherJob) {
  AddProcess("train", 1);
  AddProcess("other", 2);
  AddProcess("train", 0);
  Set(MakeKill("rms_norm", JobScope("train")), after_);
  EXPECT_THAT(Effects(), ElementsAre("train/1 norm x65 rms_norm: KERNEL to NATIVE",
                                     "train/0 norm x65 rms_norm: KERNEL to NATIVE"));
  EXPECT_EQ(ComputeEffects(requests_, before_, after_).at(1).instance_id(), SampleInstance(0));
}

TEST_F(EffectsTest, AnotherReasonForTheSameKindIsNoEffect) {
  AddProcess("train", 0);
  Set(MakeOverride("rms_norm", NodeScope(), false), before_);
  Set(MakeKill("rms_norm", NodeScope()), after_);
  EXPECT_THAT(Effects(), IsEmpty());
}

TEST_F(EffectsTest, OverrideOfWhatIsKilledIsNoEffect) {
  AddProcess("train", 0);
  for (Snapshot* snapshot : {&before_, &after_}) Set(MakeKill("swiglu", NodeScope()), *snapshot);
  Set(MakeOverride("swiglu", NodeScope(), true), after_);
  EXPECT_THAT(Effects(), IsEmpty());
}

TEST_F(EffectsTest, WhatTheProcessDoesNotWantOrCannotRunIsNotAffected) {
  AddProcess("train", 0).add_opt_out("rms_norm");
  AddProcess("train", 1).mutable_sites(0)->set_fingerprint(SampleFingerprint('f'));
  AddProcess("train", 2).mutable_environment()->set_torch_version("1.0.0");
  AddProcess("train", 3).clear_sites();
  AddProcess("train", 4);
  Set(MakeKill("rms_norm", NodeScope()), after_);
  EXPECT_THAT(Effects(), ElementsAre("train/4 norm x65 rms_norm: KERNEL to NATIVE"));
}

TEST_F(EffectsTest, ExpiredKillIsAsIfItWereNotThere) {
  AddProcess("train", 0);
  v1::Kill kill = MakeKill("rms_norm", NodeScope());
  kill.set_expires_at_us(absl::ToUnixMicros(before_.now));
  Set(kill, before_);
  EXPECT_THAT(Effects(), IsEmpty());
  before_.now -= absl::Microseconds(1);
  EXPECT_THAT(Effects(), ElementsAre("train/0 norm x65 rms_norm: NATIVE to KERNEL"));
}

TEST_F(EffectsTest, LibraryThatBreaksIsAnEffectOfTheKernelsThatNeedIt) {
  AddProcess("train", 0);
  std::vector<Library> libraries = SampleLibraries();
  for (Library& library : libraries) {
    if (library.manifest.name() == "rms_norm") library.error = "it is broken";
  }
  after_.libraries = std::make_shared<const LibrarySet>(std::move(libraries));
  EXPECT_THAT(Effects(), ElementsAre("train/0 norm x65 rms_norm: KERNEL to NATIVE"));
}

}  // namespace
}  // namespace fuseboard
