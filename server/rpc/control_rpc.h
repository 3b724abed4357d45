// The Control service over gRPC's callback API; ControlService answers. Registered on the admin
// socket only: that is the whole access control of this release.

#ifndef SERVER_RPC_CONTROL_RPC_H_
#define SERVER_RPC_CONTROL_RPC_H_

#include "fuseboard/v1/control.grpc.pb.h"
#include "server/control/control_service.h"
#include "server/rpc/call_stats.h"

namespace fuseboard {

class ControlRpc : public v1::Control::CallbackService {
 public:
  // Both outlive the service.
  ControlRpc(ControlService* service, CallStats* calls) : service_(service), calls_(calls) {}

  grpc::ServerUnaryReactor* SetOverride(grpc::CallbackServerContext* context,
                                        const v1::SetOverrideRequest* request,
                                        v1::MutationResponse* response) override;
  grpc::ServerUnaryReactor* DeleteOverride(grpc::CallbackServerContext* context,
                                           const v1::DeleteOverrideRequest* request,
                                           v1::MutationResponse* response) override;
  grpc::ServerUnaryReactor* ListOverrides(grpc::CallbackServerContext* context,
                                          const v1::ListOverridesRequest* request,
                                          v1::ListOverridesResponse* response) override;
  grpc::ServerUnaryReactor* SetKill(grpc::CallbackServerContext* context,
                                    const v1::SetKillRequest* request,
                                    v1::MutationResponse* response) override;
  grpc::ServerUnaryReactor* DeleteKill(grpc::CallbackServerContext* context,
                                       const v1::DeleteKillRequest* request,
                                       v1::MutationResponse* response) override;
  grpc::ServerUnaryReactor* ListKills(grpc::CallbackServerContext* context,
                                      const v1::ListKillsRequest* request,
                                      v1::ListKillsResponse* response) override;
  grpc::ServerUnaryReactor* ListAudit(grpc::CallbackServerContext* context,
                                      const v1::ListAuditRequest* request,
                                      v1::ListAuditResponse* response) override;

 private:
  ControlService* const service_;
  CallStats* const calls_;
};

}  // namespace fuseboard

#endif  // SERVER_RPC_CONTROL_RPC_H_
