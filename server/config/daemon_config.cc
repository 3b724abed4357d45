#include "server/config/daemon_config.h"

#include <sys/un.h>

#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/common/status_macros.h"
#include "server/common/text_proto.h"
#include "server/common/utf8.h"

namespace fuseboard {
namespace {

constexpr int64_t kMinRequestBytes = int64_t{4} << 10;
constexpr int64_t kMaxRequestBytes = int64_t{256} << 20;
// sun_path with its terminating zero; a longer path would be cut or refused deep inside gRPC.
constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

using Errors = std::vector<std::string>;

void CheckSeconds(absl::string_view field, double value, double min, double max, Errors* errors) {
  if (std::isfinite(value) && value >= min && value <= max) return;
  errors->push_back(absl::StrCat(field, " is ", value, ", want ", min, " to ", max));
}

void CheckPath(absl::string_view field, absl::string_view value, Errors* errors) {
  if (!IsUtf8(value)) {
    errors->push_back(absl::StrCat(field, " is \"", ToUtf8(value), "\", want UTF-8"));
  } else if (!absl::StartsWith(value, "/")) {
    errors->push_back(absl::StrCat(field, " is \"", value, "\", want an absolute path"));
  }
}

void CheckSocket(absl::string_view field, absl::string_view value, Errors* errors) {
  CheckPath(field, value, errors);
  if (value.size() <= kMaxSocketPath) return;
  errors->push_back(absl::StrCat(field, " is \"", value, "\" with ", value.size(),
                                 " characters, want at most ", kMaxSocketPath));
}

void CheckHttpAddress(absl::string_view value, Errors* errors) {
  if (value.empty()) return;
  // The last colon: an IPv6 host has others.
  const size_t colon = value.rfind(':');
  int port = 0;
  const bool good = colon != absl::string_view::npos && colon > 0 &&
                    absl::SimpleAtoi(value.substr(colon + 1), &port) && port >= 0 && port <= 65535;
  if (good) return;
  errors->push_back(
      absl::StrCat("http_address is \"", value, "\", want host:port with a port of 0 to 65535"));
}

}  // namespace

absl::StatusOr<v1::DaemonConfig> LoadConfig(const std::string& path) {
  v1::DaemonConfig config;
  FB_RETURN_IF_ERROR(LoadTextProto(path, &config, kMaxConfigBytes));
  return config;
}

void ApplyDefaults(absl::string_view default_home, v1::DaemonConfig* config) {
  if (config->home().empty()) config->set_home(std::string(default_home));
  if (config->state_dir().empty()) config->set_state_dir("/var/lib/fuseboard");
  if (config->job_socket().empty()) config->set_job_socket("/run/fuseboard/job.sock");
  if (config->admin_socket().empty()) config->set_admin_socket("/run/fuseboard/admin.sock");
  if (!config->has_http_address()) config->set_http_address("127.0.0.1:9464");
  if (config->liveness_seconds() == 0) config->set_liveness_seconds(30);
  if (!config->has_drain_seconds()) config->set_drain_seconds(5);
  if (config->deny_file().empty()) config->set_deny_file("/run/fuseboard/deny");
  if (config->max_request_bytes() == 0) config->set_max_request_bytes(int64_t{4} << 20);
}

absl::Status ValidateConfig(const v1::DaemonConfig& config) {
  Errors errors;
  CheckPath("home", config.home(), &errors);
  CheckPath("state_dir", config.state_dir(), &errors);
  CheckSocket("job_socket", config.job_socket(), &errors);
  CheckSocket("admin_socket", config.admin_socket(), &errors);
  if (config.job_socket() == config.admin_socket()) {
    errors.push_back(absl::StrCat("job_socket and admin_socket are both \"", config.job_socket(),
                                  "\", want two sockets"));
  }
  CheckHttpAddress(config.http_address(), &errors);
  for (const std::string& dir : config.catalog_dirs()) CheckPath("catalog_dirs", dir, &errors);
  for (const std::string& dir : config.kernel_dirs()) CheckPath("kernel_dirs", dir, &errors);
  CheckSeconds("liveness_seconds", config.liveness_seconds(), 1, 3600, &errors);
  CheckSeconds("drain_seconds", config.drain_seconds(), 0, 300, &errors);
  CheckPath("deny_file", config.deny_file(), &errors);
  // A year: beyond it "never" is meant, which is 0.
  CheckSeconds("idle_exit_seconds", config.idle_exit_seconds(), 0, 366.0 * 86400, &errors);
  if (config.max_request_bytes() < kMinRequestBytes ||
      config.max_request_bytes() > kMaxRequestBytes) {
    errors.push_back(absl::StrCat("max_request_bytes is ", config.max_request_bytes(), ", want ",
                                  kMinRequestBytes, " to ", kMaxRequestBytes));
  }
  if (errors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(errors, "; "));
}

}  // namespace fuseboard
