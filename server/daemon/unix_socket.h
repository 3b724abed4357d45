// Files and folders around the daemon's Unix sockets: made with the right modes, checked with clear
// errors, removed when stale. Blocking file-system calls, any thread.

#ifndef SERVER_DAEMON_UNIX_SOCKET_H_
#define SERVER_DAEMON_UNIX_SOCKET_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"

namespace fuseboard {

// Creates `folder` and its missing parents: the last with `mode` whatever the umask, the parents
// with 0755. A folder that exists is left as it is. Errors: PermissionDenied and others of mkdir,
// naming the folder; FailedPrecondition if it is no folder or cannot be written to by this process.
absl::Status EnsureFolder(const std::string& folder, mode_t mode);

// Removes what a dead daemon left at `path`. REQUIRES: the caller holds the socket's InstanceLock.
// Errors: FailedPrecondition if something other than a socket is there, or if it cannot be removed.
absl::Status RemoveStaleSocket(const std::string& path);

// Errors: as chmod(2), naming the path.
absl::Status SetSocketMode(const std::string& path, mode_t mode);

}  // namespace fuseboard

#endif  // SERVER_DAEMON_UNIX_SOCKET_H_
