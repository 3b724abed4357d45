#include "server/rpc/status_rpc.h"

#include "server/rpc/unary.h"

namespace fuseboard {

grpc::ServerUnaryReactor* StatusRpc::DescribeNode(grpc::CallbackServerContext* context,
                                                  const v1::DescribeNodeRequest* /*request*/,
                                                  v1::DescribeNodeResponse* response) {
  return AnswerUnary(calls_, "Status/DescribeNode", context, response,
                     [&] { return absl::StatusOr<v1::DescribeNodeResponse>(describe_()); });
}

grpc::ServerUnaryReactor* StatusRpc::ListJobs(grpc::CallbackServerContext* context,
                                              const v1::ListJobsRequest* request,
                                              v1::ListJobsResponse* response) {
  return AnswerUnary(calls_, "Status/ListJobs", context, response, [&] {
    v1::ListJobsResponse jobs;
    for (v1::ProcessStatus& process : processes_->ListProcesses(request->include_gone())) {
      jobs.add_processes()->Swap(&process);
    }
    return absl::StatusOr<v1::ListJobsResponse>(std::move(jobs));
  });
}

}  // namespace fuseboard
