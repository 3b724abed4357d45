// fuseboardd's command line, and the configuration that file, flags and defaults make together.
// Flags win over the file. No part of the daemon runs yet.

#ifndef SERVER_DAEMON_DAEMON_FLAGS_H_
#define SERVER_DAEMON_DAEMON_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fuseboard/v1/config.pb.h"

namespace fuseboard {

struct DaemonFlags {
  std::optional<std::string> config;
  std::optional<std::string> home;
  std::optional<std::string> state_dir;
  std::optional<std::string> job_socket;
  std::optional<std::string> admin_socket;
  std::optional<std::string> http_address;
  std::vector<std::string> catalog_dirs;
  std::vector<std::string> kernel_dirs;
  std::optional<std::string> deny_file;
  std::optional<double> liveness_seconds;
  std::optional<double> drain_seconds;
  std::optional<double> idle_exit_seconds;
  std::optional<int64_t> max_request_bytes;
  std::optional<int64_t> ready_fd;
  bool check_config = false;
  bool help = false;
  bool version = false;
};

// Errors: InvalidArgument that names the flag.
absl::StatusOr<DaemonFlags> ParseDaemonFlags(const std::vector<std::string>& args);

// Usage and every flag.
std::string DaemonHelp();

// The whole configuration, valid. `default_home` is used if neither flag nor file names a home. If
// a state_dir is named, sockets that are not lie in it. Errors: of the file; FailedPrecondition if
// `privileged` is false and no state_dir is named, since the default one is root's; InvalidArgument
// that lists every wrong field.
absl::StatusOr<v1::DaemonConfig> MakeConfig(const DaemonFlags& flags,
                                            absl::string_view default_home, bool privileged);

// $FUSEBOARD_HOME, else the parent of the folder that this program is in.
std::string DefaultHome();

}  // namespace fuseboard

#endif  // SERVER_DAEMON_DAEMON_FLAGS_H_
