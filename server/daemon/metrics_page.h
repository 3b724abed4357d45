// The /metrics page: reads every part of the daemon at the moment of the scrape and writes the
// Prometheus text format. docs of each metric are its HELP line. Thread-safe.

#ifndef SERVER_DAEMON_METRICS_PAGE_H_
#define SERVER_DAEMON_METRICS_PAGE_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "server/http/metrics_writer.h"
#include "server/jobs/process_table.h"
#include "server/jobs/report_store.h"
#include "server/plans/plan_hub.h"
#include "server/plans/snapshot_source.h"
#include "server/rpc/call_stats.h"
#include "server/rpc/training_stats.h"
#include "server/store/config_store.h"

namespace fuseboard {

// Reloads asked for by SIGHUP, by outcome.
struct ReloadCounts {
  std::atomic<int64_t> applied{0};
  std::atomic<int64_t> rejected{0};
};

class MetricsPage {
 public:
  // All pointers outlive the page.
  struct Config {
    absl::Time started_at;
    const ConfigStore* store = nullptr;
    SnapshotSource* snapshots = nullptr;
    const ProcessTable* processes = nullptr;
    const ReportStore* reports = nullptr;
    const PlanHub* hub = nullptr;
    const CallStats* calls = nullptr;
    TrainingStats* training = nullptr;
    const ReloadCounts* reloads = nullptr;
  };

  explicit MetricsPage(Config config) : config_(config) {}

  [[nodiscard]] std::string Render() const;

 private:
  void WriteNode(const Snapshot& snapshot, MetricsWriter* writer) const;
  void WriteSwitches(const Snapshot& snapshot, MetricsWriter* writer) const;
  void WriteLibraries(const Snapshot& snapshot, MetricsWriter* writer) const;
  void WriteCalls(MetricsWriter* writer) const;
  void WriteProcesses(MetricsWriter* writer) const;
  void WriteTraining(MetricsWriter* writer) const;
  void WriteSavings(MetricsWriter* writer) const;

  const Config config_;
};

}  // namespace fuseboard

#endif  // SERVER_DAEMON_METRICS_PAGE_H_
