// Checks of what operators send, before anything is looked up. Pure; every error is one that the
// protos name, and names the field and its value.

#ifndef SERVER_CONTROL_MUTATION_CHECK_H_
#define SERVER_CONTROL_MUTATION_CHECK_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "fuseboard/v1/control.pb.h"
#include "server/resolver/snapshot.h"

namespace fuseboard {

// Reason and author: there, not too long, without control characters (they go to terminals).
absl::Status CheckMutation(const v1::Mutation& mutation);

// Node and fleet have no name, a job has one. Unimplemented (RESERVED) for a group.
absl::Status CheckScope(const v1::Scope& scope);

// A number of 0 to kMaxTtlSeconds.
absl::Status CheckTtl(double ttl_seconds);

// NotFound (UNKNOWN_KERNEL) that names the known ones.
absl::Status CheckOperation(absl::string_view operation, const Snapshot& snapshot);

}  // namespace fuseboard

#endif  // SERVER_CONTROL_MUTATION_CHECK_H_
