// A machine-readable reason on an absl::Status: a google.rpc.ErrorInfo as its payload, which the
// RPC layer copies to the wire unchanged. The core thus names reasons without knowing gRPC.

#ifndef SERVER_COMMON_ERROR_REASON_H_
#define SERVER_COMMON_ERROR_REASON_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/rpc/status.pb.h"

namespace fuseboard {

// Payload type under which the ErrorInfo is kept.
inline constexpr char kErrorInfoTypeUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";

// Reasons, as they stand in the protos. Stable between releases.
inline constexpr char kBadRequest[] = "BAD_REQUEST";
inline constexpr char kTooLarge[] = "TOO_LARGE";
inline constexpr char kUnknownKernel[] = "UNKNOWN_KERNEL";
inline constexpr char kUnknownModel[] = "UNKNOWN_MODEL";
inline constexpr char kUnknownInstance[] = "UNKNOWN_INSTANCE";
inline constexpr char kUnknownJob[] = "UNKNOWN_JOB";
inline constexpr char kNoSuchOverride[] = "NO_SUCH_OVERRIDE";
inline constexpr char kNoSuchKill[] = "NO_SUCH_KILL";
inline constexpr char kRevisionMismatch[] = "REVISION_MISMATCH";
inline constexpr char kStore[] = "STORE";
inline constexpr char kCompacted[] = "COMPACTED";
inline constexpr char kReserved[] = "RESERVED";

// Returns `status` with an ErrorInfo of this reason and metadata; an earlier one is replaced.
// REQUIRES: !status.ok().
absl::Status WithReason(
    absl::Status status, absl::string_view reason,
    std::initializer_list<std::pair<absl::string_view, absl::string_view>> metadata = {});

// InvalidArgument with reason BAD_REQUEST that names the field.
absl::Status BadRequest(absl::string_view field, absl::string_view message);

// Aborted with reason REVISION_MISMATCH that names both revisions.
absl::Status RevisionMismatch(int64_t expected, int64_t actual);

// The ErrorInfo of `status`, if it carries one.
std::optional<google::rpc::ErrorInfo> ErrorInfoOf(const absl::Status& status);

// Reason of `status`, or empty.
std::string ReasonOf(const absl::Status& status);

}  // namespace fuseboard

#endif  // SERVER_COMMON_ERROR_REASON_H_
