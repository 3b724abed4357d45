#include "server/plans/resolver_service.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "server/common/error_reason.h"
#include "server/common/status_macros.h"
#include "server/resolver/request_check.h"
#include "server/resolver/resolver.h"

namespace fuseboard {

absl::StatusOr<v1::ResolveResponse> ResolverService::Resolve(const v1::ResolveRequest& request) {
  FB_RETURN_IF_ERROR(CheckRequest(request));
  // Refresh, not Current: libraries are verified when they are handed out.
  auto plan = std::make_shared<const v1::Plan>(ResolvePlan(request, config_.snapshots->Refresh()));
  config_.processes->Register(std::make_shared<const v1::ResolveRequest>(request), plan);
  v1::ResolveResponse response;
  *response.mutable_plan() = *plan;
  response.set_liveness_seconds(absl::ToDoubleSeconds(config_.liveness));
  return response;
}

absl::StatusOr<v1::ExplainResponse> ResolverService::Explain(const v1::ExplainRequest& request) {
  const int given = static_cast<int>(request.has_request()) +
                    static_cast<int>(!request.instance_id().empty()) +
                    static_cast<int>(!request.job_name().empty());
  if (given != 1) {
    return BadRequest("request", absl::StrCat(given,
                                              " of request, instance_id and job_name are "
                                              "set, want one"));
  }
  if (request.has_request()) {
    FB_RETURN_IF_ERROR(CheckRequest(request.request()));
    return ExplainPlan(request.request(), config_.snapshots->Refresh());
  }
  FB_ASSIGN_OR_RETURN(const auto registered,
                      request.instance_id().empty()
                          ? config_.processes->FindByJob(request.job_name())
                          : config_.processes->FindByInstance(request.instance_id()));
  return ExplainPlan(*registered, config_.snapshots->Refresh());
}

absl::StatusOr<v1::AckPlanResponse> ResolverService::AckPlan(const v1::AckPlanRequest& request) {
  if (request.revision() < 0) {
    return BadRequest("revision", absl::StrCat(request.revision(), ", want at least 0"));
  }
  if (request.applied_step() < 0) {
    return BadRequest("applied_step", absl::StrCat(request.applied_step(), ", want at least 0"));
  }
  if (request.refusals_size() > kMaxSites) {
    return BadRequest("refusals",
                      absl::StrCat(request.refusals_size(), ", want at most ", kMaxSites));
  }
  for (int i = 0; i < request.refusals_size(); ++i) {
    if (request.refusals(i).count() >= 0) continue;
    return BadRequest(absl::StrCat("refusals[", i, "].count"),
                      absl::StrCat(request.refusals(i).count(), ", want at least 0"));
  }
  FB_RETURN_IF_ERROR(config_.processes->RecordAck(request));
  return v1::AckPlanResponse();
}

absl::StatusOr<v1::ReportProgressResponse> ResolverService::ReportProgress(
    const v1::ReportProgressRequest& request) {
  if (request.step() < 0) {
    return BadRequest("step", absl::StrCat(request.step(), ", want at least 0"));
  }
  for (const v1::OperationCounter& counter : request.counters()) {
    if (counter.fused_calls() < 0) {
      return BadRequest(
          "counters.fused_calls",
          absl::StrCat(counter.fused_calls(), " for ", counter.operation(), ", want at least 0"));
    }
    for (const auto& [reason, calls] : counter.fallback_calls()) {
      if (calls >= 0) continue;
      return BadRequest("counters.fallback_calls",
                        absl::StrCat(calls, " for ", counter.operation(), ", want at least 0"));
    }
  }
  v1::ReportProgressResponse response;
  response.set_unknown_instance(!config_.processes->RecordProgress(request));
  return response;
}

}  // namespace fuseboard
