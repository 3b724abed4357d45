// The logic of the Control service without gRPC: checks what operators ask for, writes it durably
// with one audit record, and says which decisions of running processes it changes. Thread-safe.
//
// Mutations do not lock each other out: each is written on condition that the store has not moved
// since it was looked at, and is tried again if it has, so that the audit's "before" is always
// true.

#ifndef SERVER_CONTROL_CONTROL_SERVICE_H_
#define SERVER_CONTROL_CONTROL_SERVICE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fuseboard/v1/control.pb.h"
#include "server/common/clock.h"
#include "server/jobs/process_table.h"
#include "server/plans/snapshot_source.h"
#include "server/store/config_store.h"

namespace fuseboard {

inline constexpr int kMaxReasonCharacters = 1024;
inline constexpr int kMaxAuthorCharacters = 128;
// Ten years: longer is a slip of the keyboard.
inline constexpr double kMaxTtlSeconds = 10 * 365.25 * 86400;

class ControlService {
 public:
  // All pointers outlive the service.
  struct Config {
    const Clock* clock = nullptr;
    ConfigStore* store = nullptr;
    SnapshotSource* snapshots = nullptr;
    const ProcessTable* processes = nullptr;
  };

  explicit ControlService(Config config) : config_(config) {}

  // Errors, for all four: NotFound (UNKNOWN_KERNEL) for an operation that this node does not know,
  // naming those it does; InvalidArgument (BAD_REQUEST), naming field and value; Unimplemented
  // (RESERVED) for the scope group; Aborted (REVISION_MISMATCH), naming both revisions; Unavailable
  // (STORE). A dry run makes the same checks and changes nothing.
  absl::StatusOr<v1::MutationResponse> SetOverride(const v1::SetOverrideRequest& request);
  absl::StatusOr<v1::MutationResponse> SetKill(const v1::SetKillRequest& request);
  // Also NotFound (NO_SUCH_OVERRIDE, NO_SUCH_KILL). What exists can be deleted even if this node no
  // longer knows the operation.
  absl::StatusOr<v1::MutationResponse> DeleteOverride(const v1::DeleteOverrideRequest& request);
  absl::StatusOr<v1::MutationResponse> DeleteKill(const v1::DeleteKillRequest& request);

  // Those in force, by operation, then scope.
  absl::StatusOr<v1::ListOverridesResponse> ListOverrides();
  absl::StatusOr<v1::ListKillsResponse> ListKills();

  // Errors: InvalidArgument (BAD_REQUEST) if the limit is not 0 to 1000; Unavailable (STORE).
  absl::StatusOr<v1::ListAuditResponse> ListAudit(const v1::ListAuditRequest& request);

 private:
  struct Change;
  template <typename Kind, typename Record>
  static Change SetChange(absl::string_view action, const Record& record);
  template <typename Kind, typename Request>
  static Change DeleteChange(absl::string_view action, const Request& request,
                             absl::string_view missing);
  absl::StatusOr<v1::MutationResponse> Apply(const v1::Mutation& mutation, const Change& change);

  const Config config_;
};

}  // namespace fuseboard

#endif  // SERVER_CONTROL_CONTROL_SERVICE_H_
