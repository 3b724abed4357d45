#include "server/daemon/daemon_core.h"

#include <unistd.h>

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/common/status_macros.h"
#include "server/store/sqlite_store.h"

namespace fuseboard {
namespace {

std::vector<std::string> CatalogFolders(const v1::DaemonConfig& config) {
  std::vector<std::string> folders = {absl::StrCat(config.home(), "/share/fuseboard/catalog")};
  folders.insert(folders.end(), config.catalog_dirs().begin(), config.catalog_dirs().end());
  return folders;
}

std::vector<std::string> LibraryFolders(const v1::DaemonConfig& config) {
  return LibraryRegistry::Folders(config.home(),
                                  {config.kernel_dirs().begin(), config.kernel_dirs().end()});
}

absl::Duration Liveness(const v1::DaemonConfig& config) {
  return absl::Seconds(config.liveness_seconds());
}

}  // namespace

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

DaemonCore::DaemonCore(const v1::DaemonConfig& config)
    : deny_(config.deny_file()),
      libraries_(LibraryFolders(config)),
      processes_(&clock_, {.liveness = Liveness(config)}),
      reports_(&processes_, {}) {}

absl::StatusOr<std::unique_ptr<DaemonCore>> DaemonCore::Open(const v1::DaemonConfig& config) {
  auto core = std::unique_ptr<DaemonCore>(new DaemonCore(config));
  FB_RETURN_IF_ERROR(core->OpenParts(config));
  return core;
}

absl::Status DaemonCore::OpenParts(const v1::DaemonConfig& config) {
  FB_ASSIGN_OR_RETURN(store_, SqliteStore::Open({.path = config.state_dir() + "/store.sqlite"}));
  FB_ASSIGN_OR_RETURN(std::shared_ptr<const Catalog> catalog,
                      Catalog::Load(CatalogFolders(config)));
  FB_ASSIGN_OR_RETURN(snapshots_, SnapshotSource::Create({.clock = &clock_,
                                                          .store = store_.get(),
                                                          .catalog = std::move(catalog),
                                                          .libraries = &libraries_,
                                                          .deny = &deny_,
                                                          .node = HostName()}));
  hub_ = std::make_unique<PlanHub>(
      PlanHub::Config{.clock = &clock_, .snapshots = snapshots_.get(), .processes = &processes_});
  resolver_service_ = std::make_unique<ResolverService>(ResolverService::Config{
      .snapshots = snapshots_.get(), .processes = &processes_, .liveness = Liveness(config)});
  catalog_service_ = std::make_unique<CatalogService>(snapshots_.get(), &processes_);
  control_service_ =
      std::make_unique<ControlService>(ControlService::Config{.clock = &clock_,
                                                              .store = store_.get(),
                                                              .snapshots = snapshots_.get(),
                                                              .processes = &processes_});
  hub_->Start();
  return absl::OkStatus();
}

absl::Status DaemonCore::Reconfigure(const v1::DaemonConfig& config) {
  // All that can fail comes before all that changes anything.
  FB_ASSIGN_OR_RETURN(std::shared_ptr<const Catalog> catalog,
                      Catalog::Load(CatalogFolders(config)));
  snapshots_->Reconfigure(std::move(catalog), LibraryFolders(config));
  hub_->PublishNow();
  return absl::OkStatus();
}

}  // namespace fuseboard
