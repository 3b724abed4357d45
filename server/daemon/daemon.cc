#include "server/daemon/daemon.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/common/status_macros.h"
#include "server/daemon/instance_lock.h"
#include "server/daemon/metrics_page.h"
#include "server/daemon/reload.h"
#include "server/daemon/unix_socket.h"
#include "server/http/http_server.h"
#include "server/rpc/catalog_rpc.h"
#include "server/rpc/control_rpc.h"
#include "server/rpc/profile_rpc.h"
#include "server/rpc/resolver_rpc.h"
#include "server/rpc/rpc_server.h"
#include "server/rpc/status_rpc.h"
#include "server/store/sqlite_store.h"

namespace fuseboard {
namespace {

constexpr mode_t kStateDirMode = 0700;
constexpr mode_t kSocketDirMode = 0755;
constexpr mode_t kJobSocketMode = 0666;
constexpr mode_t kAdminSocketMode = 0600;

std::string ParentOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::vector<std::string> CatalogFolders(const v1::DaemonConfig& config) {
  std::vector<std::string> folders = {absl::StrCat(config.home(), "/share/fuseboard/catalog")};
  folders.insert(folders.end(), config.catalog_dirs().begin(), config.catalog_dirs().end());
  return folders;
}

std::vector<std::string> LibraryFolders(const v1::DaemonConfig& config) {
  return LibraryRegistry::Folders(config.home(),
                                  {config.kernel_dirs().begin(), config.kernel_dirs().end()});
}

// The services of one socket. gRPC ties a service object to its server, so each socket has its own.
struct ServiceSet {
  ServiceSet(ResolverRpc::Config resolver, CatalogService* catalog_service, ReportStore* reports,
             StatusRpc::DescribeFn describe, const ProcessTable* processes)
      : resolver(resolver),
        catalog(catalog_service, resolver.calls),
        profile(reports, resolver.calls),
        status(std::move(describe), processes, resolver.calls) {}

  std::vector<grpc::Service*> All() { return {&resolver, &catalog, &profile, &status}; }

  ResolverRpc resolver;
  CatalogRpc catalog;
  ProfileRpc profile;
  StatusRpc status;
};

}  // namespace

// Members are declared in the order in which they are opened; they end in reverse.
class Daemon::Parts {
 public:
  explicit Parts(v1::DaemonConfig config)
      : started_at_(absl::Now()),
        config_(std::move(config)),
        deny_(config_.deny_file()),
        libraries_(LibraryFolders(config_)),
        processes_(&clock_, {.liveness = absl::Seconds(config_.liveness_seconds())}),
        reports_(&processes_, {}) {}

  absl::Status Open() {
    FB_RETURN_IF_ERROR(TakeLocks());
    FB_ASSIGN_OR_RETURN(store_, SqliteStore::Open({.path = config_.state_dir() + "/store.sqlite"}));
    FB_RETURN_IF_ERROR(OpenCore());
    FB_RETURN_IF_ERROR(Serve());
    return ServeHttp();
  }

  absl::Status Reload(const absl::StatusOr<v1::DaemonConfig>& next) {
    absl::Status status = TakeOver(next);
    (status.ok() ? reloads_.applied : reloads_.rejected).fetch_add(1);
    absl::MutexLock lock(&mutex_);
    reload_problem_ = status.ok() ? "" : absl::StrCat("reload rejected: ", status.message());
    return status;
  }

  void Drain() {
    draining_ = true;
    const absl::Time deadline = absl::Now() + absl::Seconds(config_.drain_seconds());
    for (const auto& server : {job_server_.get(), admin_server_.get()}) server->SetNotServing();
    streams_->EndAll(absl::UnavailableError("the daemon is about to end"));
    job_server_->Drain(deadline);
    admin_server_->Drain(deadline);
    hub_->Stop();
  }

  bool IdleTooLong() const {
    const double limit = config_.idle_exit_seconds();
    return limit > 0 && hub_->WatchCount() == 0 && processes_.IdleTime() >= absl::Seconds(limit);
  }

  v1::DescribeNodeResponse Describe() const {
    v1::DescribeNodeResponse node;
    const Snapshot snapshot = snapshots_->Current();
    node.set_version(FB_VERSION);
    node.set_host(HostName());
    node.set_pid(getpid());
    node.set_started_at_us(absl::ToUnixMicros(started_at_));
    node.set_revision(snapshot.revision());
    node.set_store_id(snapshot.store_id);
    node.set_store_kind(std::string(store_->kind()));
    for (std::string& problem : snapshots_->Problems()) node.add_problems(std::move(problem));
    node.set_home(config_.home());
    node.set_job_address(absl::StrCat("unix:", config_.job_socket()));
    node.set_admin_address(absl::StrCat("unix:", config_.admin_socket()));
    node.set_processes(processes_.LiveCount());
    node.set_kernels(catalog_service_->ListKernels().kernels_size());
    node.set_catalog_entries(snapshot.catalog->entries().size());
    node.set_draining(draining_);
    absl::MutexLock lock(&mutex_);
    node.set_http_address(bound_http_address_);
    if (!reload_problem_.empty()) node.add_problems(reload_problem_);
    return node;
  }

 private:
  absl::Status TakeLocks() {
    FB_RETURN_IF_ERROR(EnsureFolder(config_.state_dir(), kStateDirMode));
    for (const std::string& socket : {config_.job_socket(), config_.admin_socket()}) {
      FB_RETURN_IF_ERROR(EnsureFolder(ParentOf(socket), kSocketDirMode));
    }
    for (const std::string& path : {config_.state_dir() + "/lock", config_.job_socket() + ".lock",
                                    config_.admin_socket() + ".lock"}) {
      FB_ASSIGN_OR_RETURN(InstanceLock lock, InstanceLock::Acquire(path, started_at_));
      locks_.push_back(std::move(lock));
    }
    return absl::OkStatus();
  }

  absl::Status OpenCore() {
    FB_ASSIGN_OR_RETURN(std::shared_ptr<const Catalog> catalog,
                        Catalog::Load(CatalogFolders(config_)));
    FB_ASSIGN_OR_RETURN(snapshots_, SnapshotSource::Create({.clock = &clock_,
                                                            .store = store_.get(),
                                                            .catalog = std::move(catalog),
                                                            .libraries = &libraries_,
                                                            .deny = &deny_,
                                                            .node = HostName()}));
    hub_ = std::make_unique<PlanHub>(
        PlanHub::Config{.clock = &clock_, .snapshots = snapshots_.get(), .processes = &processes_});
    resolver_service_ = std::make_unique<ResolverService>(
        ResolverService::Config{.snapshots = snapshots_.get(),
                                .processes = &processes_,
                                .liveness = absl::Seconds(config_.liveness_seconds())});
    catalog_service_ = std::make_unique<CatalogService>(snapshots_.get(), &processes_);
    control_service_ =
        std::make_unique<ControlService>(ControlService::Config{.clock = &clock_,
                                                                .store = store_.get(),
                                                                .snapshots = snapshots_.get(),
                                                                .processes = &processes_});
    hub_->Start();
    return absl::OkStatus();
  }

  absl::Status Serve() {
    streams_ = std::make_unique<PlanStreams>(hub_.get(), &calls_);
    const ResolverRpc::Config resolver = {.service = resolver_service_.get(),
                                          .streams = streams_.get(),
                                          .calls = &calls_,
                                          .training = &training_,
                                          .draining = &draining_};
    const auto make_services = [&] {
      return std::make_unique<ServiceSet>(
          resolver, catalog_service_.get(), &reports_, [this] { return Describe(); }, &processes_);
    };
    job_services_ = make_services();
    admin_services_ = make_services();
    control_rpc_ = std::make_unique<ControlRpc>(control_service_.get(), &calls_);
    for (const std::string& socket : {config_.job_socket(), config_.admin_socket()}) {
      FB_RETURN_IF_ERROR(RemoveStaleSocket(socket));
    }
    std::vector<grpc::Service*> admin = admin_services_->All();
    admin.push_back(control_rpc_.get());
    FB_ASSIGN_OR_RETURN(admin_server_, RpcServer::Start(config_.admin_socket(),
                                                        config_.max_request_bytes(), admin));
    FB_RETURN_IF_ERROR(SetSocketMode(config_.admin_socket(), kAdminSocketMode));
    FB_ASSIGN_OR_RETURN(
        job_server_,
        RpcServer::Start(config_.job_socket(), config_.max_request_bytes(), job_services_->All()));
    return SetSocketMode(config_.job_socket(), kJobSocketMode);
  }

  absl::Status ServeHttp() {
    if (config_.http_address().empty()) return absl::OkStatus();
    metrics_ = std::make_unique<MetricsPage>(MetricsPage::Config{.started_at = started_at_,
                                                                 .store = store_.get(),
                                                                 .snapshots = snapshots_.get(),
                                                                 .processes = &processes_,
                                                                 .reports = &reports_,
                                                                 .hub = hub_.get(),
                                                                 .calls = &calls_,
                                                                 .training = &training_,
                                                                 .reloads = &reloads_});
    const auto metrics = [this] {
      return HttpResponse{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                          .body = metrics_->Render()};
    };
    const auto live = [] { return HttpResponse{.body = "live\n"}; };
    const auto ready = [this] {
      if (draining_) return HttpResponse{.code = 503, .body = "draining\n"};
      return HttpResponse{.body = "ready\n"};
    };
    FB_ASSIGN_OR_RETURN(
        http_, HttpServer::Start(config_.http_address(),
                                 {{"/metrics", metrics}, {"/livez", live}, {"/readyz", ready}}));
    absl::MutexLock lock(&mutex_);
    bound_http_address_ = http_->Address();
    return absl::OkStatus();
  }

  // All that can fail comes before all that changes anything.
  absl::Status TakeOver(const absl::StatusOr<v1::DaemonConfig>& next) {
    FB_RETURN_IF_ERROR(next.status());
    FB_RETURN_IF_ERROR(CheckReloadable(config_, *next));
    FB_ASSIGN_OR_RETURN(std::shared_ptr<const Catalog> catalog,
                        Catalog::Load(CatalogFolders(*next)));
    snapshots_->Reconfigure(std::move(catalog), LibraryFolders(*next));
    config_.set_drain_seconds(next->drain_seconds());
    config_.set_idle_exit_seconds(next->idle_exit_seconds());
    hub_->PublishNow();
    return absl::OkStatus();
  }

  const absl::Time started_at_;
  std::vector<InstanceLock> locks_;
  // Other threads read only what a reload never writes.
  v1::DaemonConfig config_;
  SystemClock clock_;
  std::atomic<bool> draining_{false};
  ReloadCounts reloads_;
  CallStats calls_;
  TrainingStats training_;
  mutable absl::Mutex mutex_;
  std::string bound_http_address_ ABSL_GUARDED_BY(mutex_);
  std::string reload_problem_ ABSL_GUARDED_BY(mutex_);

  DenyFile deny_;
  LibraryRegistry libraries_;
  std::unique_ptr<SqliteStore> store_;
  ProcessTable processes_;
  ReportStore reports_;
  std::unique_ptr<SnapshotSource> snapshots_;
  std::unique_ptr<PlanHub> hub_;
  std::unique_ptr<ResolverService> resolver_service_;
  std::unique_ptr<CatalogService> catalog_service_;
  std::unique_ptr<ControlService> control_service_;
  std::unique_ptr<PlanStreams> streams_;
  std::unique_ptr<ServiceSet> job_services_;
  std::unique_ptr<ServiceSet> admin_services_;
  std::unique_ptr<ControlRpc> control_rpc_;
  std::unique_ptr<RpcServer> admin_server_;
  std::unique_ptr<RpcServer> job_server_;
  std::unique_ptr<MetricsPage> metrics_;
  std::unique_ptr<HttpServer> http_;
};

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const v1::DaemonConfig& config) {
  auto parts = std::make_unique<Parts>(config);
  FB_RETURN_IF_ERROR(parts->Open());
  return std::unique_ptr<Daemon>(new Daemon(std::move(parts)));
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Daemon::~Daemon() = default;

absl::Status Daemon::Reload(const absl::StatusOr<v1::DaemonConfig>& next) {
  return parts_->Reload(next);
}

void Daemon::Drain() { parts_->Drain(); }

bool Daemon::IdleTooLong() const { return parts_->IdleTooLong(); }

std::string Daemon::ReadyLine() const {
  const v1::DescribeNodeResponse node = parts_->Describe();
  google::protobuf::Struct line;
  auto& fields = *line.mutable_fields();
  // Paths, not gRPC addresses: the starter checks owner and mode before it connects.
  fields["job_socket"].set_string_value(node.job_address().substr(sizeof("unix:") - 1));
  fields["admin_socket"].set_string_value(node.admin_address().substr(sizeof("unix:") - 1));
  fields["http_address"].set_string_value(node.http_address());
  fields["pid"].set_number_value(static_cast<double>(node.pid()));
  fields["version"].set_string_value(node.version());
  std::string json;
  // Cannot fail: a Struct of texts and a number has a JSON form.
  (void)google::protobuf::util::MessageToJsonString(line, &json);
  return json + "\n";
}

}  // namespace fuseboard
