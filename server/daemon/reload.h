// What of a configuration may change in a running daemon. Pure.

#ifndef SERVER_DAEMON_RELOAD_H_
#define SERVER_DAEMON_RELOAD_H_

#include "absl/status/status.h"
#include "fuseboard/v1/config.pb.h"

namespace fuseboard {

// OK if `next` differs from `current` in catalog_dirs, kernel_dirs, drain_seconds and
// idle_exit_seconds at most. Errors: FailedPrecondition that names each other field with both
// values.
absl::Status CheckReloadable(const v1::DaemonConfig& current, const v1::DaemonConfig& next);

}  // namespace fuseboard

#endif  // SERVER_DAEMON_RELOAD_H_
