// The Profile service over gRPC's callback API; ReportStore answers. StartWindow and StopWindow are
// reserved: gRPC's own default for them is UNIMPLEMENTED, which is what profile.proto promises.

#ifndef SERVER_RPC_PROFILE_RPC_H_
#define SERVER_RPC_PROFILE_RPC_H_

#include "fuseboard/v1/profile.grpc.pb.h"
#include "server/jobs/report_store.h"
#include "server/rpc/call_stats.h"

namespace fuseboard {

class ProfileRpc : public v1::Profile::CallbackService {
 public:
  // Both outlive the service.
  ProfileRpc(ReportStore* reports, CallStats* calls) : reports_(reports), calls_(calls) {}

  grpc::ServerUnaryReactor* ReportWindow(grpc::CallbackServerContext* context,
                                         const v1::ReportWindowRequest* request,
                                         v1::ReportWindowResponse* response) override;
  grpc::ServerUnaryReactor* ListReports(grpc::CallbackServerContext* context,
                                        const v1::ListReportsRequest* request,
                                        v1::ListReportsResponse* response) override;

 private:
  ReportStore* const reports_;
  CallStats* const calls_;
};

}  // namespace fuseboard

#endif  // SERVER_RPC_PROFILE_RPC_H_
