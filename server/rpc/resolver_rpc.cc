#include "server/rpc/resolver_rpc.h"

#include "server/common/status_macros.h"
#include "server/resolver/request_check.h"
#include "server/rpc/unary.h"

namespace fuseboard {

absl::Status ResolverRpc::CheckNotDraining() const {
  if (config_.draining->load()) return absl::UnavailableError("the daemon is about to end");
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* ResolverRpc::Resolve(grpc::CallbackServerContext* context,
                                               const v1::ResolveRequest* request,
                                               v1::ResolveResponse* response) {
  return AnswerUnary(config_.calls, "Resolver/Resolve", context, response,
                     [&]() -> absl::StatusOr<v1::ResolveResponse> {
                       FB_RETURN_IF_ERROR(CheckNotDraining());
                       absl::StatusOr<v1::ResolveResponse> result =
                           config_.service->Resolve(*request);
                       if (result.ok()) {
                         config_.training->RecordResolve(result->plan());
                       } else {
                         config_.training->RecordRejectedResolve();
                       }
                       return result;
                     });
}

grpc::ServerUnaryReactor* ResolverRpc::Explain(grpc::CallbackServerContext* context,
                                               const v1::ExplainRequest* request,
                                               v1::ExplainResponse* response) {
  return AnswerUnary(config_.calls, "Resolver/Explain", context, response,
                     [&] { return config_.service->Explain(*request); });
}

grpc::ServerWriteReactor<v1::WatchPlanResponse>* ResolverRpc::WatchPlan(
    grpc::CallbackServerContext* /*context*/, const v1::WatchPlanRequest* request) {
  absl::Status refusal = CheckNotDraining();
  if (refusal.ok()) refusal = CheckRequest(request->request());
  return config_.streams->Open(*request, refusal);
}

grpc::ServerUnaryReactor* ResolverRpc::AckPlan(grpc::CallbackServerContext* context,
                                               const v1::AckPlanRequest* request,
                                               v1::AckPlanResponse* response) {
  return AnswerUnary(config_.calls, "Resolver/AckPlan", context, response, [&] {
    absl::StatusOr<v1::AckPlanResponse> result = config_.service->AckPlan(*request);
    if (result.ok()) config_.training->RecordAck(request->error().empty());
    return result;
  });
}

grpc::ServerUnaryReactor* ResolverRpc::ReportProgress(grpc::CallbackServerContext* context,
                                                      const v1::ReportProgressRequest* request,
                                                      v1::ReportProgressResponse* response) {
  return AnswerUnary(config_.calls, "Resolver/ReportProgress", context, response, [&] {
    absl::StatusOr<v1::ReportProgressResponse> result = config_.service->ReportProgress(*request);
    if (result.ok() && !result->unknown_instance()) config_.training->RecordProgress(*request);
    return result;
  });
}

}  // namespace fuseboard
