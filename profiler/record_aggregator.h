// Turns a window's records into totals: by kernel name, and by phase.
//
// Thread-safe: CUPTI delivers buffers from its own thread while the training thread marks phases.
// It knows nothing of CUPTI. Memory is bounded: what exceeds kMaxRecords counts as dropped.

#ifndef PROFILER_RECORD_AGGREGATOR_H_
#define PROFILER_RECORD_AGGREGATOR_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "profiler/cupti_api.h"
#include "profiler/status.h"

namespace fuseboard::profiler {

struct KernelTotals {
  std::string name;
  int64_t count = 0;
  int64_t device_ns = 0;

  friend bool operator==(const KernelTotals&, const KernelTotals&) = default;
};

// What ran in a stretch of time.
struct Totals {
  // Kernels, and how many of them came from CUDA graphs.
  int64_t launches = 0;
  int64_t graph_launches = 0;
  // Sum of the kernels' durations; and time in which at least one ran, summed over devices.
  int64_t device_ns = 0;
  int64_t busy_ns = 0;
  int64_t copies = 0;
  int64_t copied_bytes = 0;
  int64_t memsets = 0;
};

struct PhaseTotals {
  std::string name;
  Totals totals;
};

struct WindowReport {
  Totals totals;
  // Most frequent first, then longest, then by name.
  std::vector<KernelTotals> kernels;
  // In the order of the marks. What began before the first mark is in `totals` only.
  std::vector<PhaseTotals> phases;
  int64_t dropped_records = 0;
  // Records without times: counted as launches, absent from times and phases.
  int64_t unfinished_records = 0;
};

class RecordAggregator : public RecordSink {
 public:
  // 40 MiB at most; a training step of a large model launches some thousand kernels.
  static constexpr size_t kMaxRecords = size_t{1} << 20;
  static constexpr size_t kMaxMarks = 4096;

  void Add(const ActivityRecord& record) override;
  void AddDropped(uint64_t count) override;

  // What begins at or after `at_ns` belongs to `phase`. REQUIRES: marks come in order of time.
  //
  // Errors: ResourceExhausted after kMaxMarks marks.
  Status Mark(std::string phase, uint64_t at_ns);

  // Totals of all records so far.
  WindowReport Report() const;

 private:
  struct Entry {
    uint64_t start_ns;
    uint64_t end_ns;
    uint64_t bytes;
    uint32_t device_id;
    uint32_t name;  // Index into names_; kernels only.
    ActivityKind kind;
    bool from_graph;
  };
  struct PhaseMark {
    std::string name;
    uint64_t at_ns;
  };

  // REQUIRES of both: mutex_ is held.
  uint32_t NameIndex(const char* name);
  std::vector<KernelTotals> KernelsByName() const;
  static Totals Sum(const std::vector<Entry>& entries);

  mutable std::mutex mutex_;  // Guards all below.
  std::vector<Entry> entries_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, uint32_t> name_index_;
  std::vector<PhaseMark> marks_;
  uint64_t dropped_ = 0;
};

}  // namespace fuseboard::profiler

#endif  // PROFILER_RECORD_AGGREGATOR_H_
