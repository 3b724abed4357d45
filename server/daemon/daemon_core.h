// The DaemonCore is a daemon without locks and sockets: store, libraries, deny file, process table,
// plan hub and the services on top, opened in that order and ended in reverse. What it hands out
// is thread-safe and lives as long as the core; Open and Reconfigure belong to one thread.

#ifndef SERVER_DAEMON_DAEMON_CORE_H_
#define SERVER_DAEMON_DAEMON_CORE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fuseboard/v1/config.pb.h"
#include "server/common/clock.h"
#include "server/control/control_service.h"
#include "server/deny/deny_file.h"
#include "server/jobs/process_table.h"
#include "server/jobs/report_store.h"
#include "server/plans/catalog_service.h"
#include "server/plans/plan_hub.h"
#include "server/plans/resolver_service.h"
#include "server/plans/snapshot_source.h"
#include "server/registry/library_registry.h"
#include "server/store/config_store.h"

namespace fuseboard {

class DaemonCore {
 public:
  // REQUIRES: `config` is valid; nobody else has its state folder open.
  // Errors: those of the store and of the catalogue, each naming its path.
  static absl::StatusOr<std::unique_ptr<DaemonCore>> Open(const v1::DaemonConfig& config);

  DaemonCore(const DaemonCore&) = delete;
  DaemonCore& operator=(const DaemonCore&) = delete;

  // Takes over catalogue and library folders of `config` and tells watching processes. On error
  // what held before holds on.
  // Errors: those of the catalogue.
  absl::Status Reconfigure(const v1::DaemonConfig& config);

  const ConfigStore* store() const { return store_.get(); }
  ProcessTable* processes() { return &processes_; }
  ReportStore* reports() { return &reports_; }
  SnapshotSource* snapshots() const { return snapshots_.get(); }
  PlanHub* hub() const { return hub_.get(); }
  ResolverService* resolver_service() const { return resolver_service_.get(); }
  CatalogService* catalog_service() const { return catalog_service_.get(); }
  ControlService* control_service() const { return control_service_.get(); }

 private:
  explicit DaemonCore(const v1::DaemonConfig& config);

  absl::Status OpenParts(const v1::DaemonConfig& config);

  // Declared in the order in which they are opened.
  SystemClock clock_;
  DenyFile deny_;
  LibraryRegistry libraries_;
  std::unique_ptr<ConfigStore> store_;
  ProcessTable processes_;
  ReportStore reports_;
  std::unique_ptr<SnapshotSource> snapshots_;
  std::unique_ptr<PlanHub> hub_;
  std::unique_ptr<ResolverService> resolver_service_;
  std::unique_ptr<CatalogService> catalog_service_;
  std::unique_ptr<ControlService> control_service_;
};

// The host's name: what the node is called in the store and in the status.
std::string HostName();

}  // namespace fuseboard

#endif  // SERVER_DAEMON_DAEMON_CORE_H_
