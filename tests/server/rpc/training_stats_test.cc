#include "server/rpc/training_stats.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace fuseboard {
namespace {

v1::ReportProgressRequest Progress(const std::string& instance, int64_t fused,
                                   const std::map<std::string, int64_t>& fallbacks = {}) {
  v1::ReportProgressRequest progress;
  progress.set_instance_id(instance);
  v1::OperationCounter* counter = progress.add_counters();
  counter->set_operation("rms_norm");
  counter->set_fused_calls(fused);
  for (const auto& [reason, calls] : fallbacks) {
    (*counter->mutable_fallback_calls())[reason] = calls;
  }
  return progress;
}

int64_t Fused(const TrainingStats& stats) { return stats.Read().operations.at("rms_norm").fused; }

TEST(TrainingStatsTest, AddsWhatIsNewOfCumulativeCounts) {
  TrainingStats stats;
  stats.RecordProgress(Progress("a", 10));
  stats.RecordProgress(Progress("a", 15));
  stats.RecordProgress(Progress("a", 15));
  stats.RecordProgress(Progress("b", 100));
  EXPECT_EQ(Fused(stats), 115);
}

TEST(TrainingStatsTest, CountThatWentDownBeganAnew) {
  TrainingStats stats;
  stats.RecordProgress(Progress("a", 10));
  stats.RecordProgress(Progress("a", 3));
  EXPECT_EQ(Fused(stats), 13);
}

TEST(TrainingStatsTest, PruneForgetsProcessesButNoTotals) {
  TrainingStats stats;
  stats.RecordProgress(Progress("a", 10));
  stats.RecordProgress(Progress("b", 10));
  stats.Prune([](absl::string_view id) { return id == "b"; });
  EXPECT_EQ(Fused(stats), 20);
  stats.RecordProgress(Progress("a", 10));  // Unknown again: counts from zero.
  stats.RecordProgress(Progress("b", 10));
  EXPECT_EQ(Fused(stats), 30);
}

TEST(TrainingStatsTest, LateReasonsCountTogetherAndExactly) {
  TrainingStats stats;
  std::map<std::string, int64_t> fallbacks;
  for (int i = 0; i < 100; ++i) fallbacks[absl::StrCat("reason ", i)] = 2;
  stats.RecordProgress(Progress("a", 0, fallbacks));
  for (auto& [reason, calls] : fallbacks) ++calls;
  stats.RecordProgress(Progress("a", 0, fallbacks));
  const auto totals = stats.Read();
  const auto& reasons = totals.operations.at("rms_norm").fallbacks;
  EXPECT_EQ(reasons.size(), TrainingStats::kMaxReasons + 1);
  EXPECT_EQ(reasons.at("other"), 3 * (100 - static_cast<int64_t>(TrainingStats::kMaxReasons)));
}

TEST(TrainingStatsTest, LateOperationsCountTogether) {
  TrainingStats stats;
  v1::ReportProgressRequest progress;
  progress.set_instance_id("a");
  for (int i = 0; i < 200; ++i) {
    v1::OperationCounter* counter = progress.add_counters();
    counter->set_operation(absl::StrCat("operation ", i));
    counter->set_fused_calls(1);
  }
  stats.RecordProgress(progress);
  const auto totals = stats.Read();
  EXPECT_EQ(totals.operations.size(), TrainingStats::kMaxOperations + 1);
  EXPECT_EQ(totals.operations.at("other").fused,
            200 - static_cast<int64_t>(TrainingStats::kMaxOperations));
}

TEST(TrainingStatsTest, ResolveCountsAsKernelIfAnySiteRunsOne) {
  TrainingStats stats;
  v1::Plan plan;
  plan.add_decisions()->set_kind(v1::DECISION_KIND_NATIVE);
  stats.RecordResolve(plan);
  plan.add_decisions()->set_kind(v1::DECISION_KIND_KERNEL);
  stats.RecordResolve(plan);
  stats.RecordRejectedResolve();
  const std::map<std::string, int64_t> want = {{"kernel", 1}, {"native", 1}, {"rejected", 1}};
  EXPECT_EQ(stats.Read().resolves, want);
}

}  // namespace
}  // namespace fuseboard
