// The daemon's configuration: read from a text Protobuf file, completed with defaults, validated as
// a whole. Any error refuses all of it, and every error names the field and its value.

#ifndef SERVER_CONFIG_DAEMON_CONFIG_H_
#define SERVER_CONFIG_DAEMON_CONFIG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fuseboard/v1/config.pb.h"

namespace fuseboard {

// A configuration is a screenful; a file beyond this is something else.
inline constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;

// Reads the file. No defaults yet, so that flags can be laid over it.
//
// Errors: as LoadTextProto.
absl::StatusOr<v1::DaemonConfig> LoadConfig(const std::string& path);

// Fills every field that is not set as proto/fuseboard/v1/config.proto says. `default_home` is the
// parent of the binary's folder.
void ApplyDefaults(absl::string_view default_home, v1::DaemonConfig* config);

// Checks all fields of a configuration with defaults applied.
//
// Errors: InvalidArgument that lists every wrong field with its value.
absl::Status ValidateConfig(const v1::DaemonConfig& config);

}  // namespace fuseboard

#endif  // SERVER_CONFIG_DAEMON_CONFIG_H_
