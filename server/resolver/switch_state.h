// Levels 2 and 6 to 10 of the precedence: whether operators and the catalogue want an operation on,
// for one job, apart from whether it could run. Pure.

#ifndef SERVER_RESOLVER_SWITCH_STATE_H_
#define SERVER_RESOLVER_SWITCH_STATE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "fuseboard/v1/plan.pb.h"
#include "server/resolver/snapshot.h"

namespace fuseboard {

// What a level of precedence says.
struct Verdict {
  bool enabled = false;
  v1::Rule rule = v1::RULE_UNSPECIFIED;
  std::string reason;
  // A kill of everything ("*"): not even a composite may run.
  bool kills_all = false;
};

// The kill that holds for `operation` in the job, if any: of itself, of "*", of a kernel that it
// uses, or by the deny file. A kill of "*" is found first. `uses` are the kernels that a composite
// calls; only kills reach a composite through them, overrides do not.
std::optional<Verdict> FindKill(absl::string_view operation, const std::vector<std::string>& uses,
                                absl::string_view job_name, const Snapshot& snapshot);

// Levels 6 to 10. The override of the narrowest scope counts: job before node before fleet.
Verdict FindPreference(absl::string_view operation, bool default_enabled,
                       absl::string_view job_name, const Snapshot& snapshot);

// Every operation that can be named: in the catalogue, as a library or as a composite. Sorted.
std::vector<std::string> KnownOperations(const Snapshot& snapshot);

// The kernels that `operation` calls if it is a composite of some binding here; else none.
std::vector<std::string> UsedKernels(absl::string_view operation, const LibrarySet& libraries);

}  // namespace fuseboard

#endif  // SERVER_RESOLVER_SWITCH_STATE_H_
