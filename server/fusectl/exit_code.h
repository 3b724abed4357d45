// What fusectl's exit status means. Scripts rely on the numbers: they never change.

#ifndef SERVER_FUSECTL_EXIT_CODE_H_
#define SERVER_FUSECTL_EXIT_CODE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace fuseboard::fusectl {

enum class ExitCode : int {
  kOk = 0,
  kError = 1,
  kUsage = 2,
  kUnreachable = 3,
  kNotFound = 4,
  kRefused = 5,
  kInvalid = 6,
  kPermission = 7,
};

// UNAVAILABLE and DEADLINE_EXCEEDED mean "unreachable" unless the daemon itself said so, which its
// ErrorInfo tells: a daemon that answers is reachable.
ExitCode ExitCodeOf(const absl::Status& status);

// The table of exit codes for --help.
absl::string_view ExitCodeHelp();

}  // namespace fuseboard::fusectl

#endif  // SERVER_FUSECTL_EXIT_CODE_H_
