// The daemon as a whole: takes its locks, opens its parts in order and serves until it is drained.
// Start, Reload and Drain belong to one thread, the one that waits for signals.

#ifndef SERVER_DAEMON_DAEMON_H_
#define SERVER_DAEMON_DAEMON_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fuseboard/v1/config.pb.h"

namespace fuseboard {

class Daemon {
 public:
  // REQUIRES: `config` is valid; the process's umask is 0077, so that no socket is open to others
  // before its mode is set.
  // Errors: FailedPrecondition, naming the holder, if another daemon has the state folder or one of
  // the sockets; those of folders, store, catalogue and sockets, each naming its path.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const v1::DaemonConfig& config);

  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Takes over catalogue, library folders, drain_seconds and idle_exit_seconds of `next`, and tells
  // watching processes. All or nothing: on error what held before holds on, and the error stands in
  // DescribeNode until a reload succeeds.
  // Errors: that of `next`; FailedPrecondition if a field differs that needs a restart; those of
  // the catalogue.
  absl::Status Reload(const absl::StatusOr<v1::DaemonConfig>& next);

  // Refuses new work, ends the plan streams with UNAVAILABLE, and waits up to drain_seconds for the
  // other calls.
  void Drain();

  // Whether idle_exit_seconds have passed without any process.
  [[nodiscard]] bool IdleTooLong() const;

  // One line of JSON: job_socket, admin_socket, http_address, pid, version.
  [[nodiscard]] std::string ReadyLine() const;

 private:
  class Parts;

  explicit Daemon(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace fuseboard

#endif  // SERVER_DAEMON_DAEMON_H_
