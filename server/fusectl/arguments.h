// fusectl's command line: the global flags, the commands and the flags of each. Parsing only;
// nothing here talks to a daemon.

#ifndef SERVER_FUSECTL_ARGUMENTS_H_
#define SERVER_FUSECTL_ARGUMENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fuseboard/v1/control.pb.h"
#include "fuseboard/v1/plan.pb.h"

namespace fuseboard::fusectl {

// All that was given on the command line; what was not is unset.
struct Options {
  std::optional<std::string> address;
  std::optional<std::string> output;
  std::optional<double> timeout_seconds;
  bool help = false;
  bool version = false;

  std::optional<std::string> job;
  std::optional<std::string> instance;
  bool node = false;
  bool fleet = false;
  bool all = false;
  std::optional<int64_t> limit;

  std::optional<std::string> reason;
  std::optional<std::string> author;
  std::optional<double> ttl_seconds;
  std::optional<double> wait_seconds;
  std::optional<int64_t> expect_revision;
  bool dry_run = false;
};

enum class CommandId {
  kNone,  // Only with --help or --version.
  kStatus,
  kModels,
  kKernels,
  kJobs,
  kExplain,
  kEnable,
  kDisable,
  kReset,
  kKill,
  kUnkill,
  kOverrides,
  kAudit,
  kReport,
};

struct Invocation {
  CommandId command = CommandId::kNone;
  std::string name;     // As typed, e.g. "disable".
  std::string operand;  // Operation or model type; "" if the command takes none or it was left out.
  Options options;
};

// Errors: InvalidArgument with a message for people: unknown command (with the nearest), a flag
// that the command does not have, a missing operand, or a mutation without --reason.
absl::StatusOr<Invocation> ParseArguments(const std::vector<std::string>& args);

// Help of one command, or of the program for kNone.
std::string HelpText(CommandId command);

// The scope that --job, --node and --fleet name; node if none. Errors: InvalidArgument for two.
absl::StatusOr<v1::Scope> ScopeOf(const Options& options);

// Reason, author, expected revision and dry run of a mutation. The author defaults to the user who
// called sudo, else the user, at this host.
v1::Mutation MutationOf(const Options& options);

}  // namespace fuseboard::fusectl

#endif  // SERVER_FUSECTL_ARGUMENTS_H_
