// fusectl: what operators type. Parses, connects, runs one command; errors go to stderr in one
// line, and the exit status says which kind (exit_code.h).
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/fusectl/arguments.h"
#include "server/fusectl/commands.h"
#include "server/fusectl/exit_code.h"

namespace fuseboard::fusectl {
namespace {

constexpr double kDefaultTimeoutSeconds = 5;

std::string AddressOf(const Options& options) {
  if (options.address.has_value()) return *options.address;
  const char* address = std::getenv("FUSEBOARD_ADMIN_ADDRESS");
  if (address != nullptr && *address != '\0') return address;
  return "unix:/run/fuseboard/admin.sock";
}

absl::Status RunCommand(const Invocation& invocation, Connection* daemon, std::string* out) {
  switch (invocation.command) {
    case CommandId::kStatus:
      return RunStatus(invocation, daemon, out);
    case CommandId::kModels:
      return RunModels(invocation, daemon, out);
    case CommandId::kKernels:
      return RunKernels(invocation, daemon, out);
    case CommandId::kJobs:
      return RunJobs(invocation, daemon, out);
    case CommandId::kExplain:
      return RunExplain(invocation, daemon, out);
    case CommandId::kOverrides:
      return RunOverrides(invocation, daemon, out);
    case CommandId::kAudit:
      return RunAudit(invocation, daemon, out);
    case CommandId::kReport:
      return RunReport(invocation, daemon, out);
    default:
      return RunMutation(invocation, daemon, out);
  }
}

int Fail(const absl::Status& status, ExitCode code) {
  std::fprintf(stderr, "fusectl: %s\n", std::string(status.message()).c_str());
  return static_cast<int>(code);
}

int Main(const std::vector<std::string>& args) {
  const absl::StatusOr<Invocation> invocation = ParseArguments(args);
  if (!invocation.ok()) return Fail(invocation.status(), ExitCode::kUsage);
  if (invocation->options.version) {
    std::puts("fusectl " FB_VERSION);
    return 0;
  }
  if (invocation->options.help) {
    std::fputs(HelpText(invocation->command).c_str(), stdout);
    return 0;
  }
  absl::StatusOr<Connection> daemon = Connection::Open(
      AddressOf(invocation->options),
      absl::Seconds(invocation->options.timeout_seconds.value_or(kDefaultTimeoutSeconds)));
  if (!daemon.ok()) return Fail(daemon.status(), ExitCodeOf(daemon.status()));
  std::string out;
  const absl::Status status = RunCommand(*invocation, &*daemon, &out);
  const bool written = std::fputs(out.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!status.ok()) return Fail(status, ExitCodeOf(status));
  if (!written) return Fail(absl::DataLossError("cannot write the output"), ExitCode::kError);
  return 0;
}

}  // namespace
}  // namespace fuseboard::fusectl

int main(int argc, char** argv) {
  return fuseboard::fusectl::Main(std::vector<std::string>(argv + 1, argv + argc));
}
