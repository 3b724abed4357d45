#include "server/fusectl/connection.h"

#include <grpcpp/create_channel.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/common/status_macros.h"
#include "server/fusectl/exit_code.h"

namespace fuseboard::fusectl {
namespace {

absl::Status CheckUnixSocket(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "unix:")) return absl::OkStatus();
  absl::ConsumePrefix(&address, "//");
  if (access(std::string(address).c_str(), R_OK | W_OK) == 0) return absl::OkStatus();
  const std::string message = absl::StrCat(address, ": ", std::strerror(errno));
  if (errno == EACCES || errno == EPERM) {
    return absl::PermissionDeniedError(absl::StrCat("cannot use the socket ", message));
  }
  return absl::UnavailableError(absl::StrCat("no daemon at ", message));
}

}  // namespace

absl::StatusOr<Connection> Connection::Open(const std::string& address, absl::Duration timeout) {
  FB_RETURN_IF_ERROR(CheckUnixSocket(address));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // The daemon is trusted, and a node can have many sites.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return Connection(
      address, timeout,
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

absl::Status Connection::Explain(const absl::Status& status) const {
  if (ExitCodeOf(status) != ExitCode::kUnreachable) return status;
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    return absl::DeadlineExceededError(
        absl::StrCat("no answer from ", address_, " within ", absl::FormatDuration(timeout_)));
  }
  return absl::UnavailableError(
      absl::StrCat("no daemon answers at ", address_, ": ", status.message()));
}

}  // namespace fuseboard::fusectl
