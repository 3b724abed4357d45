// The Status service over gRPC's callback API. What the node is, its owner tells by a function,
// since it concerns every part; what the processes are, the ProcessTable knows.

#ifndef SERVER_RPC_STATUS_RPC_H_
#define SERVER_RPC_STATUS_RPC_H_

#include <functional>
#include <utility>

#include "fuseboard/v1/status.grpc.pb.h"
#include "server/jobs/process_table.h"
#include "server/rpc/call_stats.h"

namespace fuseboard {

class StatusRpc : public v1::Status::CallbackService {
 public:
  using DescribeFn = std::function<v1::DescribeNodeResponse()>;

  // `describe` is called from any thread. The pointers outlive the service.
  StatusRpc(DescribeFn describe, const ProcessTable* processes, CallStats* calls)
      : describe_(std::move(describe)), processes_(processes), calls_(calls) {}

  grpc::ServerUnaryReactor* DescribeNode(grpc::CallbackServerContext* context,
                                         const v1::DescribeNodeRequest* request,
                                         v1::DescribeNodeResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;

 private:
  const DescribeFn describe_;
  const ProcessTable* const processes_;
  CallStats* const calls_;
};

}  // namespace fuseboard

#endif  // SERVER_RPC_STATUS_RPC_H_
