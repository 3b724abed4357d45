// enable, disable, reset, kill, unkill: one mutation, its effects, and the wait for the processes.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fuseboard/v1/catalog.grpc.pb.h"
#include "fuseboard/v1/control.grpc.pb.h"
#include "fuseboard/v1/status.grpc.pb.h"
#include "server/fusectl/commands.h"
#include "server/fusectl/format.h"
#include "server/fusectl/table.h"

namespace fuseboard::fusectl {
namespace {

// A process applies a plan at its next step boundary: tenths of a second at the soonest.
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);

absl::StatusOr<v1::MutationResponse> SetOverride(const Invocation& invocation,
                                                 const v1::Scope& scope, Connection* daemon) {
  v1::SetOverrideRequest request;
  request.set_operation(invocation.operand);
  *request.mutable_scope() = scope;
  request.set_enabled(invocation.command == CommandId::kEnable);
  request.set_ttl_seconds(invocation.options.ttl_seconds.value_or(0));
  *request.mutable_mutation() = MutationOf(invocation.options);
  return daemon->Call(&v1::Control::Stub::SetOverride, request);
}

absl::StatusOr<v1::MutationResponse> SetKill(const Invocation& invocation, const v1::Scope& scope,
                                             Connection* daemon) {
  v1::SetKillRequest request;
  request.set_operation(invocation.operand);
  *request.mutable_scope() = scope;
  request.set_ttl_seconds(invocation.options.ttl_seconds.value_or(0));
  *request.mutable_mutation() = MutationOf(invocation.options);
  return daemon->Call(&v1::Control::Stub::SetKill, request);
}

template <typename Request>
absl::StatusOr<v1::MutationResponse> Delete(
    grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*, const Request&,
                                              v1::MutationResponse*),
    const Invocation& invocation, const v1::Scope& scope, Connection* daemon) {
  Request request;
  request.set_operation(invocation.operand);
  *request.mutable_scope() = scope;
  *request.mutable_mutation() = MutationOf(invocation.options);
  return daemon->Call(method, request);
}

absl::StatusOr<v1::MutationResponse> Mutate(const Invocation& invocation, const v1::Scope& scope,
                                            Connection* daemon) {
  switch (invocation.command) {
    case CommandId::kEnable:
    case CommandId::kDisable:
      return SetOverride(invocation, scope, daemon);
    case CommandId::kReset:
      return Delete(&v1::Control::Stub::DeleteOverride, invocation, scope, daemon);
    case CommandId::kKill:
      return SetKill(invocation, scope, daemon);
    case CommandId::kUnkill:
      return Delete(&v1::Control::Stub::DeleteKill, invocation, scope, daemon);
    default:
      return absl::InternalError(absl::StrCat(invocation.name, " is no mutation"));
  }
}

absl::Status WithSuggestion(const absl::Status& status, const Invocation& invocation,
                            Connection* daemon) {
  if (!absl::IsNotFound(status)) return status;
  const auto kernels = daemon->Call(&v1::Catalog::Stub::ListKernels, v1::ListKernelsRequest());
  std::vector<std::string> names;
  if (kernels.ok()) {
    for (const v1::KernelStatus& kernel : kernels->kernels()) names.push_back(kernel.operation());
  }
  // A known name was not mistyped: what is missing is its override or kill.
  if (std::ranges::find(names, invocation.operand) != names.end()) return status;
  return SuggestNear(status, invocation.operand, names);
}

absl::string_view Outcome(CommandId command) {
  switch (command) {
    case CommandId::kEnable:
      return "enabled";
    case CommandId::kDisable:
      return "disabled";
    case CommandId::kReset:
      return "reset";
    case CommandId::kKill:
      return "killed";
    default:
      return "no longer killed";
  }
}

void AppendEffects(const Invocation& invocation, const v1::Scope& scope,
                   const v1::MutationResponse& response, std::string* out) {
  const bool dry_run = invocation.options.dry_run;
  absl::StrAppend(out, dry_run ? "dry run, nothing changed: " : "", invocation.operand,
                  dry_run ? " would be " : " ", Outcome(invocation.command), " at scope ",
                  FormatScope(scope), " (revision ", response.revision(), ")\n");
  if (response.effects().empty()) {
    *out += "no running process changes\n";
    return;
  }
  Table table({{"JOB"},
               {"RANK", Align::kRight},
               {"SITE"},
               {"COUNT", Align::kRight},
               {"OPERATION"},
               {"BEFORE"},
               {"AFTER"},
               {"ADDS MEMORY", Align::kRight}});
  for (const v1::Effect& effect : response.effects()) {
    table.AddRow(
        {effect.job_name(), absl::StrCat(effect.rank()), effect.site_id(),
         absl::StrCat(effect.count()), effect.operation(), FormatKind(effect.before()),
         FormatKind(effect.after()),
         effect.has_added_bytes() ? FormatBytes(static_cast<double>(effect.added_bytes())) : ""});
  }
  *out += table.ToString();
}

bool Settled(const v1::ProcessStatus& process, int64_t revision) {
  return process.gone() || process.applied_revision() >= revision ||
         (process.sent_revision() >= revision && !process.plan_error().empty());
}

// The affected processes once all have settled, or as they are when the time is over.
absl::StatusOr<v1::ListJobsResponse> WaitForProcesses(const v1::MutationResponse& response,
                                                      absl::Duration limit, Connection* daemon) {
  std::set<std::string> affected;
  for (const v1::Effect& effect : response.effects()) affected.insert(effect.instance_id());
  const absl::Time deadline = absl::Now() + limit;
  while (true) {
    v1::ListJobsRequest request;
    request.set_include_gone(true);
    auto jobs = daemon->Call(&v1::Status::Stub::ListJobs, request);
    if (!jobs.ok()) return jobs.status();
    v1::ListJobsResponse result;
    bool all = true;
    for (v1::ProcessStatus& process : *jobs->mutable_processes()) {
      if (!affected.contains(process.job().instance_id())) continue;
      all = all && Settled(process, response.revision());
      result.add_processes()->Swap(&process);
    }
    if (all || absl::Now() >= deadline) return result;
    absl::SleepFor(std::min(kPollInterval, deadline - absl::Now()));
  }
}

// Errors: DeadlineExceeded or FailedPrecondition if a process did not apply the change.
absl::Status AppendApplied(const v1::ListJobsResponse& jobs, int64_t revision, std::string* out) {
  int waiting = 0;
  int refused = 0;
  for (const v1::ProcessStatus& process : jobs.processes()) {
    const std::string name = absl::StrCat(process.job().name(), " rank ", process.job().rank());
    if (process.applied_revision() >= revision) {
      absl::StrAppend(out, name, ": applied before step ", process.applied_step(), "\n");
    } else if (process.gone()) {
      absl::StrAppend(out, name, ": has ended\n");
    } else if (!process.plan_error().empty()) {
      ++refused;
      absl::StrAppend(out, name, ": refused: ", process.plan_error(), "\n");
    } else {
      ++waiting;
      absl::StrAppend(out, name, ": not applied yet, at step ", process.step(), "\n");
    }
  }
  if (refused > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(refused, " of ", jobs.processes_size(), " processes refused the change"));
  }
  if (waiting > 0) {
    return absl::UnknownError(absl::StrCat(waiting, " of ", jobs.processes_size(),
                                           " processes have not applied the change yet"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunMutation(const Invocation& invocation, Connection* daemon, std::string* out) {
  const absl::StatusOr<v1::Scope> scope = ScopeOf(invocation.options);
  if (!scope.ok()) return scope.status();
  const absl::StatusOr<v1::MutationResponse> response = Mutate(invocation, *scope, daemon);
  if (!response.ok()) return WithSuggestion(response.status(), invocation, daemon);
  const double wait_seconds = invocation.options.wait_seconds.value_or(0);
  const bool waits = wait_seconds > 0 && !invocation.options.dry_run;
  const bool json = WantsJson(invocation);
  if (json && !waits) {
    *out += ToJson(*response);
    return absl::OkStatus();
  }
  if (!json) AppendEffects(invocation, *scope, *response, out);
  if (!waits) return absl::OkStatus();
  const absl::StatusOr<v1::ListJobsResponse> jobs =
      WaitForProcesses(*response, absl::Seconds(wait_seconds), daemon);
  if (!jobs.ok()) return jobs.status();
  std::string lines;
  absl::Status applied = AppendApplied(*jobs, response->revision(), &lines);
  absl::StrAppend(out, json ? absl::StrCat("{\"mutation\": ", ToJson(*response),
                                           ", \"jobs\": ", ToJson(*jobs), "}\n")
                            : lines);
  return applied;
}

}  // namespace fuseboard::fusectl
