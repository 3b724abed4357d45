#include "profiler/record_aggregator.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "profiler/kernel_name.h"

namespace fuseboard::profiler {
namespace {

struct Interval {
  uint32_t device_id;
  uint64_t start_ns;
  uint64_t end_ns;
};

// Length of the union of the intervals, device by device.
int64_t UnionNs(std::vector<Interval> intervals) {
  std::ranges::sort(intervals, [](const Interval& a, const Interval& b) {
    return std::tie(a.device_id, a.start_ns) < std::tie(b.device_id, b.start_ns);
  });
  uint64_t sum = 0;
  uint64_t covered_to = 0;
  uint32_t device_id = 0;
  for (const Interval& interval : intervals) {
    if (interval.device_id != device_id) covered_to = 0;
    device_id = interval.device_id;
    const uint64_t from = std::max(interval.start_ns, covered_to);
    if (interval.end_ns > from) sum += interval.end_ns - from;
    covered_to = std::max(covered_to, interval.end_ns);
  }
  return static_cast<int64_t>(sum);
}

bool Unfinished(uint64_t start_ns, uint64_t end_ns) { return start_ns == 0 || end_ns == 0; }

int64_t DurationNs(uint64_t start_ns, uint64_t end_ns) {
  if (Unfinished(start_ns, end_ns) || end_ns < start_ns) return 0;
  return static_cast<int64_t>(end_ns - start_ns);
}

}  // namespace

void RecordAggregator::Add(const ActivityRecord& record) {
  std::scoped_lock lock(mutex_);
  if (entries_.size() == kMaxRecords) {
    ++dropped_;
    return;
  }
  const bool is_kernel = record.kind == ActivityKind::kKernel;
  entries_.push_back({.start_ns = record.start_ns,
                      .end_ns = record.end_ns,
                      .bytes = record.bytes,
                      .device_id = record.device_id,
                      .name = is_kernel ? NameIndex(record.name) : 0,
                      .kind = record.kind,
                      .from_graph = record.from_graph});
}

void RecordAggregator::AddDropped(uint64_t count) {
  std::scoped_lock lock(mutex_);
  dropped_ += count;
}

Status RecordAggregator::Mark(std::string phase, uint64_t at_ns) {
  std::scoped_lock lock(mutex_);
  if (marks_.size() == kMaxMarks) {
    return {StatusCode::kResourceExhausted,
            StrCat("window has ", kMaxMarks, " phase marks, no room for ", phase)};
  }
  marks_.push_back({std::move(phase), at_ns});
  return OkStatus();
}

WindowReport RecordAggregator::Report() const {
  std::scoped_lock lock(mutex_);
  WindowReport report;
  report.totals = Sum(entries_);
  report.kernels = KernelsByName();
  report.dropped_records = static_cast<int64_t>(dropped_);
  std::vector<std::vector<Entry>> by_phase(marks_.size());
  for (const Entry& entry : entries_) {
    if (Unfinished(entry.start_ns, entry.end_ns)) {
      ++report.unfinished_records;
      continue;
    }
    const auto next = std::ranges::upper_bound(marks_, entry.start_ns, {}, &PhaseMark::at_ns);
    if (next != marks_.begin()) by_phase[next - marks_.begin() - 1].push_back(entry);
  }
  for (size_t i = 0; i < marks_.size(); ++i) {
    report.phases.push_back({marks_[i].name, Sum(by_phase[i])});
  }
  return report;
}

uint32_t RecordAggregator::NameIndex(const char* name) {
  const auto [it, inserted] = name_index_.try_emplace(name != nullptr ? name : "(unnamed)",
                                                      static_cast<uint32_t>(names_.size()));
  if (inserted) names_.push_back(it->first);
  return it->second;
}

std::vector<KernelTotals> RecordAggregator::KernelsByName() const {
  std::unordered_map<std::string, KernelTotals> by_name;
  std::vector<std::string> readable;
  readable.reserve(names_.size());
  for (const std::string& name : names_) readable.push_back(ReadableKernelName(name));
  for (const Entry& entry : entries_) {
    if (entry.kind != ActivityKind::kKernel) continue;
    KernelTotals& kernel = by_name[readable[entry.name]];
    ++kernel.count;
    kernel.device_ns += DurationNs(entry.start_ns, entry.end_ns);
  }
  std::vector<KernelTotals> kernels;
  kernels.reserve(by_name.size());
  for (auto& [name, totals] : by_name) {
    totals.name = name;
    kernels.push_back(std::move(totals));
  }
  std::ranges::sort(kernels, [](const KernelTotals& a, const KernelTotals& b) {
    return std::tie(b.count, b.device_ns, a.name) < std::tie(a.count, a.device_ns, b.name);
  });
  return kernels;
}

Totals RecordAggregator::Sum(const std::vector<Entry>& entries) {
  Totals totals;
  std::vector<Interval> intervals;
  for (const Entry& entry : entries) {
    switch (entry.kind) {
      case ActivityKind::kKernel:
        ++totals.launches;
        if (entry.from_graph) ++totals.graph_launches;
        totals.device_ns += DurationNs(entry.start_ns, entry.end_ns);
        if (!Unfinished(entry.start_ns, entry.end_ns)) {
          intervals.push_back({entry.device_id, entry.start_ns, entry.end_ns});
        }
        break;
      case ActivityKind::kCopy:
        ++totals.copies;
        totals.copied_bytes += static_cast<int64_t>(entry.bytes);
        break;
      case ActivityKind::kMemset:
        ++totals.memsets;
        break;
    }
  }
  totals.busy_ns = UnionNs(std::move(intervals));
  return totals;
}

}  // namespace fuseboard::profiler
