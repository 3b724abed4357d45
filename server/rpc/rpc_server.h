// One gRPC server on one Unix socket, with health and reflection. Which services it has is the
// caller's choice: the job socket and the admin socket differ in nothing else. Start, Drain and the
// destructor belong to one thread.

#ifndef SERVER_RPC_RPC_SERVER_H_
#define SERVER_RPC_RPC_SERVER_H_

#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/server.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace fuseboard {

class RpcServer {
 public:
  // Binds `socket_path` and serves. The file gets the mode that the umask leaves, so a caller with
  // umask 0077 has it closed to others until it says otherwise. An existing file is replaced, live
  // or not. REQUIRES: the caller holds the socket's InstanceLock; the services outlive the server.
  // Errors: FailedPrecondition if the socket cannot be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const std::string& socket_path, int64_t max_request_bytes,
      const std::vector<grpc::Service*>& services);

  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // Health turns to NOT_SERVING for all services; calls go on.
  void SetNotServing();

  // Refuses new calls and waits until the open ones have ended; those that are still there at
  // `deadline` are cancelled.
  void Drain(absl::Time deadline);

 private:
  explicit RpcServer(std::unique_ptr<grpc::Server> server) : server_(std::move(server)) {}

  const std::unique_ptr<grpc::Server> server_;
};

}  // namespace fuseboard

#endif  // SERVER_RPC_RPC_SERVER_H_
