#include "server/rpc/call_stats.h"

#include <algorithm>

namespace fuseboard {

const std::vector<double>& CallStats::Bounds() {
  static const auto& bounds = *new std::vector<double>{
      0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 5};
  return bounds;
}

void CallStats::Record(absl::string_view method, absl::StatusCode code, absl::Duration elapsed) {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const auto bucket = std::lower_bound(Bounds().begin(), Bounds().end(), seconds);
  absl::MutexLock lock(&mutex_);
  Cell& cell = cells_[{std::string(method), code}];
  cell.buckets.resize(Bounds().size() + 1);
  ++cell.buckets[static_cast<size_t>(bucket - Bounds().begin())];
  cell.sum_seconds += seconds;
}

std::vector<CallStats::Row> CallStats::Read() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Row> rows;
  rows.reserve(cells_.size());
  for (const auto& [key, cell] : cells_) {
    rows.push_back(
        {key.first, absl::StatusCodeToString(key.second), cell.buckets, cell.sum_seconds});
  }
  return rows;
}

}  // namespace fuseboard
