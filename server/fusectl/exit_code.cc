#include "server/fusectl/exit_code.h"

#include "server/common/error_reason.h"

namespace fuseboard::fusectl {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return ErrorInfoOf(status).has_value() ? ExitCode::kError : ExitCode::kUnreachable;
    case absl::StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
      return ExitCode::kRefused;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return ExitCode::kInvalid;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return ExitCode::kPermission;
    default:
      return ExitCode::kError;
  }
}

absl::string_view ExitCodeHelp() {
  return "  0  done\n"
         "  1  any other error\n"
         "  2  usage: unknown command or flag, missing operand\n"
         "  3  daemon unreachable, or no answer within --timeout\n"
         "  4  not found: kernel, model, job, override or kill\n"
         "  5  refused: revision differs from --expect-revision, or another precondition\n"
         "  6  invalid argument\n"
         "  7  permission denied\n";
}

}  // namespace fuseboard::fusectl
