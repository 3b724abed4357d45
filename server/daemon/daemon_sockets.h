// The two Unix sockets of a daemon and the services on them. The job socket is open to everybody,
// the admin socket to its owner alone; only the admin socket has Control. Serve, Drain and the
// destructor belong to one thread.

#ifndef SERVER_DAEMON_DAEMON_SOCKETS_H_
#define SERVER_DAEMON_DAEMON_SOCKETS_H_

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fuseboard/v1/config.pb.h"
#include "server/daemon/daemon_core.h"
#include "server/rpc/call_stats.h"
#include "server/rpc/control_rpc.h"
#include "server/rpc/plan_streams.h"
#include "server/rpc/rpc_server.h"
#include "server/rpc/status_rpc.h"
#include "server/rpc/training_stats.h"

namespace fuseboard {

class DaemonSockets {
 public:
  // All pointers outlive the sockets.
  struct Config {
    DaemonCore* core = nullptr;
    CallStats* calls = nullptr;
    TrainingStats* training = nullptr;
    // New work is refused while it is set.
    const std::atomic<bool>* draining = nullptr;
    // Called from any thread, and before Serve returns.
    StatusRpc::DescribeFn describe;
  };

  // Binds both sockets and serves. REQUIRES: the caller holds their InstanceLocks.
  // Errors: those of the sockets, each naming its path.
  static absl::StatusOr<std::unique_ptr<DaemonSockets>> Serve(const v1::DaemonConfig& daemon,
                                                              const Config& config);

  ~DaemonSockets();
  DaemonSockets(const DaemonSockets&) = delete;
  DaemonSockets& operator=(const DaemonSockets&) = delete;

  // Ends the plan streams with UNAVAILABLE and waits until `deadline` for the other calls.
  void Drain(absl::Time deadline);

 private:
  struct ServiceSet;

  explicit DaemonSockets(const Config& config);

  absl::Status Bind(const v1::DaemonConfig& daemon);

  // Declared in the order in which they are opened; they end in reverse.
  PlanStreams streams_;
  const std::unique_ptr<ServiceSet> job_services_;
  const std::unique_ptr<ServiceSet> admin_services_;
  ControlRpc control_rpc_;
  std::unique_ptr<RpcServer> admin_server_;
  std::unique_ptr<RpcServer> job_server_;
};

}  // namespace fuseboard

#endif  // SERVER_DAEMON_DAEMON_SOCKETS_H_
