#include "server/rpc/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace fuseboard {
namespace {

// A WatchPlan stream is idle for days. gRPC's default cuts a client that pings more than twice
// without data in between; training processes ping to notice a frozen daemon, so pings are free.
void AllowPings(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const std::string& socket_path, int64_t max_request_bytes,
    const std::vector<grpc::Service*>& services) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int bound = 0;
  builder.AddListeningPort(absl::StrCat("unix:", socket_path), grpc::InsecureServerCredentials(),
                           &bound);
  builder.SetMaxReceiveMessageSize(static_cast<int>(max_request_bytes));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  AllowPings(&builder);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || bound == 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on the socket ", socket_path));
  }
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(server)));
}

RpcServer::~RpcServer() { server_->Shutdown(std::chrono::system_clock::now()); }

void RpcServer::SetNotServing() { server_->GetHealthCheckService()->SetServingStatus(false); }

void RpcServer::Drain(absl::Time deadline) { server_->Shutdown(absl::ToChronoTime(deadline)); }

}  // namespace fuseboard
