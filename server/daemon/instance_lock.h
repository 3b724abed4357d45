// The lock that makes a daemon the only one: gRPC would let a second server take over a live Unix
// socket without a word, so each daemon holds a flock on a file beside its store and beside each of
// its sockets before it touches them. The kernel releases the lock with the process, however it
// dies; what the file says is for people only, so a reused pid in a stale file misleads nobody.

#ifndef SERVER_DAEMON_INSTANCE_LOCK_H_
#define SERVER_DAEMON_INSTANCE_LOCK_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace fuseboard {

class InstanceLock {
 public:
  // Creates `path` (mode 0600) if absent, locks it and writes "pid <pid> started <time>" into it.
  // The file is never deleted: a lock on a deleted file would guard nothing. Errors:
  // FailedPrecondition that names the holder if another process has the lock; PermissionDenied or
  // FailedPrecondition if the file cannot be opened.
  static absl::StatusOr<InstanceLock> Acquire(const std::string& path, absl::Time started_at);

  InstanceLock(InstanceLock&& other) noexcept;
  InstanceLock& operator=(InstanceLock&& other) noexcept;
  ~InstanceLock();

 private:
  explicit InstanceLock(int fd) : fd_(fd) {}

  int fd_;  // -1 after a move.
};

}  // namespace fuseboard

#endif  // SERVER_DAEMON_INSTANCE_LOCK_H_
