#include "absl/strings/str_cat.h"
#include "fuseboard/v1/resolver.grpc.pb.h"
#include "fuseboard/v1/status.grpc.pb.h"
#include "server/fusectl/commands.h"
#include "server/fusectl/format.h"
#include "server/fusectl/table.h"

namespace fuseboard::fusectl {
namespace {

// The names that --job or --instance could have meant.
std::vector<std::string> KnownNames(const Options& options, Connection* daemon) {
  const auto jobs = daemon->Call(&v1::Status::Stub::ListJobs, v1::ListJobsRequest());
  std::vector<std::string> names;
  if (!jobs.ok()) return names;
  for (const v1::ProcessStatus& process : jobs->processes()) {
    names.push_back(options.job.has_value() ? process.job().name() : process.job().instance_id());
  }
  return names;
}

void AppendSite(const v1::ExplainResponse& response, int index, std::string* out) {
  const v1::Decision& decision = response.plan().decisions(index);
  absl::StrAppend(out, "\n", decision.site_id());
  for (const v1::Site& site : response.request().sites()) {
    if (site.site_id() == decision.site_id()) {
      absl::StrAppend(out, " (", site.count(), " of ", site.qualified_name(), ")");
    }
  }
  absl::StrAppend(out, ": ", FormatKind(decision.kind()), decision.operation().empty() ? "" : " ",
                  decision.operation(), ", ", decision.reason(), " [", FormatRule(decision.rule()),
                  "]\n");
  if (index >= response.sites_size()) return;
  Table table({{"  CANDIDATE"}, {"OPERATION"}, {"VERSION"}, {""}, {"RULE"}, {"REASON"}});
  for (const v1::Candidate& candidate : response.sites(index).candidates()) {
    table.AddRow({absl::StrCat("  ", candidate.catalog_entry()), candidate.operation(),
                  candidate.version(), candidate.accepted() ? "accepted" : "rejected",
                  FormatRule(candidate.rule()), candidate.reason()});
  }
  if (!table.Empty()) *out += table.ToString();
}

}  // namespace

absl::Status RunExplain(const Invocation& invocation, Connection* daemon, std::string* out) {
  const Options& options = invocation.options;
  v1::ExplainRequest request;
  request.set_job_name(options.job.value_or(""));
  request.set_instance_id(options.instance.value_or(""));
  const auto response = daemon->Call(&v1::Resolver::Stub::Explain, request);
  if (!response.ok()) {
    if (!absl::IsNotFound(response.status())) return response.status();
    return SuggestNear(response.status(), options.job.value_or(options.instance.value_or("")),
                       KnownNames(options, daemon));
  }
  if (WantsJson(invocation)) {
    *out += ToJson(*response);
    return absl::OkStatus();
  }
  absl::StrAppend(out, response->request().job().name(), " rank ", response->request().job().rank(),
                  " at revision ", response->plan().revision(), "\n");
  for (int i = 0; i < response->plan().decisions_size(); ++i) AppendSite(*response, i, out);
  return absl::OkStatus();
}

}  // namespace fuseboard::fusectl
