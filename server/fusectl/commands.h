// The commands of fusectl: each asks the daemon and appends what is to be printed to `out`, as a
// table for people or as JSON. Errors are the daemon's, with the nearest name added where a name is
// unknown.

#ifndef SERVER_FUSECTL_COMMANDS_H_
#define SERVER_FUSECTL_COMMANDS_H_

#include <google/protobuf/message.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/fusectl/arguments.h"
#include "server/fusectl/connection.h"

namespace fuseboard::fusectl {

absl::Status RunStatus(const Invocation& invocation, Connection* daemon, std::string* out);
absl::Status RunModels(const Invocation& invocation, Connection* daemon, std::string* out);
absl::Status RunKernels(const Invocation& invocation, Connection* daemon, std::string* out);
absl::Status RunJobs(const Invocation& invocation, Connection* daemon, std::string* out);
absl::Status RunExplain(const Invocation& invocation, Connection* daemon, std::string* out);
absl::Status RunOverrides(const Invocation& invocation, Connection* daemon, std::string* out);
absl::Status RunAudit(const Invocation& invocation, Connection* daemon, std::string* out);
absl::Status RunReport(const Invocation& invocation, Connection* daemon, std::string* out);
// enable, disable, reset, kill and unkill. With --wait, an error if a process did not apply the
// change in time; what it printed by then stays in `out`.
absl::Status RunMutation(const Invocation& invocation, Connection* daemon, std::string* out);

// ---- Shared by the commands ----

bool WantsJson(const Invocation& invocation);

// The Protobuf JSON mapping with the fields' own names, zero values written out.
std::string ToJson(const google::protobuf::Message& message);

// `status` with "; did you mean <near>?" if it is NOT_FOUND, a candidate is near `name`, and the
// daemon has not said so itself.
absl::Status SuggestNear(const absl::Status& status, absl::string_view name,
                         const std::vector<std::string>& candidates);

}  // namespace fuseboard::fusectl

#endif  // SERVER_FUSECTL_COMMANDS_H_
