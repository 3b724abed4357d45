#include "server/daemon/daemon.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/common/status_macros.h"
#include "server/common/utf8.h"
#include "server/daemon/daemon_core.h"
#include "server/daemon/daemon_sockets.h"
#include "server/daemon/instance_lock.h"
#include "server/daemon/metrics_page.h"
#include "server/daemon/reload.h"
#include "server/daemon/unix_socket.h"
#include "server/http/http_server.h"

namespace fuseboard {
namespace {

constexpr mode_t kStateDirMode = 0700;
constexpr mode_t kSocketDirMode = 0755;

std::string ParentOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

}  // namespace

// Members are declared in the order in which they are opened; they end in reverse.
class Daemon::Parts {
 public:
  explicit Parts(v1::DaemonConfig config) : started_at_(absl::Now()), config_(std::move(config)) {}

  absl::Status Open() {
    FB_RETURN_IF_ERROR(TakeLocks());
    FB_ASSIGN_OR_RETURN(core_, DaemonCore::Open(config_));
    FB_ASSIGN_OR_RETURN(sockets_,
                        DaemonSockets::Serve(config_, {.core = core_.get(),
                                                       .calls = &calls_,
                                                       .training = &training_,
                                                       .draining = &draining_,
                                                       .describe = [this] { return Describe(); }}));
    return ServeHttp();
  }

  absl::Status Reload(const absl::StatusOr<v1::DaemonConfig>& next) {
    absl::Status status = TakeOver(next);
    (status.ok() ? reloads_.applied : reloads_.rejected).fetch_add(1);
    absl::MutexLock lock(&mutex_);
    // The name of a file stands in it as it is.
    reload_problem_ =
        status.ok() ? "" : ToUtf8(absl::StrCat("reload rejected: ", status.message()));
    return status;
  }

  void Drain() {
    draining_ = true;
    sockets_->Drain(absl::Now() + absl::Seconds(config_.drain_seconds()));
    core_->hub()->Stop();
  }

  bool IdleTooLong() const {
    const double limit = config_.idle_exit_seconds();
    return limit > 0 && core_->hub()->WatchCount() == 0 &&
           core_->processes()->IdleTime() >= absl::Seconds(limit);
  }

  v1::DescribeNodeResponse Describe() const {
    v1::DescribeNodeResponse node;
    const Snapshot snapshot = core_->snapshots()->Current();
    node.set_version(FB_VERSION);
    node.set_host(HostName());
    node.set_pid(getpid());
    node.set_started_at_us(absl::ToUnixMicros(started_at_));
    node.set_revision(snapshot.revision());
    node.set_store_id(snapshot.store_id);
    node.set_store_kind(std::string(core_->store()->kind()));
    for (std::string& problem : core_->snapshots()->Problems()) {
      node.add_problems(std::move(problem));
    }
    node.set_home(config_.home());
    node.set_job_address(absl::StrCat("unix:", config_.job_socket()));
    node.set_admin_address(absl::StrCat("unix:", config_.admin_socket()));
    node.set_processes(core_->processes()->LiveCount());
    node.set_kernels(core_->catalog_service()->ListKernels().kernels_size());
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

  absl::Status ServeHttp() {
    if (config_.http_address().empty()) return absl::OkStatus();
    metrics_ = std::make_unique<MetricsPage>(MetricsPage::Config{.started_at = started_at_,
                                                                 .store = core_->store(),
                                                                 .snapshots = core_->snapshots(),
                                                                 .processes = core_->processes(),
                                                                 .reports = core_->reports(),
                                                                 .hub = core_->hub(),
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

  absl::Status TakeOver(const absl::StatusOr<v1::DaemonConfig>& next) {
    FB_RETURN_IF_ERROR(next.status());
    FB_RETURN_IF_ERROR(CheckReloadable(config_, *next));
    FB_RETURN_IF_ERROR(core_->Reconfigure(*next));
    config_.set_drain_seconds(next->drain_seconds());
    config_.set_idle_exit_seconds(next->idle_exit_seconds());
    return absl::OkStatus();
  }

  const absl::Time started_at_;
  std::vector<InstanceLock> locks_;
  // Other threads read only what a reload never writes.
  v1::DaemonConfig config_;
  std::atomic<bool> draining_{false};
  ReloadCounts reloads_;
  CallStats calls_;
  TrainingStats training_;
  mutable absl::Mutex mutex_;
  std::string bound_http_address_ ABSL_GUARDED_BY(mutex_);
  std::string reload_problem_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<DaemonCore> core_;
  std::unique_ptr<DaemonSockets> sockets_;
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
