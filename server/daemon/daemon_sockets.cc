#include "server/daemon/daemon_sockets.h"

#include <sys/types.h>

#include <string>
#include <vector>

#include "server/common/status_macros.h"
#include "server/daemon/unix_socket.h"
#include "server/rpc/catalog_rpc.h"
#include "server/rpc/profile_rpc.h"
#include "server/rpc/resolver_rpc.h"

namespace fuseboard {
namespace {

constexpr mode_t kJobSocketMode = 0666;
constexpr mode_t kAdminSocketMode = 0600;

}  // namespace

// The services of one socket. gRPC ties a service object to its server, so each socket has its own.
struct DaemonSockets::ServiceSet {
  ServiceSet(const Config& config, PlanStreams* streams)
      : resolver({.service = config.core->resolver_service(),
                  .streams = streams,
                  .calls = config.calls,
                  .training = config.training,
                  .draining = config.draining}),
        catalog(config.core->catalog_service(), config.calls),
        profile(config.core->reports(), config.calls),
        status(config.describe, config.core->processes(), config.calls) {}

  std::vector<grpc::Service*> All() { return {&resolver, &catalog, &profile, &status}; }

  ResolverRpc resolver;
  CatalogRpc catalog;
  ProfileRpc profile;
  StatusRpc status;
};

DaemonSockets::DaemonSockets(const Config& config)
    : streams_(config.core->hub(), config.calls),
      job_services_(std::make_unique<ServiceSet>(config, &streams_)),
      admin_services_(std::make_unique<ServiceSet>(config, &streams_)),
      control_rpc_(config.core->control_service(), config.calls) {}

DaemonSockets::~DaemonSockets() = default;

absl::StatusOr<std::unique_ptr<DaemonSockets>> DaemonSockets::Serve(const v1::DaemonConfig& daemon,
                                                                    const Config& config) {
  auto sockets = std::unique_ptr<DaemonSockets>(new DaemonSockets(config));
  FB_RETURN_IF_ERROR(sockets->Bind(daemon));
  return sockets;
}

absl::Status DaemonSockets::Bind(const v1::DaemonConfig& daemon) {
  for (const std::string& socket : {daemon.job_socket(), daemon.admin_socket()}) {
    FB_RETURN_IF_ERROR(RemoveStaleSocket(socket));
  }
  std::vector<grpc::Service*> admin = admin_services_->All();
  admin.push_back(&control_rpc_);
  FB_ASSIGN_OR_RETURN(admin_server_,
                      RpcServer::Start(daemon.admin_socket(), daemon.max_request_bytes(), admin));
  FB_RETURN_IF_ERROR(SetSocketMode(daemon.admin_socket(), kAdminSocketMode));
  FB_ASSIGN_OR_RETURN(job_server_, RpcServer::Start(daemon.job_socket(), daemon.max_request_bytes(),
                                                    job_services_->All()));
  return SetSocketMode(daemon.job_socket(), kJobSocketMode);
}

void DaemonSockets::Drain(absl::Time deadline) {
  for (RpcServer* server : {job_server_.get(), admin_server_.get()}) server->SetNotServing();
  streams_.EndAll(absl::UnavailableError("the daemon is about to end"));
  job_server_->Drain(deadline);
  admin_server_->Drain(deadline);
}

}  // namespace fuseboard
