// What the node has and runs: status, models, kernels, jobs.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "fuseboard/v1/catalog.grpc.pb.h"
#include "fuseboard/v1/status.grpc.pb.h"
#include "server/fusectl/commands.h"
#include "server/fusectl/format.h"
#include "server/fusectl/table.h"

namespace fuseboard::fusectl {
namespace {

absl::Status DescribeModel(const Invocation& invocation, Connection* daemon, std::string* out) {
  v1::DescribeModelRequest request;
  request.set_model_type(invocation.operand);
  const auto response = daemon->Call(&v1::Catalog::Stub::DescribeModel, request);
  if (!response.ok()) {
    const auto models = daemon->Call(&v1::Catalog::Stub::ListModels, v1::ListModelsRequest());
    std::vector<std::string> names;
    if (models.ok()) {
      for (const v1::CatalogModel& model : models->models()) names.push_back(model.model_type());
    }
    return SuggestNear(response.status(), invocation.operand, names);
  }
  if (WantsJson(invocation)) {
    *out += ToJson(*response);
    return absl::OkStatus();
  }
  absl::StrAppend(out, response->model().model_type(), ", verified with ",
                  response->model().verified_with(), "\n");
  if (!response->model().native_parts().empty()) {
    absl::StrAppend(out, "native: ", response->model().native_parts(), "\n");
  }
  Table table({{"ENTRY"}, {"OPERATION"}, {"DEFAULT"}, {"OFF MEANS"}, {"DESCRIPTION"}});
  for (const v1::CatalogEntry& entry : response->entries()) {
    table.AddRow({entry.id(), entry.operation(), entry.default_enabled() ? "on" : "off",
                  FormatKind(entry.fallback()), entry.description()});
  }
  absl::StrAppend(out, "\n", table.ToString());
  return absl::OkStatus();
}

std::string FormatPlan(const v1::ProcessStatus& process) {
  if (!process.plan_error().empty()) return absl::StrCat("refused: ", process.plan_error());
  if (process.applied_revision() == 0) return "not applied yet";
  return absl::StrCat("revision ", process.applied_revision(), " since step ",
                      process.applied_step(),
                      process.sent_revision() > process.applied_revision()
                          ? absl::StrCat(", ", process.sent_revision(), " sent")
                          : "");
}

void AppendSites(const v1::ProcessStatus& process, std::string* out) {
  Table table(
      {{"  SITE"}, {"COUNT", Align::kRight}, {"DECISION"}, {"OPERATION"}, {"RULE"}, {"REASON"}});
  for (const v1::Decision& decision : process.decisions()) {
    const auto count = process.site_counts().find(decision.site_id());
    table.AddRow({absl::StrCat("  ", decision.site_id()),
                  count == process.site_counts().end() ? "" : absl::StrCat(count->second),
                  FormatKind(decision.kind()), decision.operation(), FormatRule(decision.rule()),
                  decision.reason()});
  }
  if (!table.Empty()) *out += table.ToString();
  for (const v1::SiteRefusal& refusal : process.refusals()) {
    absl::StrAppend(out, "  not bound: ", refusal.site_id(), " (", refusal.count(),
                    "): ", refusal.reason(), "\n");
  }
  for (const v1::OperationCounter& counter : process.counters()) {
    absl::StrAppend(out, "  calls: ", counter.operation(), " ", counter.fused_calls(), " fused");
    for (const auto& [reason, calls] : counter.fallback_calls()) {
      absl::StrAppend(out, ", ", calls, " fell back (", reason, ")");
    }
    *out += '\n';
  }
}

}  // namespace

absl::Status RunStatus(const Invocation& invocation, Connection* daemon, std::string* out) {
  const auto response = daemon->Call(&v1::Status::Stub::DescribeNode, v1::DescribeNodeRequest());
  if (!response.ok()) return response.status();
  if (WantsJson(invocation)) {
    *out += ToJson(*response);
    return absl::OkStatus();
  }
  const double age =
      absl::ToDoubleSeconds(absl::Now() - absl::FromUnixMicros(response->started_at_us()));
  absl::StrAppend(out, "fuseboardd ", response->version(), " on ", response->host(), ", pid ",
                  response->pid(), ", up ", FormatSeconds(age),
                  response->draining() ? ", draining" : "", "\n");
  absl::StrAppend(out, "revision   ", response->revision(), " (", response->store_kind(), " store ",
                  response->store_id(), ")\n");
  absl::StrAppend(out, "home       ", response->home(), "\n");
  absl::StrAppend(out, "jobs       ", response->job_address(), "\n");
  absl::StrAppend(out, "admin      ", response->admin_address(), "\n");
  absl::StrAppend(out, "http       ",
                  response->http_address().empty() ? "off" : response->http_address(), "\n");
  absl::StrAppend(out, "processes  ", response->processes(), "\n");
  absl::StrAppend(out, "kernels    ", response->kernels(), "\n");
  absl::StrAppend(out, "catalogue  ", response->catalog_entries(), " entries\n");
  if (response->problems().empty()) {
    *out += "problems   none\n";
    return absl::OkStatus();
  }
  *out += "problems\n";
  for (const std::string& problem : response->problems()) absl::StrAppend(out, "  ", problem, "\n");
  return absl::OkStatus();
}

absl::Status RunModels(const Invocation& invocation, Connection* daemon, std::string* out) {
  if (!invocation.operand.empty()) return DescribeModel(invocation, daemon, out);
  const auto response = daemon->Call(&v1::Catalog::Stub::ListModels, v1::ListModelsRequest());
  if (!response.ok()) return response.status();
  if (WantsJson(invocation)) {
    *out += ToJson(*response);
    return absl::OkStatus();
  }
  Table table({{"MODEL"}, {"VERIFIED WITH"}, {"ENTRIES"}, {"NATIVE"}});
  for (const v1::CatalogModel& model : response->models()) {
    table.AddRow({model.model_type(), model.verified_with(), absl::StrJoin(model.entries(), ", "),
                  model.native_parts()});
  }
  *out += table.ToString();
  return absl::OkStatus();
}

absl::Status RunKernels(const Invocation& invocation, Connection* daemon, std::string* out) {
  const auto response = daemon->Call(&v1::Catalog::Stub::ListKernels, v1::ListKernelsRequest());
  if (!response.ok()) return response.status();
  if (WantsJson(invocation)) {
    *out += ToJson(*response);
    return absl::OkStatus();
  }
  Table table({{"OPERATION"},
               {"VERSION"},
               {"STATE"},
               {"SITES", Align::kRight},
               {"SIZE", Align::kRight},
               {"DEVICES"},
               {"DTYPES"},
               {"RULE"},
               {"REASON"}});
  for (const v1::KernelStatus& kernel : response->kernels()) {
    const v1::Manifest& manifest = kernel.manifest();
    const bool broken = !kernel.error().empty();
    table.AddRow(
        {kernel.operation(), manifest.version(),
         broken ? "broken" : (kernel.enabled() ? "on" : "off"), absl::StrCat(kernel.active_sites()),
         manifest.size_bytes() == 0 ? "" : FormatBytes(static_cast<double>(manifest.size_bytes())),
         absl::StrJoin(manifest.device_types(), ","), absl::StrJoin(manifest.dtypes(), ","),
         FormatRule(kernel.rule()), broken ? kernel.error() : kernel.reason()});
  }
  *out += table.ToString();
  return absl::OkStatus();
}

absl::Status RunJobs(const Invocation& invocation, Connection* daemon, std::string* out) {
  v1::ListJobsRequest request;
  request.set_include_gone(invocation.options.all);
  const auto response = daemon->Call(&v1::Status::Stub::ListJobs, request);
  if (!response.ok()) return response.status();
  if (WantsJson(invocation)) {
    *out += ToJson(*response);
    return absl::OkStatus();
  }
  if (response->processes().empty()) *out += "no training process is connected\n";
  for (const v1::ProcessStatus& process : response->processes()) {
    const v1::Job& job = process.job();
    absl::StrAppend(out, job.name(), " rank ", job.rank(), " of ", job.world_size(), " (pid ",
                    job.pid(), " on ", job.host(), ", instance ", job.instance_id(), ")",
                    process.gone() ? ", gone" : "", "\n");
    absl::StrAppend(
        out, "  ", process.model_type().empty() ? "unnamed model" : process.model_type(), ", step ",
        process.step(), ", heard of ", FormatSeconds(process.silent_seconds()), " ago, plan ",
        FormatPlan(process), "\n");
    AppendSites(process, out);
  }
  return absl::OkStatus();
}

}  // namespace fuseboard::fusectl
