#include "server/fusectl/arguments.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/command_line/flag_set.h"
#include "server/command_line/near_name.h"
#include "server/fusectl/exit_code.h"

namespace fuseboard::fusectl {
namespace {

// Groups of flags that commands share.
enum FlagGroup : unsigned {
  kNoFlags = 0,
  kMutationFlags = 1U << 0U,
  kTtlFlag = 1U << 1U,
  kProcessFlags = 1U << 2U,  // --job or --instance: which process.
  kJobFlag = 1U << 3U,       // --job alone: filter.
  kAllFlag = 1U << 4U,
  kLimitFlag = 1U << 5U,
};

enum class Operand { kNone, kOptional, kRequired };

struct Command {
  CommandId id;
  const char* name;
  Operand operand;
  const char* placeholder;
  unsigned flags;
  const char* help;
};

constexpr std::array kCommands = {
    Command{CommandId::kStatus, "status", Operand::kNone, "", kNoFlags,
            "How the daemon is: version, revision, addresses, problems."},
    Command{CommandId::kModels, "models", Operand::kOptional, "[TYPE]", kNoFlags,
            "Model types the catalogue knows, or one of them with its entries."},
    Command{CommandId::kKernels, "kernels", Operand::kNone, "", kNoFlags,
            "Operations with their libraries, switches and active sites."},
    Command{CommandId::kJobs, "jobs", Operand::kNone, "", kAllFlag,
            "Connected training processes and what each of their sites runs."},
    Command{CommandId::kExplain, "explain", Operand::kNone, "", kProcessFlags,
            "Every candidate for every site of a running process, accepted or rejected, and why."},
    Command{CommandId::kEnable, "enable", Operand::kRequired, "OPERATION",
            kMutationFlags | kTtlFlag, "Sets an override: the operation's kernel is on."},
    Command{CommandId::kDisable, "disable", Operand::kRequired, "OPERATION",
            kMutationFlags | kTtlFlag, "Sets an override: the operation's kernel is off."},
    Command{CommandId::kReset, "reset", Operand::kRequired, "OPERATION", kMutationFlags,
            "Deletes the override of an operation: the catalogue's default holds again."},
    Command{CommandId::kKill, "kill", Operand::kRequired, "OPERATION|*", kMutationFlags | kTtlFlag,
            "Kills an operation, or all with '*': off whatever any override says, until unkill."},
    Command{CommandId::kUnkill, "unkill", Operand::kRequired, "OPERATION|*", kMutationFlags,
            "Deletes a kill."},
    Command{CommandId::kOverrides, "overrides", Operand::kNone, "", kNoFlags,
            "Overrides and kills in force."},
    Command{CommandId::kAudit, "audit", Operand::kNone, "", kLimitFlag,
            "Who changed what when and why, newest first."},
    Command{CommandId::kReport, "report", Operand::kNone, "", kJobFlag | kLimitFlag,
            "Measured windows and savings, with method and sample count."},
};

const Command* FindCommand(CommandId id) {
  const auto* it =
      std::ranges::find_if(kCommands, [id](const Command& command) { return command.id == id; });
  return it == kCommands.end() ? nullptr : it;
}

void AddGlobalFlags(FlagSet* flags, Options* options) {
  flags->Add("address", "ADDRESS",
             "Admin socket of the daemon. Default: $FUSEBOARD_ADMIN_ADDRESS, else "
             "unix:/run/fuseboard/admin.sock.",
             &options->address);
  flags->Add("output", "table|json",
             "json is the Protobuf JSON mapping of the reply, with the fields' own names and with "
             "zero values written out; 64-bit numbers are strings. Default: table.",
             &options->output);
  flags->AddDuration("timeout", "Longest wait for one answer. Default: 5s.",
                     &options->timeout_seconds);
  flags->AddSwitch("help", "This text; after a command, the command's.", &options->help);
  flags->AddSwitch("version", "Prints the version.", &options->version);
}

void AddMutationFlags(FlagSet* flags, Options* options) {
  flags->Add("reason", "TEXT", "Why; shown to everybody who asks later. Required.",
             &options->reason);
  flags->Add("author", "NAME", "Who. Default: $SUDO_USER or the user's name, at this host.",
             &options->author);
  flags->Add("job", "NAME", "Holds for this job only.", &options->job);
  flags->AddSwitch("node", "Holds for this node (the default).", &options->node);
  flags->AddSwitch("fleet", "Holds for every node that shares the store.", &options->fleet);
  flags->Add("expect-revision", "N", "Refuse unless the configuration is at this revision.",
             &options->expect_revision);
  flags->AddSwitch("dry-run", "Print what would change, and change nothing.", &options->dry_run);
  flags->AddDuration("wait",
                     "Wait this long for the affected processes to apply the change, and print "
                     "the step of each. JSON is then {\"mutation\": ..., \"jobs\": ...}. "
                     "Default: 0.",
                     &options->wait_seconds);
}

void AddFlags(unsigned groups, FlagSet* flags, Options* options) {
  if ((groups & kMutationFlags) != 0) AddMutationFlags(flags, options);
  if ((groups & kTtlFlag) != 0) {
    flags->AddDuration("ttl", "Expires after this time, e.g. 30m or 2h. Default: never.",
                       &options->ttl_seconds);
  }
  if ((groups & (kProcessFlags | kJobFlag)) != 0) {
    flags->Add("job", "NAME",
               (groups & kJobFlag) != 0 ? "Only this job." : "Rank 0 of this running job.",
               &options->job);
  }
  if ((groups & kProcessFlags) != 0) {
    flags->Add("instance", "ID", "This process.", &options->instance);
  }
  if ((groups & kAllFlag) != 0) {
    flags->AddSwitch("all", "Also processes that left within the last hour.", &options->all);
  }
  if ((groups & kLimitFlag) != 0) {
    flags->Add("limit", "N", "At most this many, 1 to 1000. Default: 100.", &options->limit);
  }
}

absl::StatusOr<const Command*> CommandNamed(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (name == command.name) return &command;
    names.emplace_back(command.name);
  }
  std::string message = absl::StrCat("unknown command \"", name, "\"");
  const std::string near = NearName(name, names);
  if (!near.empty()) absl::StrAppend(&message, "; did you mean ", near, "?");
  return absl::InvalidArgumentError(message);
}

// Which word is the command depends on which flags take a value, so a first pass knows every flag.
absl::StatusOr<std::string> FindCommandWord(const std::vector<std::string>& args) {
  Options ignored;
  FlagSet flags;
  AddGlobalFlags(&flags, &ignored);
  AddFlags(~0U, &flags, &ignored);
  absl::StatusOr<std::vector<std::string>> words = flags.Parse(args);
  if (!words.ok()) return words.status();
  return words->empty() ? "" : words->front();
}

absl::Status CheckOperands(const Command& command, const std::vector<std::string>& words) {
  if (command.operand == Operand::kRequired && words.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(command.name, " needs ", command.placeholder));
  }
  const size_t most = command.operand == Operand::kNone ? 1 : 2;
  if (words.size() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(command.name, " does not take \"", words[most], "\""));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const Command& command, const Options& options) {
  if ((command.flags & kMutationFlags) != 0 && options.reason.value_or("").empty()) {
    return absl::InvalidArgumentError(absl::StrCat(command.name, " needs --reason TEXT"));
  }
  if ((command.flags & kProcessFlags) != 0 &&
      options.job.has_value() == options.instance.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(command.name, " needs either --job NAME or --instance ID"));
  }
  if (options.expect_revision.value_or(1) < 1) {
    return absl::InvalidArgumentError("--expect-revision wants a revision of 1 or more");
  }
  const std::string output = options.output.value_or("table");
  if (output != "table" && output != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("--output has value \"", output, "\", want table or json"));
  }
  return ScopeOf(options).status();
}

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string UserName() {
  const char* sudo_user = std::getenv("SUDO_USER");
  if (sudo_user != nullptr && *sudo_user != '\0') return sudo_user;
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 4096> buffer{};
  if (getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found) == 0 &&
      found != nullptr) {
    return found->pw_name;
  }
  return absl::StrCat("uid", geteuid());
}

}  // namespace

absl::StatusOr<Invocation> ParseArguments(const std::vector<std::string>& args) {
  absl::StatusOr<std::string> word = FindCommandWord(args);
  if (!word.ok()) return word.status();
  Invocation invocation;
  FlagSet flags;
  AddGlobalFlags(&flags, &invocation.options);
  if (word->empty()) {
    absl::StatusOr<std::vector<std::string>> none = flags.Parse(args);
    if (!none.ok()) return none.status();
    if (invocation.options.help || invocation.options.version) return invocation;
    return absl::InvalidArgumentError("no command given; see fusectl --help");
  }
  absl::StatusOr<const Command*> command = CommandNamed(*word);
  if (!command.ok()) return command.status();
  AddFlags((*command)->flags, &flags, &invocation.options);
  absl::StatusOr<std::vector<std::string>> words = flags.Parse(args);
  if (!words.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(*word, ": ", words.status().message()));
  }
  invocation.command = (*command)->id;
  invocation.name = *word;
  if (invocation.options.help || invocation.options.version) return invocation;
  absl::Status status = CheckOperands(**command, *words);
  if (status.ok()) status = CheckOptions(**command, invocation.options);
  if (!status.ok()) return status;
  if (words->size() > 1) invocation.operand = (*words)[1];
  return invocation;
}

std::string HelpText(CommandId id) {
  Options ignored;
  FlagSet global;
  AddGlobalFlags(&global, &ignored);
  const Command* command = FindCommand(id);
  if (command == nullptr) {
    std::string out =
        "fusectl: looks at and changes a fuseboardd\n\nUsage: fusectl [flags] COMMAND [operand]\n\n"
        "Commands:\n";
    for (const Command& each : kCommands) {
      absl::StrAppend(&out, "  ", each.name, each.operand == Operand::kNone ? "" : " ",
                      each.placeholder, "\n      ", each.help, "\n");
    }
    absl::StrAppend(&out, "\nFlags of every command (`fusectl COMMAND --help` shows its own):\n",
                    global.Help(), "\nExit codes:\n", ExitCodeHelp());
    return out;
  }
  FlagSet own;
  AddFlags(command->flags, &own, &ignored);
  const std::string own_help = own.Help();
  return absl::StrCat("Usage: fusectl ", command->name,
                      command->operand == Operand::kNone ? "" : " ", command->placeholder,
                      " [flags]\n\n", command->help, "\n", own_help.empty() ? "" : "\nFlags:\n",
                      own_help, "\nFlags of every command:\n", global.Help(), "\nExit codes:\n",
                      ExitCodeHelp());
}

absl::StatusOr<v1::Scope> ScopeOf(const Options& options) {
  const int given =
      (options.job.has_value() ? 1 : 0) + (options.node ? 1 : 0) + (options.fleet ? 1 : 0);
  if (given > 1) {
    return absl::InvalidArgumentError("--job, --node and --fleet exclude one another");
  }
  v1::Scope scope;
  scope.set_kind(v1::SCOPE_KIND_NODE);
  if (options.fleet) scope.set_kind(v1::SCOPE_KIND_FLEET);
  if (options.job.has_value()) {
    scope.set_kind(v1::SCOPE_KIND_JOB);
    scope.set_name(*options.job);
  }
  return scope;
}

v1::Mutation MutationOf(const Options& options) {
  v1::Mutation mutation;
  mutation.set_reason(options.reason.value_or(""));
  mutation.set_author(options.author.has_value() ? *options.author
                                                 : absl::StrCat(UserName(), "@", HostName()));
  mutation.set_expected_revision(options.expect_revision.value_or(0));
  mutation.set_dry_run(options.dry_run);
  return mutation;
}

}  // namespace fuseboard::fusectl
