#include "server/rpc/training_stats.h"

#include <algorithm>
#include <utility>

namespace fuseboard {
namespace {

constexpr absl::string_view kOther = "other";

int64_t Increase(int64_t before, int64_t now) { return now >= before ? now - before : now; }

// Under which name `name` counts: its own, or "other" if it came when the map was full. The answer
// for a name never changes, because the map never shrinks.
template <typename Map>
std::string LabelOf(Map* map, const std::string& name, size_t limit) {
  if (map->count(name) > 0) return name;
  std::string label = map->size() < limit ? name : std::string(kOther);
  (*map)[label];
  return label;
}

}  // namespace

void TrainingStats::RecordResolve(const v1::Plan& plan) {
  const bool kernel = std::any_of(
      plan.decisions().begin(), plan.decisions().end(),
      [](const v1::Decision& decision) { return decision.kind() == v1::DECISION_KIND_KERNEL; });
  absl::MutexLock lock(&mutex_);
  ++totals_.resolves[kernel ? "kernel" : "native"];
}

void TrainingStats::RecordRejectedResolve() {
  absl::MutexLock lock(&mutex_);
  ++totals_.resolves["rejected"];
}

void TrainingStats::RecordAck(bool applied) {
  absl::MutexLock lock(&mutex_);
  ++(applied ? totals_.acked : totals_.nacked);
}

void TrainingStats::RecordProgress(const v1::ReportProgressRequest& progress) {
  absl::MutexLock lock(&mutex_);
  // First under the names they count as, so that all that is "other" is compared as one.
  std::map<std::string, Calls> now;
  for (const v1::OperationCounter& counter : progress.counters()) {
    const std::string operation = LabelOf(&totals_.operations, counter.operation(), kMaxOperations);
    now[operation].fused += counter.fused_calls();
    for (const auto& [reason, calls] : counter.fallback_calls()) {
      auto& reasons = totals_.operations[operation].fallbacks;
      now[operation].fallbacks[LabelOf(&reasons, reason, kMaxReasons)] += calls;
    }
  }
  std::map<std::string, Calls>& last = last_[progress.instance_id()];
  for (const auto& [operation, calls] : now) {
    Calls& total = totals_.operations[operation];
    total.fused += Increase(last[operation].fused, calls.fused);
    for (const auto& [reason, count] : calls.fallbacks) {
      total.fallbacks[reason] += Increase(last[operation].fallbacks[reason], count);
    }
  }
  last = std::move(now);
}

void TrainingStats::Prune(const std::function<bool(absl::string_view instance_id)>& is_known) {
  absl::MutexLock lock(&mutex_);
  for (auto it = last_.begin(); it != last_.end();) {
    it = is_known(it->first) ? std::next(it) : last_.erase(it);
  }
}

TrainingStats::Totals TrainingStats::Read() const {
  absl::MutexLock lock(&mutex_);
  return totals_;
}

}  // namespace fuseboard
