#include "server/rpc/control_rpc.h"

#include "server/rpc/unary.h"

namespace fuseboard {

grpc::ServerUnaryReactor* ControlRpc::SetOverride(grpc::CallbackServerContext* context,
                                                  const v1::SetOverrideRequest* request,
                                                  v1::MutationResponse* response) {
  return AnswerUnary(calls_, "Control/SetOverride", context, response,
                     [&] { return service_->SetOverride(*request); });
}

grpc::ServerUnaryReactor* ControlRpc::DeleteOverride(grpc::CallbackServerContext* context,
                                                     const v1::DeleteOverrideRequest* request,
                                                     v1::MutationResponse* response) {
  return AnswerUnary(calls_, "Control/DeleteOverride", context, response,
                     [&] { return service_->DeleteOverride(*request); });
}

grpc::ServerUnaryReactor* ControlRpc::ListOverrides(grpc::CallbackServerContext* context,
                                                    const v1::ListOverridesRequest* /*request*/,
                                                    v1::ListOverridesResponse* response) {
  return AnswerUnary(calls_, "Control/ListOverrides", context, response,
                     [&] { return service_->ListOverrides(); });
}

grpc::ServerUnaryReactor* ControlRpc::SetKill(grpc::CallbackServerContext* context,
                                              const v1::SetKillRequest* request,
                                              v1::MutationResponse* response) {
  return AnswerUnary(calls_, "Control/SetKill", context, response,
                     [&] { return service_->SetKill(*request); });
}

grpc::ServerUnaryReactor* ControlRpc::DeleteKill(grpc::CallbackServerContext* context,
                                                 const v1::DeleteKillRequest* request,
                                                 v1::MutationResponse* response) {
  return AnswerUnary(calls_, "Control/DeleteKill", context, response,
                     [&] { return service_->DeleteKill(*request); });
}

grpc::ServerUnaryReactor* ControlRpc::ListKills(grpc::CallbackServerContext* context,
                                                const v1::ListKillsRequest* /*request*/,
                                                v1::ListKillsResponse* response) {
  return AnswerUnary(calls_, "Control/ListKills", context, response,
                     [&] { return service_->ListKills(); });
}

grpc::ServerUnaryReactor* ControlRpc::ListAudit(grpc::CallbackServerContext* context,
                                                const v1::ListAuditRequest* request,
                                                v1::ListAuditResponse* response) {
  return AnswerUnary(calls_, "Control/ListAudit", context, response,
                     [&] { return service_->ListAudit(*request); });
}

}  // namespace fuseboard
