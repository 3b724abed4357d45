#include "server/rpc/profile_rpc.h"

#include "server/common/status_macros.h"
#include "server/rpc/unary.h"

namespace fuseboard {

grpc::ServerUnaryReactor* ProfileRpc::ReportWindow(grpc::CallbackServerContext* context,
                                                   const v1::ReportWindowRequest* request,
                                                   v1::ReportWindowResponse* response) {
  return AnswerUnary(calls_, "Profile/ReportWindow", context, response,
                     [&]() -> absl::StatusOr<v1::ReportWindowResponse> {
                       FB_RETURN_IF_ERROR(reports_->Report(*request));
                       return v1::ReportWindowResponse();
                     });
}

grpc::ServerUnaryReactor* ProfileRpc::ListReports(grpc::CallbackServerContext* context,
                                                  const v1::ListReportsRequest* request,
                                                  v1::ListReportsResponse* response) {
  return AnswerUnary(calls_, "Profile/ListReports", context, response,
                     [&] { return reports_->ListReports(*request); });
}

}  // namespace fuseboard
