#include "server/rpc/training_stats.h"

#include <algorithm>

namespace fuseboard {
namespace {

constexpr char kOther[] = "other";

int64_t Increase(int64_t before, int64_t now) { return now >= before ? now - before : now; }

// The entry of `name`, or that of "other" once the map is full.
template <typename Map>
typename Map::mapped_type& Bounded(Map& map, const std::string& name, size_t limit) {
  const auto it = map.find(name);
  if (it != map.end()) return it->second;
  return map[map.size() < limit ? name : kOther];
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
  std::map<std::string, Calls>& last = last_[progress.instance_id()];
  for (const v1::OperationCounter& counter : progress.counters()) {
    Calls& before = Bounded(last, counter.operation(), kMaxOperations);
    Calls& total = Bounded(totals_.operations, counter.operation(), kMaxOperations);
    total.fused += Increase(before.fused, counter.fused_calls());
    before.fused = counter.fused_calls();
    for (const auto& [reason, calls] : counter.fallback_calls()) {
      int64_t& seen = Bounded(before.fallbacks, reason, kMaxReasons);
      Bounded(total.fallbacks, reason, kMaxReasons) += Increase(seen, calls);
      seen = calls;
    }
  }
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
