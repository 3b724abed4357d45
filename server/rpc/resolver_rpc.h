// The Resolver service over gRPC's callback API. Everything it decides, ResolverService and PlanHub
// decide; here are the wire, the counters and the refusal of new work while draining.

#ifndef SERVER_RPC_RESOLVER_RPC_H_
#define SERVER_RPC_RESOLVER_RPC_H_

#include <atomic>

#include "fuseboard/v1/resolver.grpc.pb.h"
#include "server/plans/resolver_service.h"
#include "server/rpc/call_stats.h"
#include "server/rpc/plan_streams.h"
#include "server/rpc/training_stats.h"

namespace fuseboard {

class ResolverRpc : public v1::Resolver::CallbackService {
 public:
  // All pointers outlive the service.
  struct Config {
    ResolverService* service = nullptr;
    PlanStreams* streams = nullptr;
    CallStats* calls = nullptr;
    TrainingStats* training = nullptr;
    const std::atomic<bool>* draining = nullptr;
  };

  explicit ResolverRpc(Config config) : config_(config) {}

  grpc::ServerUnaryReactor* Resolve(grpc::CallbackServerContext* context,
                                    const v1::ResolveRequest* request,
                                    v1::ResolveResponse* response) override;
  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchPlanResponse>* WatchPlan(
      grpc::CallbackServerContext* context, const v1::WatchPlanRequest* request) override;
  grpc::ServerUnaryReactor* AckPlan(grpc::CallbackServerContext* context,
                                    const v1::AckPlanRequest* request,
                                    v1::AckPlanResponse* response) override;
  grpc::ServerUnaryReactor* ReportProgress(grpc::CallbackServerContext* context,
                                           const v1::ReportProgressRequest* request,
                                           v1::ReportProgressResponse* response) override;

 private:
  absl::Status CheckNotDraining() const;

  const Config config_;
};

}  // namespace fuseboard

#endif  // SERVER_RPC_RESOLVER_RPC_H_
