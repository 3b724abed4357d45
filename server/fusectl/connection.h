// fusectl's line to the daemon: one channel, one deadline per call, errors as absl::Status with the
// daemon's ErrorInfo. Blocking; one thread.

#ifndef SERVER_FUSECTL_CONNECTION_H_
#define SERVER_FUSECTL_CONNECTION_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/rpc/status_conversion.h"

namespace fuseboard::fusectl {

class Connection {
 public:
  // `address` as gRPC writes it, e.g. "unix:/run/fuseboard/admin.sock". Connects at the first call.
  // Errors: PermissionDenied or Unavailable if a Unix socket cannot be used by this user or is not
  // there, which gRPC itself reports without telling the two apart.
  static absl::StatusOr<Connection> Open(const std::string& address, absl::Duration timeout);

  // Calls e.g. &v1::Status::Stub::DescribeNode.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
    Stub stub(channel_);
    Response response;
    const absl::Status status = FromGrpcStatus((stub.*method)(&context, request, &response));
    if (!status.ok()) return Explain(status);
    return response;
  }

 private:
  Connection(std::string address, absl::Duration timeout, std::shared_ptr<grpc::Channel> channel)
      : address_(std::move(address)), timeout_(timeout), channel_(std::move(channel)) {}

  // Names the address where only the network speaks.
  absl::Status Explain(const absl::Status& status) const;

  std::string address_;
  absl::Duration timeout_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace fuseboard::fusectl

#endif  // SERVER_FUSECTL_CONNECTION_H_
